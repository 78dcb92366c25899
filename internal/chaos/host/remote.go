package host

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

// dialLimit bounds how long a remote client takes to find the cluster.
const dialLimit = 30 * time.Second

// runRemote runs a process without a node, whose client calls the cluster over the network. It
// lives as long as the run: whatever becomes of the nodes, it has to find them again.
func runRemote(config Config, terminated <-chan os.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	client, err := cluster.Dial(ctx, cluster.DialConfig{
		Addresses: config.Dial,
		TLS:       cluster.KeyFiles(config.Keys[0], config.Keys[1], config.Keys[2]),
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	takeCalls(mux, client)
	return serve(config.Door, mux, terminated, client.Close, client.Close)
}

// takeCalls has a client carry out what the harness asks for.
func takeCalls(mux *http.ServeMux, client *cluster.Client) {
	mux.HandleFunc("POST "+CallPath, func(w http.ResponseWriter, r *http.Request) {
		var request evidence.Request
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(Answer(r.Context(), client, request))
	})
	mux.HandleFunc("POST "+StormPath, func(w http.ResponseWriter, r *http.Request) {
		var storm Storm
		if err := json.NewDecoder(r.Body).Decode(&storm); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(storm.run(r.Context(), client))
	})
}
