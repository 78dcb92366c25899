package schedule

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
)

// A Page is a part of a list of schedules.
type Page struct {
	Schedules []Listed
	// Next is the after argument for the next page; "" if this is the last.
	Next string
}

// A Listed is a schedule in a list.
type Listed struct {
	ID    string
	State cluster.State
	// Description is nil if the schedule does not answer: if it is stalled, hung or waits for code,
	// or if Err is set.
	Description *Description
	// Err is why the schedule could not be asked: it was purged meanwhile, for example.
	Err error
}

// describesMax bounds the schedules that a List asks at once.
const describesMax = 16

// List returns the schedules that match the filter, in its order, with the next due times of each.
// It returns at most limit schedules (0 means 100; at most 1,000), those that follow after ("" for
// the first page, otherwise Page.Next). A page may have fewer, even none, although more follow.
// Without filter.States, List returns those that have not ended. filter.Name is ignored. Each
// schedule is queried, which loads it into memory.
//
// Errors: those of [cluster.Client.List]; the error of ctx.
func List(ctx context.Context, client *cluster.Client, filter cluster.Filter, after string, limit int) (*Page, error) {
	filter.Name = schedules.Name
	if len(filter.States) == 0 {
		filter.States = instances.OpenStates()
	}
	found, err := client.List(ctx, filter, after, limit)
	if err != nil {
		return nil, wrap(err, "list", "")
	}
	page := &Page{Schedules: make([]Listed, len(found.Instances)), Next: found.Next}
	var asked errgroup.Group
	asked.SetLimit(describesMax)
	for i, status := range found.Instances {
		listed := &page.Schedules[i]
		listed.ID, listed.State = status.InstanceID, status.State
		if !answers(status.State) {
			continue
		}
		asked.Go(func() error {
			listed.Description, listed.Err = Describe(ctx, client, listed.ID)
			return nil
		})
	}
	_ = asked.Wait()
	if ctx.Err() != nil {
		return nil, wrap(ctx.Err(), "list", "")
	}
	return page, nil
}

// answers reports whether an instance in a state answers queries soon.
func answers(state cluster.State) bool {
	return state != cluster.Stalled && state != cluster.Hung && state != cluster.WaitingForCode
}
