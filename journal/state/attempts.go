package state

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// attempt is the recorded state of an open activity's attempts.
type attempt struct {
	event   uint64 // event_id of the activity
	failed  uint32
	encoded []byte // the Attempt; never changed
}

// recordAttempt stores an Attempt with its operation.
func (m *Machine) recordAttempt(a *attemptCommand) error {
	ref := a.message.GetRef()
	if a.message.Epoch != m.epoch {
		return &StaleEpochError{Instance: ref.GetInstance(), Epoch: a.message.Epoch, Current: m.epoch}
	}
	closed := &ClosedError{Instance: ref.GetInstance(), Execution: ref.GetExecution(), EventID: ref.GetEventId()}
	in, ok := m.busy[closed.Instance]
	if !ok || in.execution != closed.Execution || in.incarnation != ref.GetIncarnation() {
		return closed
	}
	at, ok := in.open.find(closed.EventID)
	if !ok {
		return closed
	}
	if reason := in.validateAttempt(&in.open[at], a.message); reason != "" {
		return in.invalid(&segment{execution: in.execution}, closed.EventID, reason)
	}
	m.markDirty(in)
	// Cloned, because the encoded bytes are part of a log entry, which would stay in memory.
	in.setAttempt(closed.EventID, a.message.Failed, bytes.Clone(a.encoded))
	m.watchers.notify(in.id, in.isRunning())
	return nil
}

// validateAttempt checks an attempt of an open operation.
func (in *instance) validateAttempt(op *operation, a *journalpb.Attempt) (reason string) {
	if op.eventType != journalpb.TypeActivityScheduled {
		return fmt.Sprintf("operation %d has another event type", op.id)
	}
	if before := in.attempts[op.id].failed; a.Failed < before {
		return fmt.Sprintf("the number of failed attempts decreases to %d from %d", a.Failed, before)
	}
	return ""
}

func (in *instance) setAttempt(event uint64, failed uint32, encoded []byte) {
	if in.attempts == nil {
		in.attempts = map[uint64]attempt{}
	}
	in.attempts[event] = attempt{event, failed, encoded}
}

// removeClosedAttempts removes the attempts of operations that newly appended segments have closed.
func (in *instance) removeClosedAttempts(segments []segment) {
	if len(in.attempts) == 0 {
		return
	}
	if len(segments) > 1 || !in.isRunning() {
		in.attempts = nil
		return
	}
	for _, encoded := range segments[0].events {
		e, _ := parseEventFields(encoded) // fold has decoded it
		if _, open := in.open.find(e.source); !open {
			delete(in.attempts, e.source)
		}
	}
	if len(in.attempts) == 0 {
		in.attempts = nil
	}
}

// sortedAttempts returns the attempts in order of their operations.
func (in *instance) sortedAttempts() []attempt {
	sorted := make([]attempt, 0, len(in.attempts))
	for i := range in.open {
		if a, ok := in.attempts[in.open[i].id]; ok {
			sorted = append(sorted, a)
		}
	}
	return sorted
}

// restoreAttempt adds an encoded Attempt of a snapshot. Attempts come in ascending order.
func (in *instance) restoreAttempt(encoded []byte, previous uint64) (event uint64, err error) {
	a := &journalpb.Attempt{}
	if err := proto.Unmarshal(encoded, a); err != nil {
		return 0, fmt.Errorf("instance %q: decode attempt: %w: %w", in.id, ErrCorrupt, err)
	}
	event = a.GetRef().GetEventId()
	at, ok := in.open.find(event)
	if !ok || event <= previous || a.Ref.Instance != in.id || a.Ref.Execution != in.execution || a.Ref.Incarnation != in.incarnation || in.validateAttempt(&in.open[at], a) != "" {
		return 0, fmt.Errorf("instance %q: invalid attempt of operation %d: %w", in.id, event, ErrCorrupt)
	}
	in.setAttempt(event, a.Failed, encoded)
	return event, nil
}

// message returns the protobuf form, nil for an operation without an attempt.
func (a attempt) message() *journalpb.Attempt {
	if a.encoded == nil {
		return nil
	}
	m := &journalpb.Attempt{}
	_ = proto.Unmarshal(a.encoded, m) // it was decoded before it was stored
	return m
}
