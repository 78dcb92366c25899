package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A Lineage is the cluster since it was continued from a backup, or from the directories that were
// left after the loss of a majority.
type Lineage struct {
	ID     string    // 32 hexadecimal digits
	How    string    // "restored" or "recovered", as cluster.Status.Continued
	Source string    // the ID of the backup, or the node whose directory was used
	Since  time.Time // by the clock of the computer where that was done
}

// Lineages returns the latest lineages of the cluster, at most 16, oldest first; none if the
// cluster was neither restored nor recovered, or the leader runs an earlier build.
//
// Errors: as cluster.Client.Members.
func Lineages(ctx context.Context, client *cluster.Client) ([]Lineage, error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, fmt.Errorf("list lineages: %w", err)
	}
	response, err := internals.Call(ctx, &clusterpb.Request{Call: &clusterpb.Request_Members{Members: new(clusterpb.MembersRequest)}})
	if err != nil {
		return nil, fmt.Errorf("list lineages: %w", err)
	}
	var all []Lineage
	for _, of := range response.GetMembers().GetLineages() {
		all = append(all, Lineage{ID: of.GetId(), How: instances.Continued(of), Source: of.GetSource(), Since: time.Unix(0, of.GetTime())})
	}
	return all, nil
}
