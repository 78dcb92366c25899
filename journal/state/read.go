package state

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// What a reader cannot be told, because the call has no error, fails the store:
// Failed tells, and the reader is shown nothing rather than something else.

// Epoch returns the epoch in force, 0 before the first.
func (m *Machine) Epoch() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.epoch
}

// Instance returns what the index knows of an instance. The message is the
// caller's own.
func (m *Machine) Instance(id string) (message *journalpb.Instance, ok bool) {
	ok, _ = m.lookup(id, func(in *instance) { message = in.message() })
	return message, ok
}

// Instances yields every instance, in order of their IDs. One that is there from
// the beginning of the iteration to the end is yielded once; one that comes or
// goes meanwhile may be. Each is as it is when its turn comes.
func (m *Machine) Instances() iter.Seq[*journalpb.Instance] {
	return m.messages(everyInstance, func(*instance) bool { return true })
}

// Unbegun yields the running instances whose latest execution holds nothing but
// OrchestrationStarted, in order of their IDs: no turn of its code has been
// recorded, because there was no code to run or the node that was to run it was
// lost. It costs what it yields, and yields as Instances does.
func (m *Machine) Unbegun() iter.Seq[*journalpb.Instance] {
	return m.messages(unbegunInstances, func(in *instance) bool { return in.memberships().unbegun })
}

// Orphans yields the running instances that were started as children and whose
// parents no longer wait for them, in order of their IDs: the operation that
// scheduled the child was given up, its execution has ended, or the parent was
// purged. It costs the children that run, not what exists, and yields as
// Instances does.
func (m *Machine) Orphans() iter.Seq[*journalpb.Instance] {
	return func(yield func(*journalpb.Instance) bool) {
		for in := range m.messages(childInstances, func(in *instance) bool { return in.memberships().child }) {
			parent := refOf(in.Parent)
			orphaned, err := m.orphaned(&parent)
			if err != nil || orphaned && !yield(in) {
				return
			}
		}
	}
}

// messages yields the instances of a set for which a condition holds.
func (m *Machine) messages(of set, holds func(*instance) bool) iter.Seq[*journalpb.Instance] {
	return func(yield func(*journalpb.Instance) bool) {
		for c := range m.members(of) {
			var message *journalpb.Instance
			_, err := m.see(&c, func(in *instance) {
				if holds(in) {
					message = in.message()
				}
			})
			if err != nil || message != nil && !yield(message) {
				return
			}
		}
	}
}

// Open yields the open operations of all instances, in order of instance and
// event_id. It costs what is open, not what exists. Of the instances it holds
// what Instances says; the operations of each are as they are when its turn
// comes.
func (m *Machine) Open() iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		for c := range m.members(busyInstances) {
			var busy openInstance
			if _, err := m.see(&c, busy.copy); err != nil || !busy.yield(c.id, yield) {
				return
			}
		}
	}
}

// OpenOf yields the open operations of one instance, in order of event_id;
// nothing for an instance that is not known. It is a consistent view.
func (m *Machine) OpenOf(instance string) iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		var busy openInstance
		if _, err := m.lookup(instance, busy.copy); err == nil {
			busy.yield(instance, yield)
		}
	}
}

// openInstance is a copy of what is open in an instance.
type openInstance struct {
	open        operations
	attempts    map[uint64]attempt
	execution   uint64
	incarnation uint64
}

func (o *openInstance) copy(in *instance) {
	o.open, o.attempts = slices.Clone(in.open), maps.Clone(in.attempts)
	o.execution, o.incarnation = in.execution, in.incarnation
}

func (o *openInstance) yield(instance string, yield func(*journalpb.Operation) bool) (more bool) {
	for i := range o.open {
		op := o.open[i].message(instance, o.execution, o.incarnation)
		op.Attempt = o.attempts[o.open[i].id].message()
		if !yield(op) {
			return false
		}
	}
	return true
}

// Events yields the history of an execution from the event with the id from
// on, up to the last one at the beginning of the iteration. An execution of 0
// means the latest; a from of 0 means 1. Each event is decoded when its turn
// comes and is the caller's own. An error ends the iteration: ErrNotFound, also
// if the instance is purged meanwhile, a *StoreError, or an event that does not
// decode.
func (m *Machine) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	return func(yield func(*journalpb.Event, error) bool) {
		h, err := m.history(instance, execution)
		if err != nil {
			yield(nil, err)
			return
		}
		for id, encoded := range h.from(max(from, 1), &err) {
			event, err := decode(instance, id, encoded)
			if !yield(event, err) || err != nil {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// Event returns one event of an execution; 0 means the latest execution. The
// message is the caller's own. The error wraps ErrNotFound if there is no such
// event, or is a *StoreError.
func (m *Machine) Event(instance string, execution, id uint64) (*journalpb.Event, error) {
	h, err := m.history(instance, execution)
	if err != nil {
		return nil, err
	}
	if id >= 1 {
		for _, encoded := range h.from(id, &err) {
			return decode(instance, id, encoded)
		}
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("event %d of instance %q: %w", id, instance, ErrNotFound)
}

// history is one execution as it is at one moment: its tail in memory, the rest
// in the store.
type history struct {
	m        *Machine
	instance string
	number   uint64 // of the instance, in that database
	home     uint64
	last     uint64    // event_id
	link     uint64    // of the last event, if the store has it; 0 if it is not known
	tail     execution // as far as it is in memory
}

// history returns an execution, the latest for 0.
func (m *Machine) history(id string, number uint64) (h history, err error) {
	h = history{m: m, instance: id}
	found, err := m.lookup(id, func(in *instance) { h.take(in, number) })
	if err != nil {
		return h, err
	}
	if !found {
		return h, fmt.Errorf("instance %q: %w", id, ErrNotFound)
	}
	if h.last == 0 && h.number != 0 {
		h.last, err = m.store.lastOf(h.home, h.number, number)
		if errors.Is(err, errReplaced) {
			return m.history(id, number)
		}
		if err != nil {
			return h, err
		}
	}
	if h.last == 0 {
		return h, fmt.Errorf("execution %d of instance %q: %w", number, id, ErrNotFound)
	}
	if h.tail.events == nil {
		h.tail.first = h.last + 1
	}
	return h, nil
}

// take notes where an execution is.
func (h *history) take(in *instance, number uint64) {
	if number == 0 {
		number = in.execution
	}
	h.number, h.home, h.tail.number = in.number, in.home, number
	if number == in.execution {
		h.last, h.link = in.last, in.chain
	}
	if x := in.history(number); x != nil {
		h.tail, h.last, h.link = *x, x.end(), 0
	}
}

// from yields the encoded events from one on; nobody changes them. It sets err
// if the store cannot tell.
func (h history) from(id uint64, err *error) iter.Seq2[uint64, []byte] {
	return func(yield func(uint64, []byte) bool) {
		link := uint64(0) // of the event before id, once it is known
		for id < h.tail.first && id <= h.last {
			c, start, failed := h.m.store.events(h.home, place{h.number, h.tail.number, id})
			if failed == nil {
				failed = h.verify(&c, start, link)
			}
			if errors.Is(failed, errReplaced) {
				failed = h.find()
				if failed == nil {
					continue
				}
			}
			if failed != nil {
				*err = failed
				return
			}
			link = c.after
			for _, encoded := range c.events[id-start:] {
				if id >= h.tail.first || id > h.last {
					break
				}
				if !yield(id, encoded) {
					return
				}
				id++
			}
		}
		for ; id <= h.last; id++ {
			if !yield(id, h.tail.events[id-h.tail.first]) {
				return
			}
		}
	}
}

// verify holds a chunk against the one before it, and against the header.
func (h *history) verify(c *chunk, start, link uint64) error {
	last := start + uint64(len(c.events)) - 1
	if link != 0 && c.before != link || last == h.last && h.link != 0 && c.after != h.link {
		return h.m.store.Fail("read a history", fmt.Errorf("the chain of instance %q, execution %d, event %d: %w",
			h.instance, h.tail.number, last, ErrCorrupt))
	}
	return nil
}

// find looks for the history again, when the store does not have what it had: it
// was replaced, the instance was purged, or it is damaged.
func (h *history) find() error {
	now, err := h.m.history(h.instance, h.tail.number)
	switch {
	case err != nil:
		return err
	case now.home != h.home && now.last >= h.last:
		now.last, now.link = h.last, 0
		*h = now
		return nil
	case now.home == h.home && now.number == h.number:
		return h.m.store.Fail("read a history", fmt.Errorf("events of instance %q, execution %d, are missing: %w",
			h.instance, h.tail.number, ErrCorrupt))
	}
	return fmt.Errorf("instance %q was purged: %w", h.instance, ErrNotFound)
}

func decode(instance string, id uint64, encoded []byte) (*journalpb.Event, error) {
	event := &journalpb.Event{}
	if err := proto.Unmarshal(encoded, event); err != nil {
		return nil, fmt.Errorf("decode event %d of instance %q: %w", id, instance, err)
	}
	return event, nil
}
