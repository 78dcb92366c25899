package state

import (
	"bytes"
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The fields of SetCondition that are read here.
const fieldCondition = 5

// conditionCommand is a SetCondition, decoded, and its condition as it is encoded.
type conditionCommand struct {
	message *journalpb.SetCondition
	encoded []byte
}

func (c *conditionCommand) parse(b []byte) bool {
	c.message, c.encoded = &journalpb.SetCondition{}, nil
	return proto.Unmarshal(b, c.message) == nil && each(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		if number == fieldCondition && wire == protowire.BytesType {
			c.encoded, _ = protowire.ConsumeBytes(value)
		}
	})
}

// setCondition keeps a condition with its instance, or removes the one that is kept.
func (m *Machine) setCondition(c *conditionCommand) error {
	s := c.message
	if s.Epoch != m.epoch {
		return &StaleEpochError{Instance: s.Instance, Epoch: s.Epoch, Current: m.epoch}
	}
	in, known := m.instances[s.Instance]
	if !known || !in.running() || in.incarnation != s.Incarnation || in.execution != s.Execution || in.last != s.LastEventId {
		conflict := &ConflictError{Instance: s.Instance, Execution: s.Execution, First: s.LastEventId + 1}
		if known && in.execution == s.Execution {
			conflict.Last = in.last
		}
		return conflict
	}
	if bytes.Equal(in.condition, c.encoded) {
		return nil
	}
	m.touch(in)
	was := in.memberships()
	in.condition = nil
	if s.Condition.GetKind() != journalpb.ConditionKind_CONDITION_KIND_UNSPECIFIED {
		in.condition = bytes.Clone(c.encoded) // the record is part of an entry that others may outlive
	}
	m.move(in, was, in.memberships())
	m.watchers.notify(in.id, true)
	return nil
}

// Held yields the running instances that have a condition: those that do not go on. It
// costs what it yields, not what exists, and yields as Instances does.
func (m *Machine) Held() iter.Seq[*journalpb.Instance] {
	return m.messages(heldInstances, func(in *instance) bool { return in.memberships().held })
}

// keepCondition takes back an encoded condition that was written.
func (in *instance) keepCondition(encoded []byte) error {
	if err := proto.Unmarshal(encoded, new(journalpb.Condition)); err != nil || !in.running() {
		return fmt.Errorf("instance %q: a condition that does not decode or of one that has ended: %w", in.id, ErrCorrupt)
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
	_ = proto.Unmarshal(in.condition, message) // it was decoded before it was kept
	return message
}
