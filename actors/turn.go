package actors

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A turn is a batch of messages and what follows from it until the append is decided. Its memory
// is reused; an instance that waits for messages has none.
type turn struct {
	router
	events        []*journalpb.Event
	successor     *journalpb.Event // of the next execution, if this one continues as new
	postponed     []Message        // for the next execution, once there is one
	overrideErr   error            // what the senders get although the append is committed
	exceededLimit string           // which limit the instance has exceeded; "" if none

	terminateOnly bool // it ends a stalled or blocked instance, by the only message of the batch
	takenFrom     int  // the index in the inbox of that message; 0 for other turns
	startOnly     bool // it records the start of an instance and runs none of its code
	// copied is what the turn proposes instead of its events, which then hold at most the
	// termination that the journal records with the copy; nil for other turns.
	copied *journalpb.CopyHistory

	proposal  journalpb.Append
	encodings [2]encoding
	onDecided func(error) // tells the instance whether the append was committed
}

// An encoding holds the events of one execution in one buffer.
type encoding struct {
	segment journalpb.Segment
	buffer  []byte
}

// The memory that a released turn keeps for reuse is at most this.
const (
	turnReuseMax   = 64       // messages
	bufferReuseMax = 16 << 10 // bytes, of each buffer
)

func (in *instance) newTurn() *turn {
	t, ok := in.partition.system.turns.Get().(*turn)
	if !ok {
		t = new(turn)
		t.onDecided = func(err error) {
			if err == nil {
				t.in.partition.send(t.in, appendCommitted)
				return
			}
			t.in.partition.send(t.in, appendDecided{err})
		}
	}
	t.in = in
	return t
}

// release makes the memory of a turn available to other turns. The caller must not use it
// afterwards.
func (t *turn) release() {
	turns := &t.in.partition.system.turns
	t.router.reset()
	t.proposal.Instance, t.proposal.Segments = "", t.proposal.Segments[:0]
	for i := range t.encodings {
		e := &t.encodings[i]
		clear(e.segment.Events)
		e.segment.Events = e.segment.Events[:0]
		if cap(e.buffer) > bufferReuseMax {
			e.buffer = nil
		}
	}
	t.events, t.successor, t.postponed, t.overrideErr, t.exceededLimit = nil, nil, nil, nil, ""
	t.terminateOnly, t.takenFrom, t.startOnly, t.copied = false, 0, false, nil
	turns.Put(t)
}

// encode prepares the append of a turn. It returns the size of the turn's events and of the
// successor in bytes: both are in one record of the journal.
func (t *turn) encode() (bytes int, err error) {
	t.proposal.Instance, t.proposal.Epoch = t.in.id, t.in.partition.epoch
	t.proposal.Segments = append(t.proposal.Segments[:0], &t.encodings[0].segment)
	bytes, err = t.encodings[0].encode(t.in.executionNumber, t.events)
	if err == nil && t.successor != nil {
		t.proposal.Segments = append(t.proposal.Segments, &t.encodings[1].segment)
		var more int
		more, err = t.encodings[1].encode(t.in.executionNumber+1, []*journalpb.Event{t.successor})
		bytes += more
	}
	return bytes, err
}

// failWithoutRetry makes a turn that ends with a retried failure end with that failure, without
// the next execution. It reports whether the turn has a retried failure. On replay the recorded
// end is accepted.
func (t *turn) failWithoutRetry() bool {
	last := t.events[len(t.events)-1]
	failure := last.GetOrchestrationContinuedAsNew().GetRetried()
	if failure == nil {
		return false
	}
	failed := &journalpb.Event{EventId: last.EventId, Timestamp: last.Timestamp, SourceEventId: last.SourceEventId,
		Body: &journalpb.Event_OrchestrationFailed{OrchestrationFailed: &journalpb.OrchestrationFailed{Error: failure}}}
	t.events = append(slices.Clone(t.events[:len(t.events)-1]), failed)
	t.successor = nil
	return true
}

// sizeReason says why an instance whose turn exceeds the largest append is terminated.
func (t *turn) sizeReason(bytes, maximum int) string {
	if t.successor != nil {
		return fmt.Sprintf("one step and the start of the next execution take %d bytes of events, the limit is %d: "+
			"continue as new with less input, fewer unconsumed events and smaller values, or pass references", bytes, maximum)
	}
	return fmt.Sprintf("one step adds %d bytes of events, the limit is %d: schedule less at once, or pass references", bytes, maximum)
}

func (e *encoding) encode(execution uint64, events []*journalpb.Event) (bytes int, err error) {
	for _, event := range events {
		bytes += proto.Size(event)
	}
	e.segment.Execution, e.segment.FirstEventId, e.segment.Events = execution, events[0].EventId, e.segment.Events[:0]
	if cap(e.buffer) < bytes {
		e.buffer = make([]byte, 0, bytes)
	}
	options := proto.MarshalOptions{UseCachedSize: true}
	buffer := e.buffer[:0]
	for _, event := range events {
		from := len(buffer)
		if buffer, err = options.MarshalAppend(buffer, event); err != nil {
			return 0, fmt.Errorf("encode event: %w", err)
		}
		e.segment.Events = append(e.segment.Events, buffer[from:len(buffer):len(buffer)])
	}
	e.buffer = buffer
	return bytes, nil
}

// checkRunOptions returns an error if an event has an option of a run that some member does not
// know.
func (t *turn) checkRunOptions() error {
	check := t.in.partition.config.CheckRunOptions
	if check == nil {
		return nil
	}
	for _, event := range t.events {
		child, chained := event.GetSubOrchestrationScheduled(), event.GetOrchestrationChained()
		if child.GetRetry() != nil || child.GetSummary() != "" || chained.GetSummary() != "" {
			return check()
		}
	}
	return nil
}

func (t *turn) append() { t.in.partition.journal.Append(&t.proposal, t.onDecided) }

// A reply is the answer to the sender of a message.
type reply struct {
	message       *Message
	answer        Answer
	ignoresAppend bool // the answer holds even if the append is rejected
}

// resolve answers each sender once. Postponed messages are still here only if the append was
// rejected. They are answered with the error, because putting them back would repeat the turn at
// once.
func (t *turn) resolve(err error) {
	if err == nil {
		err = t.overrideErr
	}
	for t.resolved < len(t.replies) {
		next := t.replies[t.resolved]
		t.resolved++
		if err != nil && !next.ignoresAppend {
			next.answer.Err = err
		}
		next.message.resolve(next.answer)
	}
	t.postponed = append(t.postponed, t.held...)
	t.held = nil
	for len(t.postponed) > 0 { // there is no next execution
		next := t.postponed[0]
		t.postponed = t.postponed[1:]
		next.resolve(Answer{Err: err})
	}
}

// addReply adds the answer for a message that the code has taken. refusal is why it was refused,
// nil if it was not.
func (t *turn) addReply(m *Message, disposition engine.Disposition, refusal error) {
	a := Answer{Dropped: disposition == engine.Dropped}
	switch disposition {
	case engine.Refused:
		if a.Err = refusal; m.Validation != engine.ValidateNone {
			a.Err = &RejectedError{Err: refusal}
		}
	case engine.Ended:
		a.Err = ErrEnded
	case engine.Forgotten:
		a.Err = ErrForgotten
	case engine.RequestIDReused:
		a.Err = ErrRequestIDReused
	}
	if m.startEvent() != nil {
		a.FirstExecution, a.Incarnation = t.in.executionNumber, t.in.incarnation
		a.UpdateRecorded, a.UpdateErr = len(m.startEvent().Inbox) > 0, t.updateErr
		if m.Update != nil && !a.UpdateRecorded && a.UpdateErr == nil {
			t.postponed = append(t.postponed, m.undecidedUpdate())
		}
	}
	t.replies = append(t.replies, reply{message: m, answer: a})
}
