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

// chainedStart is a start whose instance does not exist yet and that does not
// depend on whether anybody waits for it: a detached one, or that of a child that
// is abandoned when its parent gives it up or ends. It is kept beside the
// histories and not derived from them: whether an instance that is not there was
// never started, or was purged, no history tells; nor which of two that ask for
// the same one was first; and whoever asked may be purged before.
type chainedStart struct {
	ref    operationRef
	target string // the instance
	arm    int    // of the event that asks
	body   []byte // the encoded body of that event, which decodes; never changed
}

// outlives reports whether an event asks for a start that is made even if nobody
// waits for it any more.
func (e *skimmed) outlives() bool {
	if e.arm == journalpb.ArmSubOrchestrationScheduled {
		policy, _ := integer(e.body, fieldClosePolicy)
		return policy == int64(journalpb.ClosePolicy_CLOSE_POLICY_ABANDON)
	}
	return e.arm == journalpb.ArmOrchestrationChained
}

// ask takes the body of the event that asks, and reports whether it decodes.
func (c *chainedStart) ask(arm int, body []byte) bool {
	c.arm, c.body = arm, body
	m := c.message()
	c.target = m.GetChained().GetInstance() + m.GetChild().GetInstance()
	return m != nil
}

// keepChained takes up the chained starts in segments that were just appended,
// each unless its instance exists or another is waiting to start it.
func (m *Machine) keepChained(in *instance, segments []segment) {
	for i := range segments {
		for _, encoded := range segments[i].events {
			e, _ := skim(encoded) // it was folded before
			if !e.outlives() {
				continue
			}
			target, _ := text(e.body, fieldChildInstance)
			_, exists := m.instances[target]
			if _, waits := m.chained[target]; !exists && !waits {
				ref := operationRef{in.id, segments[i].execution, e.id, in.incarnation}
				m.keepChainedStart(&chainedStart{ref, target, e.arm, e.body})
			}
		}
	}
}

func (m *Machine) keepChainedStart(c *chainedStart) {
	if m.store != nil {
		// A copy: the record is part of an entry that others may outlive.
		c.body = bytes.Clone(c.body)
		m.rechained = append(m.rechained, chainedChange{c.target, c})
	}
	m.chained[c.target] = *c
}

// dropChained forgets the chained start of an instance, if there is one.
func (m *Machine) dropChained(target string) {
	if _, waits := m.chained[target]; !waits {
		return
	}
	delete(m.chained, target)
	if m.store != nil {
		m.rechained = append(m.rechained, chainedChange{target, nil})
	}
}

// Chained yields the chained starts whose instances do not exist yet, in order
// of the IDs of those, and with them the starts of children whose close policy is
// to abandon them. Such a start waits from the append that holds it,
// unless its instance exists then, until an instance of that ID is started, by
// whomever, or a GroupChange says that it was in another group; neither the end nor the purge of the one that asked takes it back.
// Of several that ask for the same ID the first to be appended counts. The set
// is that of the beginning of the iteration, without those whose instances have
// been started when their turn comes. The messages are the caller's own.
func (m *Machine) Chained() iter.Seq[*journalpb.ChainedStart] {
	return func(yield func(*journalpb.ChainedStart) bool) {
		m.mu.RLock()
		targets := slices.Sorted(maps.Keys(m.chained))
		m.mu.RUnlock()
		for _, target := range targets {
			m.mu.RLock()
			c, ok := m.chained[target]
			m.mu.RUnlock()
			if ok && !yield(c.message()) {
				return
			}
		}
	}
}

// WaitsToStart tells whether there is a chained start of an instance, or that of a
// child to be abandoned, that waits.
func (m *Machine) WaitsToStart(target string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, waits := m.chained[target]
	return waits
}

// message returns the protobuf form; nil if the body does not decode, which is
// found out before it is kept.
func (c *chainedStart) message() *journalpb.ChainedStart {
	m := &journalpb.ChainedStart{Ref: c.ref.message()}
	var body proto.Message
	if c.arm == journalpb.ArmOrchestrationChained {
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

// The encoding of ChainedStart{ref = 1, chained = 2, child = 3}, with
// OperationRef{instance = 1, execution = 2, event_id = 3, incarnation = 4}: by hand,
// since an ID may be any bytes.

const (
	fieldChainedRef     = 1
	fieldChainedChained = 2
	fieldChainedChild   = 3
)

func (c *chainedStart) size() int {
	return 1 + protowire.SizeBytes(c.ref.size()) + 1 + protowire.SizeBytes(len(c.body))
}

func (c *chainedStart) encode(b []byte) []byte {
	b = protowire.AppendTag(b, fieldChainedRef, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(c.ref.size()))
	b = c.ref.encode(b)
	field := protowire.Number(fieldChainedChained)
	if c.arm == journalpb.ArmSubOrchestrationScheduled {
		field = fieldChainedChild
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

// parse decodes what encode has written.
func (c *chainedStart) parse(record []byte) error {
	wellFormed := true
	ok := each(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		if wire != protowire.BytesType {
			return
		}
		body, _ := protowire.ConsumeBytes(value)
		switch number {
		case fieldChainedRef:
			wellFormed = c.ref.parse(body) && wellFormed
		case fieldChainedChained:
			wellFormed = c.arm == 0 && c.ask(journalpb.ArmOrchestrationChained, body) && wellFormed
		case fieldChainedChild:
			wellFormed = c.arm == 0 && c.ask(journalpb.ArmSubOrchestrationScheduled, body) && wellFormed
		}
	})
	if !ok || !wellFormed || c.arm == 0 {
		return fmt.Errorf("decode chained start: %w", ErrCorrupt)
	}
	return nil
}

func (r *operationRef) parse(b []byte) bool {
	return each(b, func(number protowire.Number, wire protowire.Type, value []byte) {
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
