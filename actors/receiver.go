package actors

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A receiver takes messages from other partitions, each of them once until it is answered.
type receiver struct {
	journal Journal
	local   deliverer

	mu     *sync.Mutex // the partition's, which guards the fields below
	closed bool
	// The callbacks of unanswered messages.
	pending map[crossMessageKey]func(Answer)
}

// receive implements Partition.Receive.
func (r *receiver) receive(c *CrossMessage, done func(Answer)) {
	key := c.key()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		done(Answer{Err: ErrStopped})
		return
	}
	_, waits := r.pending[key]
	r.pending[key] = done
	r.mu.Unlock()
	if waits {
		return
	}
	incarnation := c.Incarnation
	if c.ChildOf != nil {
		meta, ok := r.journal.Instance(c.Instance)
		switch {
		case !ok:
			r.resolve(key, done, Answer{Err: ErrNotFound}) // its start is in flight
			return
		case !proto.Equal(meta.Parent, c.ChildOf):
			r.resolve(key, done, Answer{Dropped: true}) // an unrelated instance
			return
		}
		incarnation = meta.Incarnation
	}
	r.local.Deliver(c.Instance, Message{
		// A copy: the event is numbered here, and the sender may send the original again.
		Message: engine.Message{Execution: c.Execution, Incarnation: incarnation, Event: &journalpb.Event{
			SourceEventId: c.Event.SourceEventId, Body: c.Event.Body,
		}},
		Attach:   c.Attach,
		Internal: true,
		Done:     func(a Answer) { r.resolve(key, done, r.withExistingInstance(c, a)) },
	})
}

// close makes the receiver store no further callbacks. The partition's lock is held.
func (r *receiver) close() { r.closed = true }

// withExistingInstance adds the existing instance, and its last event if it has ended, to the
// answer to a start.
func (r *receiver) withExistingInstance(c *CrossMessage, a Answer) Answer {
	if a.Err != nil || !a.Dropped || c.Event.GetOrchestrationStarted() == nil {
		return a
	}
	meta, ok := r.journal.Instance(c.Instance)
	if !ok {
		return Answer{Err: ErrNotFound} // it was just purged; the sender repeats the start
	}
	a.Instance = meta
	if meta.Status != journalpb.Status_STATUS_RUNNING {
		var err error
		if a.LastEvent, err = r.journal.Event(meta.Instance, meta.Execution, meta.LastEventId); err != nil {
			return Answer{Err: err}
		}
	}
	return a
}

// resolve passes an answer to the latest callback for its message, or to first if there is none.
func (r *receiver) resolve(key crossMessageKey, first func(Answer), a Answer) {
	r.mu.Lock()
	done, ok := r.pending[key]
	delete(r.pending, key)
	r.mu.Unlock()
	if !ok {
		done = first
	}
	done(a)
}
