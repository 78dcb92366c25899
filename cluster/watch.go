package cluster

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// Watch yields the events of a run from a position on: first those recorded, then each as it is
// committed, across continue-as-new, until the last. The zero [history.Position] is the beginning
// of the latest run; [history.Event.Next] returns the position to continue from. Watch waits for a
// position that does not exist yet, even one in an execution of a later run. A position after the
// last event of an ended execution yields nothing.
//
// The payloads of the events are decoded by the client's codec.
//
// The events come from this node's own replica, or from that of the node that a remote client
// reaches. They are committed, but the replica may be behind the leader. Nothing is buffered for a
// slow reader.
//
// An error ends the sequence: [ErrNotFound] if there is no instance with that ID, or it was purged;
// [*replay.InvalidError]; [*UnavailableError] if the replica does not have the instance and no
// leader answers; [ErrClosed]; the error of ctx; or the reason why the node has failed.
func (c *Client) Watch(ctx context.Context, id string, from history.Position) iter.Seq2[history.Event, error] {
	return func(yield func(history.Event, error) bool) {
		stopped, err := false, firstError(c.check(ctx), checkID(id))
		if err == nil {
			stopped, err = follow(ctx, c, id, from, yield)
		}
		if err != nil && !stopped {
			yield(history.Event{}, ofInstance("watch", id, err))
		}
	}
}

// follow passes the events of a run to yield, within the interceptors of the client. It reports
// whether yield has returned false; then it must not be called again.
func follow(ctx context.Context, c *Client, id string, from history.Position, yield func(history.Event, error) bool) (bool, error) {
	stopped := false
	_, err := intercepted(ctx, &c.options, replay.ClientCall{Kind: "watch", Instance: id}, func(ctx context.Context) (any, error) {
		var openErr error
		err := c.transport.follow(ctx, id, from, func(r recordedEvent) bool {
			opened, err := c.converter.OpenEvent(r.message)
			openErr = err
			stopped = err == nil && !yield(eventpb.New(r.execution, opened), nil)
			return err == nil && !stopped
		})
		if stopped {
			return nil, nil
		}
		return nil, firstError(openErr, err)
	})
	return stopped, err
}

// A recordedEvent is an event of an instance in its protobuf form, with its execution.
type recordedEvent struct {
	execution uint64
	message   *journalpb.Event
}

func (r recordedEvent) next() history.Position {
	if r.message.GetOrchestrationContinuedAsNew() != nil {
		return history.Position{Execution: r.execution + 1, EventID: 1}
	}
	return history.Position{Execution: r.execution, EventID: r.message.EventId + 1}
}

// errReaderStopped ends a historyWatcher whose reader wants no more events.
var errReaderStopped = errors.New("the reader has stopped")

// A historyWatcher yields the events of a run as this node applies them.
type historyWatcher struct {
	partition *partition
	id        string
	next      history.Position         // of the next event
	yield     func(recordedEvent) bool // returns whether to continue
	// shouldPause reports whether to end instead of waiting for more; nil: never.
	shouldPause func() bool
	watchedRun  *journalpb.Instance // as first seen
}

// follow implements caller. It recovers panics, except those of pass, which belong to the
// caller.
func (r *router) follow(ctx context.Context, id string, from history.Position, pass func(recordedEvent) bool) (err error) {
	passing := false
	defer func() {
		if passing {
			return
		}
		if value := recover(); value != nil {
			err = r.node.recoverer.Log("watch", id, value)
		}
	}()
	return (&historyWatcher{partition: r.node.partitionOf(id), id: id, next: from, yield: func(r recordedEvent) bool {
		passing = true
		more := pass(r)
		passing = false
		return more
	}}).run(ctx)
}

// run returns nil after the last event of the run.
func (h *historyWatcher) run(ctx context.Context) error {
	g := h.partition
	changed, cancel := g.journal.Watch(h.id)
	defer cancel()
	for {
		known, ok := g.journal.Instance(h.id)
		if isQuarantined(g, h.id) {
			if err := g.node.poll(ctx, func() bool { return !isQuarantined(g, h.id) }); err != nil {
				return err
			}
			continue
		}
		switch {
		case h.watchedRun != nil && (!ok || isReplaced(known, h.watchedRun)):
			return errPurged
		case ok:
			h.begin(known)
			if ended, err := h.yieldAvailable(ctx, known); ended || err != nil {
				return err
			}
		default:
			// Not replicated here yet, or not existing.
			if _, err := g.node.router.fetchStatus(ctx, h.id); err != nil {
				return err
			}
		}
		if h.shouldPause != nil && h.shouldPause() {
			return errReaderStopped
		}
		if err := g.waits.awaitChange(ctx, changed); err != nil {
			return err
		}
	}
}

// isReplaced reports whether an ID now names another instance than the one seen before, which was
// purged.
func isReplaced(known, seen *journalpb.Instance) bool {
	return known.FirstExecution < seen.FirstExecution ||
		known.FirstExecution == seen.FirstExecution && known.CreatedAt != seen.CreatedAt
}

func (h *historyWatcher) begin(known *journalpb.Instance) {
	if h.watchedRun != nil {
		return
	}
	h.watchedRun = known
	if h.next.Execution == 0 {
		h.next.Execution = known.FirstExecution
	}
	h.next.EventID = max(h.next.EventID, 1)
}

// yieldAvailable yields the events recorded so far and reports whether they were the last of the
// run.
func (h *historyWatcher) yieldAvailable(ctx context.Context, known *journalpb.Instance) (ended bool, err error) {
	for h.next.Execution <= known.Execution {
		execution := h.next.Execution
		if err := h.yieldExecution(ctx); err != nil {
			return false, err
		}
		if h.next.Execution > execution {
			continue
		}
		last, err := h.partition.journal.Event(h.id, execution, h.next.EventID-1)
		switch {
		case instances.IsNotFound(err):
			// The position does not exist yet, or never will.
			return execution < known.Execution || known.Status != journalpb.Status_STATUS_RUNNING, nil
		case err != nil:
			return false, err
		case last.GetOrchestrationContinuedAsNew() == nil:
			return journalpb.IsTerminal(last.TypeNumber()), nil
		}
		h.next = history.Position{Execution: execution + 1, EventID: 1}
	}
	return false, nil
}

// yieldExecution yields the events of one execution recorded so far.
func (h *historyWatcher) yieldExecution(ctx context.Context) error {
	execution := h.next.Execution
	for event, err := range h.partition.journal.Events(h.id, execution, h.next.EventID) {
		switch {
		case instances.IsNotFound(err):
			return errPurged
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		r := recordedEvent{execution, event}
		h.next = r.next()
		if !h.yield(r) {
			return errReaderStopped
		}
	}
	return nil
}

var errPurged = fmt.Errorf("%w: it was purged", ErrNotFound)

// awaitChange returns nil when the watched instance has changed on this node.
func (w *runWaiter) awaitChange(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.partition.node.closing:
		return ErrClosed
	case <-w.journal.Failed():
		return w.journal.Err()
	}
}
