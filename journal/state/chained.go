package state

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// chainedStart is a detached start whose instance does not exist yet. It is kept
// beside the histories and not derived from them: whether an instance that is
// not there was never started, or was purged, no history tells; nor which of two
// that ask for the same one was first; and whoever asked may be purged before.
type chainedStart struct {
	ref    operationRef
	target string // the instance
	body   []byte // an encoded OrchestrationChained that decodes; never changed
}

// keepChained takes up the chained starts in segments that were just appended,
// each unless its instance exists or another is waiting to start it.
func (m *Machine) keepChained(instance string, segments []segment) {
	for i := range segments {
		for _, encoded := range segments[i].events {
			e, _ := skim(encoded) // it was folded before
			if e.arm != journalpb.ArmOrchestrationChained {
				continue
			}
			target, _ := text(e.body, fieldChildInstance)
			_, exists := m.instances[target]
			if _, waits := m.chained[target]; !exists && !waits {
				m.chained[target] = chainedStart{operationRef{instance, segments[i].execution, e.id}, target, e.body}
			}
		}
	}
}

// Chained yields the chained starts whose instances do not exist yet, in order
// of the IDs of those. A chained start waits from the append that holds it,
// unless its instance exists then, until an instance of that ID is started, by
// whomever; neither the end nor the purge of the one that asked takes it back.
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

func (c *chainedStart) message() *journalpb.ChainedStart {
	chained := &journalpb.OrchestrationChained{}
	_ = proto.Unmarshal(c.body, chained) // it was decoded before it was kept
	return &journalpb.ChainedStart{Ref: c.ref.message(), Chained: chained}
}

// The encoding of ChainedStart{ref = 1, chained = 2}, with OperationRef{instance
// = 1, execution = 2, event_id = 3}: by hand, since an ID may be any bytes.

func (c *chainedStart) size() int {
	return 1 + protowire.SizeBytes(c.ref.size()) + 1 + protowire.SizeBytes(len(c.body))
}

func (c *chainedStart) encode(b []byte) []byte {
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(c.ref.size()))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, c.ref.instance)
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	b = protowire.AppendVarint(b, c.ref.execution)
	b = protowire.AppendTag(b, 3, protowire.VarintType)
	b = protowire.AppendVarint(b, c.ref.event)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	return protowire.AppendBytes(b, c.body)
}

func (r *operationRef) size() int {
	return 1 + protowire.SizeBytes(len(r.instance)) + 1 + protowire.SizeVarint(r.execution) + 1 + protowire.SizeVarint(r.event)
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
		case 1:
			wellFormed = c.ref.parse(body) && wellFormed
		case 2:
			c.body = body
		}
	})
	var chained journalpb.OrchestrationChained
	if !ok || !wellFormed || proto.Unmarshal(c.body, &chained) != nil {
		return fmt.Errorf("decode chained start: %w", ErrCorrupt)
	}
	c.target = chained.Instance
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
		}
	})
}
