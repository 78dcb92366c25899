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

// If a method without an error result cannot read the store, the store fails and Failed is closed.
// The caller then sees no data, never wrong data.

// reads answers reads of the state, in memory and in the store.
type reads struct{ flusher }

// Epoch returns the current epoch, 0 before the first.
func (re *reads) Epoch() uint64 {
	re.mu.RLock()
	defer re.mu.RUnlock()
	return re.epoch
}

// Instance returns the index entry of an instance. The caller owns the message.
func (re *reads) Instance(id string) (message *journalpb.Instance, ok bool) {
	ok, _ = re.lookup(id, func(in *instance) { message = in.message() })
	return message, ok
}

// Instances yields all instances in order of their IDs. An instance that exists during the whole
// iteration is yielded once; one that is created or purged meanwhile may be yielded. Each is
// current when it is yielded.
func (re *reads) Instances() iter.Seq[*journalpb.Instance] {
	return re.matchingInstances(allInstances, func(*instance) bool { return true })
}

// Unbegun yields the running instances whose latest execution holds only OrchestrationStarted, or
// ends with HistoryCopied, in order of their IDs. No turn of their code is recorded since: the
// leader had no code for them, failed before it recorded the turn, or the turn recorded nothing.
// The cost is proportional to what it yields. It has the guarantees of Instances.
func (re *reads) Unbegun() iter.Seq[*journalpb.Instance] {
	return re.matchingInstances(unbegunInstances, func(in *instance) bool { return in.memberships().unbegun })
}

// Orphans yields, in order of their IDs, the running children whose parents no longer wait for
// them: the operation that scheduled the child was canceled, its execution has ended, or the parent
// was purged. A child whose parent is in another partition is yielded, too. The cost is
// proportional to the number of running children. It has the guarantees of Instances.
func (re *reads) Orphans() iter.Seq[*journalpb.Instance] {
	return func(yield func(*journalpb.Instance) bool) {
		for in := range re.matchingInstances(childInstances, func(in *instance) bool { return in.memberships().child }) {
			parent := refOf(in.Parent)
			orphaned, err := re.isOrphaned(&parent)
			if err != nil || orphaned && !yield(in) {
				return
			}
		}
	}
}

// matchingInstances yields the instances of a set that match.
func (re *reads) matchingInstances(set instanceSet, match func(*instance) bool) iter.Seq[*journalpb.Instance] {
	return func(yield func(*journalpb.Instance) bool) {
		for c := range re.members(set, new(error)) {
			var message *journalpb.Instance
			_, err := re.viewMember(&c, func(in *instance) {
				if match(in) {
					message = in.message()
				}
			})
			if err != nil || message != nil && !yield(message) {
				return
			}
		}
	}
}

// OpenOperations yields the open operations of all instances, in order of instance and event_id.
// The cost is proportional to what is open. Instances are visited with the guarantees of Instances;
// the operations of each are current when it is visited.
func (re *reads) OpenOperations() iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		for c := range re.members(busyInstances, new(error)) {
			var busy openInstance
			if _, err := re.viewMember(&c, busy.copy); err != nil || !busy.yield(c.id, yield) {
				return
			}
		}
	}
}

// InstanceOperations yields the open operations of one instance, in order of event_id; none for an
// unknown instance. It is a consistent view.
func (re *reads) InstanceOperations(instance string) iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		var busy openInstance
		if _, err := re.lookup(instance, busy.copy); err == nil {
			busy.yield(instance, yield)
		}
	}
}

// BufferedEvents returns how many external events of a running instance wait for a subscription, by
// name; nil for an unknown instance. Updates are events, and are counted even if they have run.
func (re *reads) BufferedEvents(id string) (buffered map[string]int) {
	_, _ = re.lookup(id, func(in *instance) { buffered = maps.Clone(in.bufferedEvents) })
	return buffered
}

// openInstance is a copy of an instance's open operations.
type openInstance struct {
	open        operations
	attempts    map[uint64]attempt
	execution   uint64
	incarnation uint64
	copiedEvent uint64
}

func (o *openInstance) copy(in *instance) {
	o.open, o.attempts = slices.Clone(in.open), maps.Clone(in.attempts)
	o.execution, o.incarnation, o.copiedEvent = in.execution, in.incarnation, in.copiedEvent
}

func (o *openInstance) yield(instance string, yield func(*journalpb.Operation) bool) (more bool) {
	for i := range o.open {
		op := o.open[i].message(instance, o.execution, o.incarnation, o.copiedEvent)
		op.Attempt = o.attempts[o.open[i].id].message()
		if !yield(op) {
			return false
		}
	}
	return true
}

// Events yields the history of an execution, from the event with the id from up to the last one at
// the beginning of the iteration. An execution of 0 means the latest; a from of 0 means 1. Each
// event is decoded at its turn, and the caller owns it. An error ends the iteration: ErrNotFound,
// also if the instance is purged meanwhile, a *StoreError, or a decoding error.
func (re *reads) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	return func(yield func(*journalpb.Event, error) bool) {
		h, err := re.history(instance, execution)
		if err != nil {
			yield(nil, err)
			return
		}
		for id, encoded := range h.eventsFrom(max(from, 1), &err) {
			event, err := decodeEvent(instance, id, encoded)
			if !yield(event, err) || err != nil {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// Event returns one event of an execution; an execution of 0 means the latest. The caller owns the
// message. The error wraps ErrNotFound if the event does not exist, or is a *StoreError.
func (re *reads) Event(instance string, execution, id uint64) (*journalpb.Event, error) {
	h, err := re.history(instance, execution)
	if err != nil {
		return nil, err
	}
	if id >= 1 {
		for _, encoded := range h.eventsFrom(id, &err) {
			return decodeEvent(instance, id, encoded)
		}
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("event %d of instance %q: %w", id, instance, ErrNotFound)
}

// history is one execution at one moment: its tail in memory, the rest in the store.
type history struct {
	machine        *reads
	instance       string
	instanceNumber uint64 // of the instance, in that database
	dbNumber       uint64
	last           uint64    // event_id
	chainHash      uint64    // of the last event, if the store has it; 0 if unknown
	tail           execution // the events in memory
}

// history returns an execution, the latest for 0.
func (re *reads) history(id string, number uint64) (h history, err error) {
	h = history{machine: re, instance: id}
	found, err := re.lookup(id, func(in *instance) { h.locate(in, number) })
	if err != nil {
		return h, err
	}
	if !found {
		return h, fmt.Errorf("instance %q: %w", id, ErrNotFound)
	}
	if h.last == 0 && h.instanceNumber != 0 {
		h.last, err = re.store.lastStoredEvent(h.dbNumber, h.instanceNumber, number)
		if errors.Is(err, errDatabaseReplaced) {
			return re.history(id, number)
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

// locate sets where the events of an execution are: in memory, in the store, or both.
func (h *history) locate(in *instance, number uint64) {
	if number == 0 {
		number = in.execution
	}
	h.instanceNumber, h.dbNumber, h.tail.number = in.instanceNumber, in.dbNumber, number
	if number == in.execution {
		h.last, h.chainHash = in.last, in.chainHash
	}
	if x := in.executionInMemory(number); x != nil {
		h.tail, h.last, h.chainHash = *x, x.lastEventID(), 0
	}
}

// eventsFrom yields the encoded events starting at id, which never change. It sets err if the store
// fails.
func (h history) eventsFrom(id uint64, err *error) iter.Seq2[uint64, []byte] {
	return func(yield func(uint64, []byte) bool) {
		chainHash := uint64(0) // of the event before id, once known
		for id < h.tail.first && id <= h.last {
			c, start, failed := h.machine.store.chunkWithEvent(h.dbNumber, chunkKey{h.instanceNumber, h.tail.number, id})
			if failed == nil {
				failed = h.verify(&c, start, chainHash)
			}
			if errors.Is(failed, errDatabaseReplaced) {
				failed = h.refresh()
				if failed == nil {
					chainHash = 0 // chunks of the other database may begin with other events
					continue
				}
			}
			if failed != nil {
				*err = failed
				return
			}
			chainHash = c.hashAfter
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

// verify checks a chunk against the chunk before it and against the header.
func (h *history) verify(c *chunk, start, chainHash uint64) error {
	last := start + uint64(len(c.events)) - 1
	if chainHash != 0 && c.hashBefore != chainHash || last == h.last && h.chainHash != 0 && c.hashAfter != h.chainHash {
		return h.machine.store.Fail("read a history", fmt.Errorf("hash chain mismatch of instance %q, execution %d, event %d: %w",
			h.instance, h.tail.number, last, ErrCorrupt))
	}
	return nil
}

// refresh locates the history again after the store no longer has it: the database was replaced,
// the instance was purged, or the store is damaged.
func (h *history) refresh() error {
	now, err := h.machine.history(h.instance, h.tail.number)
	switch {
	case err != nil:
		return err
	case now.dbNumber != h.dbNumber && now.last >= h.last:
		now.last, now.chainHash = h.last, 0
		*h = now
		return nil
	case now.dbNumber == h.dbNumber && now.instanceNumber == h.instanceNumber:
		return h.machine.store.Fail("read a history", fmt.Errorf("events of instance %q, execution %d, are missing: %w",
			h.instance, h.tail.number, ErrCorrupt))
	}
	return fmt.Errorf("instance %q was purged: %w", h.instance, ErrNotFound)
}

func decodeEvent(instance string, id uint64, encoded []byte) (*journalpb.Event, error) {
	event := &journalpb.Event{}
	if err := proto.Unmarshal(encoded, event); err != nil {
		return nil, fmt.Errorf("decode event %d of instance %q: %w", id, instance, err)
	}
	return event, nil
}
