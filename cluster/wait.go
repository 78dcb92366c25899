package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func (n *Node) await(ctx context.Context, id string, firstExecution uint64) (status *clusterpb.Status, err error) {
	request := &clusterpb.Request{Instance: id, Call: new(clusterpb.Request_Wait)}
	err = n.recovered(request, func() (err error) {
		status, err = n.of(id).await(ctx, id, firstExecution)
		return err
	})
	return status, err
}

// await waits on this node's own replica: what it shows as ended is committed.
func (g *group) await(ctx context.Context, id string, firstExecution uint64) (*clusterpb.Status, error) {
	g.reachSeen(ctx)
	ended, cancel := g.journal.WatchEnd(id)
	defer cancel()
	var run *journalpb.Instance // as it was when it was seen first
	for {
		known, ok := g.journal.Instance(id)
		var status *clusterpb.Status
		var err error
		switch {
		case run != nil && (!ok || another(known, run)):
			err = errPurged
		case ok && known.FirstExecution >= firstExecution:
			run = known
			status, err = g.ended(known, firstExecution)
		default:
			err = g.awaitArrival(ctx, id, firstExecution)
		}
		if err == nil && status == nil && run != nil {
			err = g.awaitChange(ctx, ended)
		}
		if err != nil || status != nil {
			return status, err
		}
	}
}

// reachSeen waits a little until this replica shows what calls through this node have
// seen: one that is behind may have a run that was purged since, and begun again.
func (g *group) reachSeen(ctx context.Context) {
	if seen := g.seen.Load(); g.journal.AppliedIndex() < seen {
		ctx, cancel := context.WithTimeout(ctx, catchUp)
		defer cancel()
		_ = g.poll(ctx, func() bool { return g.journal.AppliedIndex() >= seen })
	}
}

// catchUp is for how long a replica is thought to be behind, before the leader
// is asked for a run that is not here.
const catchUp = 250 * time.Millisecond

// awaitArrival waits until something is heard of a run that is not on this
// replica: it is on its way here, or was purged.
func (g *group) awaitArrival(ctx context.Context, id string, firstExecution uint64) error {
	changed, unwatch := g.journal.Watch(id)
	defer unwatch()
	if known, ok := g.journal.Instance(id); ok && known.FirstExecution >= firstExecution {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	if err := g.awaitChange(soon, changed); err == nil || soon.Err() == nil || ctx.Err() != nil {
		return err
	}
	status, err := g.askFor(ctx, id)
	if errors.Is(err, ErrNotFound) || err == nil && status.FirstExecution < firstExecution {
		return errPurged
	}
	// It exists, or there is no leader to tell; this replica will.
	return g.awaitChange(ctx, changed)
}

// ended returns the status of a run that has ended, nil while it has not.
func (g *group) ended(known *journalpb.Instance, firstExecution uint64) (*clusterpb.Status, error) {
	status := indexed(known)
	var err error
	switch {
	case known.FirstExecution > firstExecution:
		status, err = g.earlierEnd(known, firstExecution)
	case known.Status != journalpb.Status_STATUS_RUNNING:
		err = g.fill(nil, known, status)
	default:
		return nil, nil
	}
	switch {
	case isNotFound(err):
		return nil, errPurged
	case err != nil:
		return nil, fmt.Errorf("read its end: %w", err)
	}
	return status, nil
}

// askFor asks the leader for the state of an instance.
func (n *Node) askFor(ctx context.Context, id string) (*clusterpb.Status, error) {
	response, err := n.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}})
	return response.GetGet().GetStatus(), err
}

// earlierEnd returns how a run ended that another has followed under the same
// ID.
func (g *group) earlierEnd(known *journalpb.Instance, firstExecution uint64) (*clusterpb.Status, error) {
	status := &clusterpb.Status{Instance: known.Instance, FirstExecution: firstExecution}
	for execution := firstExecution; execution < known.FirstExecution; execution++ {
		status.Execution = execution
		var last *journalpb.Event
		for event, err := range g.journal.Events(known.Instance, execution, 1) {
			if err != nil {
				return nil, err
			}
			fillEvent(event, status)
			last = event
		}
		if last.GetOrchestrationContinuedAsNew() == nil {
			fillEnd(last, status)
			break
		}
	}
	return status, nil
}

// fillEvent adds what an event says of the run to which it belongs.
func fillEvent(event *journalpb.Event, status *clusterpb.Status) {
	status.LastEventId, status.UpdatedAt = event.EventId, event.Timestamp
	if set := event.GetStatusSet(); set != nil {
		status.Published = set.Value
	}
	started := event.GetOrchestrationStarted()
	if started == nil {
		return
	}
	status.Name, status.Version, status.Parent, status.Tags = started.Name, started.Version, started.Parent, started.Tags
	status.Published = started.Status
	if status.Execution == status.FirstExecution {
		status.CreatedAt = event.Timestamp
	}
}
