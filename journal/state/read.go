package state

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Epoch returns the epoch in force, 0 before the first.
func (m *Machine) Epoch() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.epoch
}

// Instance returns what the index knows of an instance. The message is the
// caller's own.
func (m *Machine) Instance(id string) (*journalpb.Instance, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	in, ok := m.instances[id]
	if !ok {
		return nil, false
	}
	return in.message(), true
}

// Instances yields every instance, in order of their IDs. The set of IDs is
// that of the beginning of the iteration; each instance is as it is when its
// turn comes.
func (m *Machine) Instances() iter.Seq[*journalpb.Instance] {
	return m.matching(&m.instances, func(*instance) bool { return true })
}

// Unbegun yields the running instances whose latest execution holds nothing but
// OrchestrationStarted, in order of their IDs: no turn of its code has been
// recorded, because there was no code to run or the node that was to run it was
// lost. It costs what it yields. The set is as in Instances.
func (m *Machine) Unbegun() iter.Seq[*journalpb.Instance] {
	return m.matching(&m.unbegun, func(*instance) bool { return true })
}

// Orphans yields the running instances that were started as children and whose
// parents no longer wait for them, in order of their IDs: the operation that
// scheduled the child was given up, its execution has ended, or the parent was
// purged. It costs the children that run, not what exists. The set of children
// is that of the beginning of the iteration; each is looked at when its turn
// comes.
func (m *Machine) Orphans() iter.Seq[*journalpb.Instance] {
	return m.matching(&m.children, m.orphaned)
}

// matching yields the instances in a set for which a condition holds.
func (m *Machine) matching(set *map[string]*instance, holds func(*instance) bool) iter.Seq[*journalpb.Instance] {
	look := func(id string) (message *journalpb.Instance, ok bool) {
		m.mu.RLock()
		defer m.mu.RUnlock()
		in, ok := (*set)[id]
		if !ok || !holds(in) {
			return nil, false
		}
		return in.message(), true
	}
	return func(yield func(*journalpb.Instance) bool) {
		for _, id := range m.sortedIDs(set) {
			if in, ok := look(id); ok && !yield(in) {
				return
			}
		}
	}
}

// Open yields the open operations of all instances, in order of instance and
// event_id. It costs what is open, not what exists. The set of instances is
// that of the beginning of the iteration; the operations of each are as they
// are when its turn comes.
func (m *Machine) Open() iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		for _, id := range m.sortedIDs(&m.busy) {
			for op := range m.OpenOf(id) {
				if !yield(op) {
					return
				}
			}
		}
	}
}

// OpenOf yields the open operations of one instance, in order of event_id;
// nothing for an instance that is not known. It is a consistent view.
func (m *Machine) OpenOf(instance string) iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		open, attempts, execution := m.openOf(instance)
		for i := range open {
			op := open[i].message(instance, execution)
			op.Attempt = attempts[open[i].id].message()
			if !yield(op) {
				return
			}
		}
	}
}

func (m *Machine) openOf(instance string) (open operations, attempts map[uint64]attempt, execution uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	in, ok := m.busy[instance]
	if !ok {
		return nil, nil, 0
	}
	return slices.Clone(in.open), maps.Clone(in.attempts), in.execution
}

// Events yields the history of an execution from the event with the id from
// on, up to the last one at the beginning of the iteration. An execution of 0
// means the latest; a from of 0 means 1. Each event is decoded when its turn
// comes and is the caller's own. An error ends the iteration: ErrNotFound, or
// an event that does not decode.
func (m *Machine) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	return func(yield func(*journalpb.Event, error) bool) {
		encoded, err := m.history(instance, execution)
		if err != nil {
			yield(nil, err)
			return
		}
		from = max(from, 1)
		for id := from; id <= uint64(len(encoded)); id++ {
			event, err := decode(instance, id, encoded[id-1])
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// Event returns one event of an execution; 0 means the latest execution. The
// message is the caller's own. The error wraps ErrNotFound if there is no such
// event.
func (m *Machine) Event(instance string, execution, id uint64) (*journalpb.Event, error) {
	encoded, err := m.history(instance, execution)
	if err != nil {
		return nil, err
	}
	if id < 1 || id > uint64(len(encoded)) {
		return nil, fmt.Errorf("event %d of instance %q: %w", id, instance, ErrNotFound)
	}
	return decode(instance, id, encoded[id-1])
}

// history returns the encoded events of an execution. Nobody changes them.
func (m *Machine) history(instance string, execution uint64) ([][]byte, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	in, ok := m.instances[instance]
	if !ok {
		return nil, fmt.Errorf("instance %q: %w", instance, ErrNotFound)
	}
	if execution == 0 {
		execution = in.execution
	}
	x := in.history(execution)
	if x == nil {
		return nil, fmt.Errorf("execution %d of instance %q: %w", execution, instance, ErrNotFound)
	}
	return x.events, nil
}

// sortedIDs returns the IDs in a set. It is given the place of the set, since
// Restore puts another one there.
func (m *Machine) sortedIDs(set *map[string]*instance) []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Sorted(maps.Keys(*set))
}

func decode(instance string, id uint64, encoded []byte) (*journalpb.Event, error) {
	event := &journalpb.Event{}
	if err := proto.Unmarshal(encoded, event); err != nil {
		return nil, fmt.Errorf("decode event %d of instance %q: %w", id, instance, err)
	}
	return event, nil
}
