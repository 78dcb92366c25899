package state

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// attempt is what the attempts of an open activity have come to.
type attempt struct {
	event   uint64 // the activity
	failed  uint32
	encoded []byte // the Attempt; never changed
}

// attempt keeps an Attempt with its operation.
func (m *Machine) attempt(a *attemptCommand) error {
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
	if reason := in.admitAttempt(&in.open[at], a.message); reason != "" {
		return in.invalid(&segment{execution: in.execution}, closed.EventID, reason)
	}
	m.touch(in)
	// A copy: the record is part of an entry that others may outlive.
	in.keepAttempt(closed.EventID, a.message.Failed, bytes.Clone(a.encoded))
	m.watchers.notify(in.id, in.running())
	return nil
}

// admitAttempt checks an attempt of an open operation.
func (in *instance) admitAttempt(op *operation, a *journalpb.Attempt) (reason string) {
	if op.arm != journalpb.ArmActivityScheduled {
		return fmt.Sprintf("operation %d is of another kind", op.id)
	}
	if before := in.attempts[op.id].failed; a.Failed < before {
		return fmt.Sprintf("%d failed attempts after %d", a.Failed, before)
	}
	return ""
}

func (in *instance) keepAttempt(event uint64, failed uint32, encoded []byte) {
	if in.attempts == nil {
		in.attempts = map[uint64]attempt{}
	}
	in.attempts[event] = attempt{event, failed, encoded}
}

// dropAttempts forgets the attempts of operations that segments, which were
// just appended, have closed.
func (in *instance) dropAttempts(segments []segment) {
	if len(in.attempts) == 0 {
		return
	}
	if len(segments) > 1 || !in.running() {
		in.attempts = nil
		return
	}
	for _, encoded := range segments[0].events {
		e, _ := skim(encoded) // it was folded before
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

// restoreAttempt takes an encoded Attempt of a snapshot back. They come in order.
func (in *instance) restoreAttempt(encoded []byte, previous uint64) (event uint64, err error) {
	a := &journalpb.Attempt{}
	if err := proto.Unmarshal(encoded, a); err != nil {
		return 0, fmt.Errorf("instance %q: decode attempt: %w: %w", in.id, ErrCorrupt, err)
	}
	event = a.GetRef().GetEventId()
	at, ok := in.open.find(event)
	if !ok || event <= previous || a.Ref.Instance != in.id || a.Ref.Execution != in.execution || a.Ref.Incarnation != in.incarnation || in.admitAttempt(&in.open[at], a) != "" {
		return 0, fmt.Errorf("instance %q: an attempt of operation %d, which has none: %w", in.id, event, ErrCorrupt)
	}
	in.keepAttempt(event, a.Failed, encoded)
	return event, nil
}

// message returns the protobuf form, nil for the attempt of an operation that
// has none.
func (a attempt) message() *journalpb.Attempt {
	if a.encoded == nil {
		return nil
	}
	m := &journalpb.Attempt{}
	_ = proto.Unmarshal(a.encoded, m) // it was decoded before it was kept
	return m
}
