package state

import (
	"bytes"
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The field number of SetCondition.condition.
const fieldCondition = 5

// setConditionCommand is a decoded SetCondition, and its encoded condition.
type setConditionCommand struct {
	message *journalpb.SetCondition
	encoded []byte
}

func (c *setConditionCommand) parse(b []byte) bool {
	c.message, c.encoded = &journalpb.SetCondition{}, nil
	return proto.Unmarshal(b, c.message) == nil && eachField(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		if number == fieldCondition && wire == protowire.BytesType {
			c.encoded, _ = protowire.ConsumeBytes(value)
		}
	})
}

// setCondition sets or removes the condition of an instance.
func (m *Machine) setCondition(c *setConditionCommand) error {
	s := c.message
	if s.Epoch != m.epoch {
		return &StaleEpochError{Instance: s.Instance, Epoch: s.Epoch, Current: m.epoch}
	}
	in, known := m.instances[s.Instance]
	if !known || !in.isRunning() || in.incarnation != s.Incarnation || in.execution != s.Execution || in.last != s.LastEventId {
		conflict := &ConflictError{Instance: s.Instance, Execution: s.Execution, First: s.LastEventId + 1}
		if known && in.execution == s.Execution {
			conflict.Last = in.last
		}
		return conflict
	}
	if bytes.Equal(in.condition, c.encoded) {
		return nil
	}
	m.markDirty(in)
	before := in.memberships()
	in.condition = nil
	if s.Condition.GetKind() != journalpb.ConditionKind_CONDITION_KIND_UNSPECIFIED {
		in.condition = bytes.Clone(c.encoded) // the encoded bytes are part of a log entry
	}
	m.updateSets(in, before, in.memberships())
	m.facets.count(in)
	m.watchers.notify(in.id, true)
	return nil
}

// WithCondition yields the running instances that have a condition, that is, that do not proceed.
// Its cost is proportional to their number. It has the guarantees of Instances.
func (re *reads) WithCondition() iter.Seq[*journalpb.Instance] {
	return re.matchingInstances(conditionInstances, func(in *instance) bool { return in.memberships().hasCondition })
}

// restoreCondition sets an encoded condition of a snapshot or store.
func (in *instance) restoreCondition(encoded []byte) error {
	if err := proto.Unmarshal(encoded, new(journalpb.Condition)); err != nil || !in.isRunning() {
		return fmt.Errorf("instance %q: invalid condition, or the instance has ended: %w", in.id, ErrCorrupt)
	}
	in.condition = bytes.Clone(encoded)
	return nil
}

// conditionMessage returns the protobuf form, nil if there is no condition.
func (in *instance) conditionMessage() *journalpb.Condition {
	if in.condition == nil {
		return nil
	}
	message := new(journalpb.Condition)
	_ = proto.Unmarshal(in.condition, message) // it was decoded before it was stored
	return message
}
