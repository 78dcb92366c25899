package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A runRef tells a run from others under the same ID.
type runRef struct {
	first       uint64 // the execution with which it began
	incarnation uint64 // 0: it has none, or is not known
}

// What is known of an ID, compared with a run.
type sighting int

const (
	runNotSeen sighting = iota // only what was before the run, if anything
	runSeen                    // the run, or a later one whose histories follow those of the run
	runGone                    // a later run, and the histories of this one are purged
)

// sighted says what a run is to somebody who knows the latest under its ID.
func (r runRef) sighted(latest runRef) sighting {
	switch {
	case r.incarnation == 0 && latest.first >= r.first, r == latest:
		return runSeen
	case r.incarnation == 0, latest.incarnation < r.incarnation:
		return runNotSeen
	case latest.first > r.first:
		return runSeen
	}
	return runGone
}

func runOf(known *journalpb.Instance) runRef {
	return runRef{known.GetFirstExecution(), known.GetIncarnation()}
}

func (n *Node) await(ctx context.Context, id string, run runRef) (status *clusterpb.Status, err error) {
	request := &clusterpb.Request{Instance: id, Call: new(clusterpb.Request_Wait)}
	err = n.recovered(request, func() (err error) {
		status, err = n.of(id).await(ctx, id, run)
		return err
	})
	return status, err
}

// await waits on this node's own replica: what it shows as ended is committed.
func (g *group) await(ctx context.Context, id string, run runRef) (*clusterpb.Status, error) {
	g.reachSeen(ctx)
	ended, cancel := g.journal.WatchEnd(id)
	defer cancel()
	var met *journalpb.Instance // as it was when it was seen first
	for {
		known, ok := g.journal.Instance(id)
		var status *clusterpb.Status
		var err error
		switch {
		case met != nil && (!ok || another(known, met)):
			err = errPurged
		case ok && run.sighted(runOf(known)) == runSeen:
			met = known
			status, err = g.ended(known, run)
		case ok && run.sighted(runOf(known)) == runGone:
			err = errPurged
		default:
			err = g.awaitArrival(ctx, id, run)
		}
		if err == nil && status == nil && met != nil {
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
func (g *group) awaitArrival(ctx context.Context, id string, run runRef) error {
	changed, unwatch := g.journal.Watch(id)
	defer unwatch()
	if known, ok := g.journal.Instance(id); ok && run.sighted(runOf(known)) != runNotSeen {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	if err := g.awaitChange(soon, changed); err == nil || soon.Err() == nil || ctx.Err() != nil {
		return err
	}
	status, err := g.askFor(ctx, id)
	if errors.Is(err, ErrNotFound) || err == nil && run.sighted(runRef{status.FirstExecution, status.Incarnation}) != runSeen {
		return errPurged
	}
	// It exists, or there is no leader to tell; this replica will.
	return g.awaitChange(ctx, changed)
}

// ended returns the status of a run that has ended, nil while it has not.
func (g *group) ended(known *journalpb.Instance, run runRef) (*clusterpb.Status, error) {
	status := indexed(known)
	var err error
	switch {
	case known.FirstExecution > run.first:
		status, err = g.earlierEnd(known, run)
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
func (g *group) earlierEnd(known *journalpb.Instance, run runRef) (*clusterpb.Status, error) {
	status := &clusterpb.Status{Instance: known.Instance, FirstExecution: run.first}
	for execution := run.first; execution < known.FirstExecution; execution++ {
		status.Execution = execution
		var last *journalpb.Event
		for event, err := range g.journal.Events(known.Instance, execution, 1) {
			if err != nil {
				return nil, err
			}
			if started := event.GetOrchestrationStarted(); started != nil && run.incarnation != 0 && started.Incarnation != run.incarnation {
				return nil, errPurged
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
	status.Published, status.Incarnation = started.Status, started.Incarnation
	if status.Execution == status.FirstExecution {
		status.CreatedAt = event.Timestamp
	}
}
