package replay

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Message is an input on its way to an instance: an event that has no
// event_id yet.
type Message struct {
	// The execution that it is meant for; 0 for whichever is the latest.
	Execution uint64
	// The run that it is meant for, if it is meant for an execution; see
	// journalpb.OrchestrationStarted. With Execution 0, 0 is any run.
	Incarnation uint64
	// Body and source_event_id; event_id and timestamp are given by the turn.
	Event *journalpb.Event
	// The message is sent again: it may have been recorded before, at an index of the
	// journal that is larger than FirstIndex.
	Repeated   bool
	FirstIndex uint64
}

// Disposition says what became of a message.
type Disposition uint8

const (
	// Recorded: it is an event of the turn.
	Recorded Disposition = iota
	// Dropped: it is obsolete (a completion for a closed operation or for an
	// earlier execution), was recorded before, or is no input at all; there is
	// nothing to repeat.
	Dropped
	// Ended: the instance has come to its end and takes no more input.
	Ended
	// Postponed: this execution has continued as new; the message is the next
	// one's.
	Postponed
	// Forgotten: it is sent again, and may have been recorded so long ago, or by a run
	// before this one, that the execution does not know its request ID. It is not recorded
	// now.
	Forgotten
	// Taken: this execution has recorded an input of another type or name under its request
	// ID. It is not recorded.
	Taken
)

// A Turn is the outcome of delivering a batch of messages.
type Turn struct {
	// The events to append, in order; empty if the messages changed nothing.
	Events []*journalpb.Event
	// What became of each message.
	Dispositions []Disposition
}

// newTurn returns a turn that takes so many messages, and the room that most of
// them need in one piece.
func newTurn(messages int) *Turn {
	made := &struct {
		turn         Turn
		events       [3]*journalpb.Event
		dispositions [1]Disposition
	}{}
	made.turn.Events = made.events[:0]
	if messages <= len(made.dispositions) {
		made.turn.Dispositions = made.dispositions[:messages]
	} else {
		made.turn.Dispositions = make([]Disposition, messages)
	}
	return &made.turn
}

// Turn delivers messages in order, runs the code as far as they let it, and
// returns the events that this adds to the history. They are facts once they
// are committed, and not before; if they cannot be, the execution must be
// dropped.
//
// now is the owner's clock. No event gets an earlier timestamp than the one
// before it. The first message of an empty history must carry
// OrchestrationStarted. Their payloads are recorded as they come; those of the
// code are encoded by the codec. The error is as for [Execution.Replay].
func (x *Execution) Turn(now time.Time, messages []Message) (*Turn, error) {
	if err := x.interrupted(); err != nil {
		return nil, err
	}
	turn := newTurn(len(messages))
	x.starting = x.last == 0
	x.requests.settle()
	if now.Before(x.now) {
		now = x.now
	}
	if x.last > 0 {
		if err := x.recordAsked(turn, now); err != nil {
			return nil, err
		}
	}
	for i, message := range messages {
		disposition := x.judge(message)
		turn.Dispositions[i] = disposition
		if disposition != Recorded {
			continue
		}
		event := &journalpb.Event{SourceEventId: message.Event.SourceEventId, Body: message.Event.Body}
		if err := x.recordMessage(turn, now, event); err != nil {
			return nil, err
		}
		if err := x.recordAsked(turn, now); err != nil {
			return nil, err
		}
	}
	return turn, nil
}

// recordAsked records what the code has asked for: the cursor is at the end of
// the history, so what is in the queue is new. Each decision thereby stands
// right behind the event that led to it, before the next message.
func (x *Execution) recordAsked(turn *Turn, now time.Time) error {
	for head := x.head(); head != nil && !x.ended; head = x.head() {
		x.nameChild(head.event)
		if err := x.recordAction(turn, now, head.event); err != nil {
			return err
		}
	}
	return nil
}

// nameChild derives the ID of a child or chained instance that was given none.
func (x *Execution) nameChild(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_SubOrchestrationScheduled:
		body.SubOrchestrationScheduled.Instance = x.idOr(body.SubOrchestrationScheduled.Instance, x.last+1)
	case *journalpb.Event_OrchestrationChained:
		body.OrchestrationChained.Instance = x.idOr(body.OrchestrationChained.Instance, x.last+1)
	}
}

// idOr returns the ID, or the one derived from the event that schedules it. One that would
// be too long is shortened to a prefix and a hash, except in runs from before protocol 3.
func (x *Execution) idOr(id string, eventID uint64) string {
	if id != "" {
		return id
	}
	derived := x.derivedID(eventID)
	if len(derived) <= idMax || x.origin.incarnation == 0 {
		return derived
	}
	hash := sha256.Sum256([]byte(derived))
	short := "::" + hex.EncodeToString(hash[:16])
	return derived[:idMax-len(short)] + short
}

// derivedID returns the ID derived from an event, however long it is.
func (x *Execution) derivedID(eventID uint64) string {
	if x.origin.incarnation == 0 {
		return fmt.Sprintf("%s::%d.%d", x.instance, x.number, eventID)
	}
	return fmt.Sprintf("%s::%s.%d.%d", x.instance, journalpb.IncarnationText(x.origin.incarnation), x.number, eventID)
}

// recordMessage makes what has arrived the next event of the history and moves
// the cursor onto it. It is recorded as it came: whoever sent it has encoded it.
func (x *Execution) recordMessage(turn *Turn, now time.Time, event *journalpb.Event) error {
	x.place(event, now)
	if err := x.walk(event); err != nil {
		return err
	}
	turn.Events = append(turn.Events, event)
	return nil
}

// recordAction does the same with what the code has asked for. It is encoded
// last, because a side effect gets its value in the step that consuming the event
// sets off.
func (x *Execution) recordAction(turn *Turn, now time.Time, event *journalpb.Event) error {
	x.place(event, now)
	if err := x.consume(event); err != nil {
		return err
	}
	recorded, err := x.registry.payloads.sealEvent(event)
	if err != nil {
		return x.unreadable(event, err)
	}
	x.keep(recorded)
	turn.Events = append(turn.Events, recorded)
	return nil
}

// place gives an event the next place in the history.
func (x *Execution) place(event *journalpb.Event, now time.Time) {
	event.EventId = x.last + 1
	event.Timestamp = now.UnixNano()
}

// judge decides whether a message becomes an event.
func (x *Execution) judge(message Message) Disposition {
	event := message.Event
	arm := event.Arm()
	completes := journalpb.Completes(arm)
	switch {
	case !x.meant(message), !x.accepts(arm):
		return Dropped
	case completes != 0:
		op, open := x.open.get(event.SourceEventId)
		if !open || op.completed || op.arm != completes || x.over() {
			return Dropped
		}
	case x.known(event):
		if !x.requests.repeats(event) {
			return Taken
		}
		return Dropped
	case x.successor != nil:
		return Postponed
	case x.over():
		return Ended
	case x.forgotten(message):
		return Forgotten
	case event.GetOrchestrationCancelRequested().GetByParent():
		// Recorded also if others have asked before: the next leader is to know of it.
		return droppedIf(x.byParent)
	case arm == journalpb.ArmOrchestrationCancelRequested:
		return droppedIf(x.cancelRequest != nil)
	case arm == journalpb.ArmOrchestrationSuspended:
		return droppedIf(x.suspended)
	case arm == journalpb.ArmOrchestrationResumed:
		return droppedIf(!x.suspended)
	}
	return Recorded
}

// meant reports whether a message is for this execution: a run that was purged, and an
// earlier execution, may still get messages.
func (x *Execution) meant(message Message) bool {
	if message.Execution == 0 {
		return message.Incarnation == 0 || message.Incarnation == x.origin.incarnation
	}
	return message.Execution == x.number && message.Incarnation == x.origin.incarnation
}

func droppedIf(useless bool) Disposition {
	if useless {
		return Dropped
	}
	return Recorded
}

// accepts tells whether a message may be of that type: only the code schedules
// and ends, and a start comes first and once.
func (x *Execution) accepts(arm int) bool {
	if arm == journalpb.ArmOrchestrationStarted {
		return x.last == 0
	}
	return input(arm)
}

// input tells whether events of that type come from outside the code.
func input(arm int) bool {
	switch arm {
	case journalpb.ArmExternalEvent, journalpb.ArmOrchestrationCancelRequested, journalpb.ArmOrchestrationTerminated,
		journalpb.ArmOrchestrationSuspended, journalpb.ArmOrchestrationResumed:
		return true
	}
	return journalpb.Completes(arm) != 0
}

// over tells whether the code is done, be the end recorded or not.
func (x *Execution) over() bool { return x.returned || x.ended }

// known tells whether an input with the same request ID was recorded before.
func (x *Execution) known(event *journalpb.Event) bool {
	return x.requests.has(requestID(event))
}

// forgotten reports whether an input that is not known may have been recorded all the same.
// An event that is sent with the start of a run, and comes with it, was not.
func (x *Execution) forgotten(message Message) bool {
	id := requestID(message.Event)
	if !message.Repeated || id == "" || x.starting && id == x.origin.requestID {
		return false
	}
	return message.FirstIndex < x.requests.horizon
}

// requestID returns the request ID of an input, "" if it has none.
func requestID(event *journalpb.Event) string {
	switch body := event.Body.(type) {
	case *journalpb.Event_ExternalEvent:
		return body.ExternalEvent.RequestId
	case *journalpb.Event_OrchestrationCancelRequested:
		return body.OrchestrationCancelRequested.RequestId
	case *journalpb.Event_OrchestrationSuspended:
		return body.OrchestrationSuspended.RequestId
	case *journalpb.Event_OrchestrationResumed:
		return body.OrchestrationResumed.RequestId
	}
	return ""
}
