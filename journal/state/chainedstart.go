package state

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// chainedStart is a detached start whose target instance does not exist yet. A detached start is an
// OrchestrationChained, or a child with the close policy "abandon". The machine stores it outside
// the histories. They do not show whether a missing instance was never started or was purged, or
// which of two chained starts was first. The requesting instance may also be purged before the
// start.
type chainedStart struct {
	ref       operationRef
	target    string // the instance to start
	eventType int    // of the requesting event
	body      []byte // the encoded body of that event, verified to decode; never changed
}

// isDetachedStart reports whether an event requests a start that must happen even if the requesting
// instance cancels it or ends.
func (e *eventFields) isDetachedStart() bool {
	if e.eventType == journalpb.TypeSubOrchestrationScheduled {
		policy, _ := intField(e.body, fieldClosePolicy)
		return policy == int64(journalpb.ClosePolicy_CLOSE_POLICY_ABANDON)
	}
	return e.eventType == journalpb.TypeOrchestrationChained
}

// setBody sets the body of the requesting event, and reports whether it decodes.
func (c *chainedStart) setBody(eventType int, body []byte) bool {
	c.eventType, c.body = eventType, body
	m := c.message()
	c.target = m.GetChained().GetInstance() + m.GetChild().GetInstance()
	return m != nil
}

// addChainedStarts adds the chained starts in newly appended segments, except those whose instance
// exists or already has one.
func (m *Machine) addChainedStarts(in *instance, segments []segment) {
	for i := range segments {
		for _, encoded := range segments[i].events {
			e, _ := parseEventFields(encoded) // fold has decoded it
			if !e.isDetachedStart() {
				continue
			}
			target, _ := stringField(e.body, fieldChildInstance)
			_, exists := m.instances[target]
			if _, waits := m.chainedStarts[target]; !exists && !waits {
				ref := operationRef{in.id, segments[i].execution, e.id, in.incarnation}
				m.addChainedStart(&chainedStart{ref, target, e.eventType, e.body})
			}
		}
	}
}

func (m *Machine) addChainedStart(c *chainedStart) {
	if m.store != nil {
		// Cloned, because the body is part of a log entry, which would stay in memory.
		c.body = bytes.Clone(c.body)
		m.chainedChanges = append(m.chainedChanges, chainedChange{c.target, c})
	}
	m.chainedStarts[c.target] = *c
}

// removeChainedStart removes the chained start of an instance, if there is one.
func (m *Machine) removeChainedStart(target string) {
	if _, waits := m.chainedStarts[target]; !waits {
		return
	}
	delete(m.chainedStarts, target)
	if m.store != nil {
		m.chainedChanges = append(m.chainedChanges, chainedChange{target, nil})
	}
}

// Chained yields the waiting chained starts in order of their target IDs, including children with
// the close policy "abandon". A chained start waits until any start creates its target, or until a
// MetadataChange records that the target was started in another partition. If the target exists at
// the append, the chained start does not wait. It remains after the end and the purge of the
// requesting instance. Only the first chained start appended for a target counts. Chained yields
// the starts that waited at the beginning of the iteration and still wait when it reaches them. The
// caller owns the messages.
func (re *reads) Chained() iter.Seq[*journalpb.ChainedStart] {
	return func(yield func(*journalpb.ChainedStart) bool) {
		re.mu.RLock()
		targets := slices.Sorted(maps.Keys(re.chainedStarts))
		re.mu.RUnlock()
		for _, target := range targets {
			re.mu.RLock()
			c, ok := re.chainedStarts[target]
			re.mu.RUnlock()
			if ok && !yield(c.message()) {
				return
			}
		}
	}
}

// HasChainedStart reports whether a chained start of the instance target waits. Children with the
// close policy "abandon" count.
func (re *reads) HasChainedStart(target string) bool {
	re.mu.RLock()
	defer re.mu.RUnlock()
	_, waits := re.chainedStarts[target]
	return waits
}

// message returns the protobuf form; nil if the body does not decode, which setBody reports.
func (c *chainedStart) message() *journalpb.ChainedStart {
	m := &journalpb.ChainedStart{Ref: c.ref.message()}
	var body proto.Message
	if c.eventType == journalpb.TypeOrchestrationChained {
		m.Chained = &journalpb.OrchestrationChained{}
		body = m.Chained
	} else {
		m.Child = &journalpb.SubOrchestrationScheduled{}
		body = m.Child
	}
	if proto.Unmarshal(c.body, body) != nil {
		return nil
	}
	return m
}

// The encoding of ChainedStart{ref = 1, chained = 2, child = 3}, with OperationRef{instance = 1,
// execution = 2, event_id = 3, incarnation = 4}. It is written by hand, because an ID may be any
// bytes and proto.Marshal accepts only UTF-8.

const (
	fieldChainedStartRef     = 1
	fieldChainedStartChained = 2
	fieldChainedStartChild   = 3
)

func (c *chainedStart) size() int {
	return 1 + protowire.SizeBytes(c.ref.size()) + 1 + protowire.SizeBytes(len(c.body))
}

func (c *chainedStart) encode(b []byte) []byte {
	b = protowire.AppendTag(b, fieldChainedStartRef, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(c.ref.size()))
	b = c.ref.encode(b)
	field := protowire.Number(fieldChainedStartChained)
	if c.eventType == journalpb.TypeSubOrchestrationScheduled {
		field = fieldChainedStartChild
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendBytes(b, c.body)
}

func (r *operationRef) encode(b []byte) []byte {
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, r.instance)
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	b = protowire.AppendVarint(b, r.execution)
	b = protowire.AppendTag(b, 3, protowire.VarintType)
	b = protowire.AppendVarint(b, r.event)
	return appendUint(b, 4, r.incarnation)
}

func (r *operationRef) size() int {
	n := 1 + protowire.SizeBytes(len(r.instance)) + 1 + protowire.SizeVarint(r.execution) + 1 + protowire.SizeVarint(r.event)
	if r.incarnation != 0 {
		n += 1 + protowire.SizeVarint(r.incarnation)
	}
	return n
}

// parse decodes the output of encode.
func (c *chainedStart) parse(record []byte) error {
	wellFormed := true
	ok := eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		if wire != protowire.BytesType {
			return
		}
		body, _ := protowire.ConsumeBytes(value)
		switch number {
		case fieldChainedStartRef:
			wellFormed = c.ref.parse(body) && wellFormed
		case fieldChainedStartChained:
			wellFormed = c.eventType == 0 && c.setBody(journalpb.TypeOrchestrationChained, body) && wellFormed
		case fieldChainedStartChild:
			wellFormed = c.eventType == 0 && c.setBody(journalpb.TypeSubOrchestrationScheduled, body) && wellFormed
		}
	})
	if !ok || !wellFormed || c.eventType == 0 {
		return fmt.Errorf("decode chained start: %w", ErrCorrupt)
	}
	return nil
}

func (r *operationRef) parse(b []byte) bool {
	return eachField(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == 1 && wire == protowire.BytesType:
			id, _ := protowire.ConsumeBytes(value)
			r.instance = string(id)
		case number == 2 && wire == protowire.VarintType:
			r.execution, _ = protowire.ConsumeVarint(value)
		case number == 3 && wire == protowire.VarintType:
			r.event, _ = protowire.ConsumeVarint(value)
		case number == 4 && wire == protowire.VarintType:
			r.incarnation, _ = protowire.ConsumeVarint(value)
		}
	})
}
