package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A Worker is a client of [cluster.Dial] that runs activities, as the leaders see it. It has no
// directory and no replica, so it is no [cluster.Member].
type Worker struct {
	// ID is the DialConfig.WorkerName of the worker, followed by ten random characters.
	ID string
	// Client is who connects: the kind and the name of the certificate, such as "client app".
	// Several workers can have the same.
	Client string
	// Address is where the connection to a leader comes from.
	Address string
	// Activities are the names of the activities that it has code for.
	Activities []string
	Tags       []string
	// Slots is how many attempts it runs at once, Used how many slots are in use now.
	Slots, Used int
	// Since is when it connected to the leader, and LastContact when it last sent a message, by the
	// leaders' wall clocks. An idle worker sends a message every 2 s; after 10 s without any, or
	// when its connection ends, the leader forgets it, and begins its attempts on other workers.
	Since, LastContact time.Time
	// Draining means that it is about to stop: it takes no more attempts.
	Draining bool
}

// Workers returns the workers that are connected to the leaders of the cluster now, in order of
// their IDs. A worker that has just lost its leader is missing until it has found the next, which
// usually takes less than a second. The right that it needs is [cluster.ActionSeeMembers].
//
// Errors: [cluster.ErrNotAuthorized]; [cluster.ErrProtocol] from a leader of an earlier build;
// [*cluster.UnavailableError] while a partition has no leader.
func Workers(ctx context.Context, client *cluster.Client) ([]Worker, error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	response, err := internals.Call(ctx, &clusterpb.Request{Call: &clusterpb.Request_ListWorkers{ListWorkers: new(clusterpb.ListWorkersRequest)}})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	var workers []Worker
	for _, w := range response.GetListWorkers().GetWorkers() {
		workers = append(workers, Worker{
			ID: w.Worker, Client: w.Client, Address: w.Address, Activities: w.Activities, Tags: w.Tags,
			Slots: int(w.Slots), Used: int(w.Used), Since: time.Unix(0, w.Since), LastContact: time.Unix(0, w.LastContact),
			Draining: w.Draining,
		})
	}
	return workers, nil
}
