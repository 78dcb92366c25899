package cluster

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Position is a place in the histories of an instance.
type Position struct {
	// Counted from 1; 0 means the one with which the latest run began.
	Execution uint64
	// Counted from 1; 0 means 1.
	EventID uint64
}

// A Recorded is an event of an instance, with the execution to which it belongs.
type Recorded struct {
	Execution uint64
	Event     *journalpb.Event
}

// Next returns the position behind the event, from which a watch that was broken
// off goes on.
func (r Recorded) Next() Position {
	if r.Event.GetOrchestrationContinuedAsNew() != nil {
		return Position{r.Execution + 1, 1}
	}
	return Position{r.Execution, r.Event.EventId + 1}
}

// Watch yields the events of a run from a position on: those that are there and
// then each as it is committed, across continue-as-new, until the last. The zero
// Position is the beginning of the latest run; a position that is not there yet
// is waited for, also one in an execution that a later run may have. A position
// behind the last event of an execution that has ended yields nothing.
//
// The events come from this node's own replica, or from that of one which a remote
// client reaches. What it shows is committed, but it may be behind by what the
// node has not heard of yet. Nothing is buffered:
// whoever reads slowly is that much behind.
//
// An error ends the sequence: [ErrNotFound] when there is no instance of that
// ID, or it was purged; [*InputError]; [*UnavailableError] when the instance is
// not here and no leader tells whether it exists; [ErrClosed]; ctx's; or why the
// node has stepped aside.
func (c *Client) Watch(ctx context.Context, id string, from Position) iter.Seq2[Recorded, error] {
	return func(yield func(Recorded, error) bool) {
		var unopened error
		err := firstError(c.check(ctx), checkID(id))
		if err == nil {
			err = c.access.follow(ctx, id, from, func(r Recorded) bool {
				r.Event, unopened = c.payloads.OpenEvent(r.Event)
				return unopened == nil && yield(r, nil)
			})
			err = firstError(unopened, err)
		}
		if err != nil && err != errEnough {
			yield(Recorded{}, fmt.Errorf("watch %s: %w", id, err))
		}
	}
}

// errEnough ends a follower whose reader has had enough.
var errEnough = errors.New("enough")

// A follower passes the events of a run on as this node applies them.
type follower struct {
	group *group
	id    string
	at    Position            // of the next event
	pass  func(Recorded) bool // whether to go on
	// Whether to end before waiting for more; nil: never.
	pause func() bool
	run   *journalpb.Instance // as it was when it was seen first
}

// follow implements access. A panic in pass is the caller's own.
func (n *Node) follow(ctx context.Context, id string, from Position, pass func(Recorded) bool) (err error) {
	passing := false
	defer func() {
		if passing {
			return
		}
		if value := recover(); value != nil {
			err = n.panicked("watch", id, value)
		}
	}()
	return (&follower{group: n.of(id), id: id, at: from, pass: func(r Recorded) bool {
		passing = true
		goOn := pass(r)
		passing = false
		return goOn
	}}).follow(ctx)
}

// follow returns nil behind the last event of the run.
func (f *follower) follow(ctx context.Context) error {
	g := f.group
	changed, cancel := g.journal.Watch(f.id)
	defer cancel()
	for {
		known, ok := g.journal.Instance(f.id)
		switch {
		case f.run != nil && (!ok || another(known, f.run)):
			return errPurged
		case ok:
			f.meet(known)
			if ended, err := f.passOn(ctx, known); ended || err != nil {
				return err
			}
		default:
			// Not here yet, or nowhere.
			if _, err := g.askFor(ctx, f.id); err != nil {
				return err
			}
		}
		if f.pause != nil && f.pause() {
			return errEnough
		}
		if err := g.awaitChange(ctx, changed); err != nil {
			return err
		}
	}
}

// another tells whether an ID has come to stand for an instance that is not the
// one that was seen before, because that was purged.
func another(known, seen *journalpb.Instance) bool {
	return known.FirstExecution < seen.FirstExecution ||
		known.FirstExecution == seen.FirstExecution && known.CreatedAt != seen.CreatedAt
}

func (f *follower) meet(known *journalpb.Instance) {
	if f.run != nil {
		return
	}
	f.run = known
	if f.at.Execution == 0 {
		f.at.Execution = known.FirstExecution
	}
	f.at.EventID = max(f.at.EventID, 1)
}

// passOn passes on what is there, and tells whether that was the end of the run.
func (f *follower) passOn(ctx context.Context, known *journalpb.Instance) (ended bool, err error) {
	for f.at.Execution <= known.Execution {
		execution := f.at.Execution
		if err := f.passExecution(ctx); err != nil {
			return false, err
		}
		if f.at.Execution > execution {
			continue
		}
		last, err := f.group.journal.Event(f.id, execution, f.at.EventID-1)
		switch {
		case isNotFound(err):
			// A position that is not there yet, or never will be.
			return execution < known.Execution || known.Status != journalpb.Status_STATUS_RUNNING, nil
		case err != nil:
			return false, err
		case last.GetOrchestrationContinuedAsNew() == nil:
			return journalpb.Terminal(last.Arm()), nil
		}
		f.at = Position{execution + 1, 1}
	}
	return false, nil
}

// passExecution passes on what is there of one execution.
func (f *follower) passExecution(ctx context.Context) error {
	execution := f.at.Execution
	for event, err := range f.group.journal.Events(f.id, execution, f.at.EventID) {
		switch {
		case isNotFound(err):
			return errPurged
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		r := Recorded{execution, event}
		f.at = r.Next()
		if !f.pass(r) {
			return errEnough
		}
	}
	return nil
}

var errPurged = fmt.Errorf("%w: it was purged", ErrNotFound)

// awaitChange returns nil when the instance that is watched has changed here.
func (g *group) awaitChange(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-g.closing:
		return ErrClosed
	case <-g.journal.Failed():
		return g.journal.Err()
	}
}
