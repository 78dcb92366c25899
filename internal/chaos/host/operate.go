package host

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
)

// A RoleRequest sets the role of a member, as operate.SetRole does.
type RoleRequest struct{ Node, Role string }

// Settings returns the settings with which the cluster is founded. A node that is added to five
// also votes.
func Settings() cluster.Settings { return cluster.Settings{Voters: 7} }

// handleOperations serves what operators do with the client of a node.
func handleOperations(mux *http.ServeMux, client *cluster.Client) {
	handleOperation(mux, SettingsPath, func(ctx context.Context, next cluster.Settings) (any, error) {
		_, err := client.ChangeSettings(ctx, func(s *cluster.Settings) {
			s.Voters, s.ReplaceVoterAfter, s.ReplaceLostAfter = next.Voters, next.ReplaceVoterAfter, next.ReplaceLostAfter
			s.ActivityPlacement = next.ActivityPlacement
		})
		return struct{}{}, err
	})
	handleOperation(mux, RolePath, func(ctx context.Context, request RoleRequest) (any, error) {
		return struct{}{}, operate.SetRole(ctx, client, request.Node, request.Role, "chaos")
	})
	handleOperation(mux, WorkersPath, func(ctx context.Context, _ struct{}) (any, error) {
		workers, err := operate.Workers(ctx, client)
		names := []string{}
		for _, w := range workers {
			names = append(names, w.ID[:max(0, strings.LastIndexByte(w.ID, '-'))])
		}
		return names, err
	})
}

// handleOperation serves one operation.
func handleOperation[T any](mux *http.ServeMux, path string, do func(context.Context, T) (any, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var question T
		if err := json.NewDecoder(r.Body).Decode(&question); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := do(r.Context(), question)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
}
