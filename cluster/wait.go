package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A runRef identifies a run among those under the same ID.
type runRef struct {
	first       uint64 // the first execution of the run
	incarnation uint64 // 0: none, or unknown
}

// A runVisibility is what a replica shows of a run, given the latest run under its ID.
type runVisibility int

const (
	runNotVisible runVisibility = iota // nothing, or only earlier runs
	runVisible                         // the run, or a later one whose histories follow it
	runPurged                          // a later run; the histories of this one are purged
)

// visibilityIn returns the visibility of a run on a replica where latest is the latest run under
// its ID.
func (r runRef) visibilityIn(latest runRef) runVisibility {
	switch {
	case r.incarnation == 0 && latest.first >= r.first, r == latest:
		return runVisible
	case r.incarnation == 0, latest.incarnation < r.incarnation:
		return runNotVisible
	case latest.first > r.first:
		return runVisible
	}
	return runPurged
}

func runOf(known *journalpb.Instance) runRef {
	return runRef{known.GetFirstExecution(), known.GetIncarnation()}
}

func (r *router) await(ctx context.Context, id string, run runRef) (status *clusterpb.Status, err error) {
	request := &clusterpb.Request{Instance: id, Call: new(clusterpb.Request_Wait)}
	err = r.node.recoverer.Call(request, func() (err error) {
		status, err = r.node.partitionOf(id).waits.await(ctx, id, run)
		return err
	})
	return status, err
}

// A runWaiter waits until this node's replica shows the end of a run.
type runWaiter struct {
	partition *partition
	journal   *journal.Journal
}

// await waits until this node's own replica shows the end of a run. A replica shows only committed
// events.
func (w *runWaiter) await(ctx context.Context, id string, run runRef) (*clusterpb.Status, error) {
	w.catchUpToSeen(ctx)
	ended, cancel := w.journal.WatchEnd(id)
	defer cancel()
	var found *journalpb.Instance // as first seen
	for {
		known, ok := w.journal.Instance(id)
		if isQuarantined(w.partition, id) { // checked after the read
			if err := w.partition.node.poll(ctx, func() bool { return !isQuarantined(w.partition, id) }); err != nil {
				return nil, err
			}
			continue
		}
		var status *clusterpb.Status
		var err error
		switch {
		case found != nil && (!ok || isReplaced(known, found)):
			err = errPurged
		case ok && run.visibilityIn(runOf(known)) == runVisible:
			found = known
			status, err = w.endStatus(known, run)
		case ok && run.visibilityIn(runOf(known)) == runPurged:
			err = errPurged
		default:
			err = w.awaitRun(ctx, id, run)
		}
		if err == nil && status == nil && found != nil {
			err = w.awaitChange(ctx, ended)
		}
		if err != nil || status != nil {
			return status, err
		}
	}
}

// catchUpToSeen waits, at most for catchUpTimeout, until this replica shows what calls through this
// node have seen. A replica that is behind may still show a purged run whose ID was used again
// since.
func (w *runWaiter) catchUpToSeen(ctx context.Context) {
	if seen := w.partition.seenIndex.Load(); w.journal.AppliedIndex() < seen {
		ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
		defer cancel()
		_ = w.partition.node.poll(ctx, func() bool { return w.journal.AppliedIndex() >= seen })
	}
}

// catchUpTimeout is how long a replica may be behind before the leader is asked for a run that it
// does not have.
const catchUpTimeout = 250 * time.Millisecond

// awaitRun waits for news of a run that this replica does not have: it is not replicated here yet,
// or was purged.
func (w *runWaiter) awaitRun(ctx context.Context, id string, run runRef) error {
	changed, unwatch := w.journal.Watch(id)
	defer unwatch()
	if known, ok := w.journal.Instance(id); ok && run.visibilityIn(runOf(known)) != runNotVisible {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	if err := w.awaitChange(soon, changed); err == nil || soon.Err() == nil || ctx.Err() != nil {
		return err
	}
	status, err := w.partition.node.router.fetchStatus(ctx, id)
	if errors.Is(err, ErrNotFound) || err == nil && run.visibilityIn(runRef{status.FirstExecution, status.Incarnation}) != runVisible {
		return errPurged
	}
	// It exists, or there is no leader to ask: wait until this replica changes.
	return w.awaitChange(ctx, changed)
}

// endStatus returns the status of an ended run, nil for a run that has not ended.
func (w *runWaiter) endStatus(known *journalpb.Instance, run runRef) (*clusterpb.Status, error) {
	status := instances.IndexedStatus(known)
	var err error
	switch {
	case known.FirstExecution > run.first:
		status, err = w.earlierEndStatus(known, run)
	case known.Status != journalpb.Status_STATUS_RUNNING:
		err = w.partition.reads.FillStatus(nil, known, status)
	default:
		return nil, nil
	}
	switch {
	case instances.IsNotFound(err):
		return nil, errPurged
	case err != nil:
		return nil, fmt.Errorf("read the end of the run: %w", err)
	}
	return status, nil
}

// fetchStatus asks the leader for the status of an instance.
func (r *router) fetchStatus(ctx context.Context, id string) (*clusterpb.Status, error) {
	response, err := r.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}})
	return response.GetGet().GetStatus(), err
}

// earlierEndStatus returns the end of a run that was followed by another run under the same ID.
func (w *runWaiter) earlierEndStatus(known *journalpb.Instance, run runRef) (*clusterpb.Status, error) {
	status := &clusterpb.Status{Instance: known.Instance, FirstExecution: run.first}
	for execution := run.first; execution < known.FirstExecution; execution++ {
		status.Execution = execution
		var last *journalpb.Event
		for event, err := range w.journal.Events(known.Instance, execution, 1) {
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
			instances.FillEnd(last, status)
			break
		}
	}
	return status, nil
}

// fillEvent adds the content of one event to the status of its run.
func fillEvent(event *journalpb.Event, status *clusterpb.Status) {
	status.LastEventId, status.UpdatedAt = event.EventId, event.Timestamp
	if set := event.GetStatusSet(); set != nil {
		status.CustomStatus = set.Value
	}
	if set := event.GetAttributeSet(); set != nil {
		status.Attributes = journalpb.WithAttribute(status.Attributes, set)
	}
	if event.GetHistoryCopied() != nil && status.Execution == status.FirstExecution {
		status.CreatedAt = event.Timestamp
	}
	started := event.GetOrchestrationStarted()
	if started == nil {
		return
	}
	status.Name, status.Version, status.Parent, status.Tags = started.Name, started.Version, started.Parent, started.Tags
	status.CustomStatus, status.Incarnation = started.Status, started.Incarnation
	status.Attributes, status.Summary = started.Attributes, started.Summary
	if status.Execution == status.FirstExecution {
		status.CreatedAt = event.Timestamp
	}
}
