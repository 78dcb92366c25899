package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Message is an input to an instance: an event without an event_id.
type Message struct {
	// Execution is the execution that the message is for; 0 means the latest.
	Execution uint64
	// Incarnation is the incarnation that the message is for; see journalpb.OrchestrationStarted.
	// With Execution 0, 0 matches any incarnation.
	Incarnation uint64
	// Event holds the body and source_event_id. The turn sets event_id and timestamp.
	Event *journalpb.Event
	// Retried reports that the message is sent again. It may have been recorded before, at a
	// journal index larger than FirstIndex.
	Retried    bool
	FirstIndex uint64
}

// Disposition is the outcome of a message.
type Disposition uint8

const (
	// Recorded: the message is an event of the turn.
	Recorded Disposition = iota
	// Dropped: the message is obsolete (a completion for a closed operation or for an earlier
	// execution), was recorded before, or is not an input. It need not be sent again.
	Dropped
	// Ended: the instance has ended and accepts no more input.
	Ended
	// Postponed: this execution has continued as new; the message is for the next one.
	Postponed
	// Forgotten: the message is sent again, and the execution cannot tell whether it was recorded
	// before, either long ago or by an earlier incarnation. It is not recorded.
	Forgotten
	// RequestIDReused: this execution has recorded an input of another type or name with the same
	// request ID. The message is not recorded.
	RequestIDReused
)

// A Turn is the outcome of delivering a batch of messages.
type Turn struct {
	// Events to append, in order; empty if the messages changed nothing.
	Events []*journalpb.Event
	// Dispositions holds the outcome of each message.
	Dispositions []Disposition
}

// newTurn returns a turn for the given number of messages. It allocates the turn with the space
// that most turns need.
func newTurn(messages int) *Turn {
	alloc := &struct {
		turn         Turn
		events       [3]*journalpb.Event
		dispositions [1]Disposition
	}{}
	alloc.turn.Events = alloc.events[:0]
	if messages <= len(alloc.dispositions) {
		alloc.turn.Dispositions = alloc.dispositions[:messages]
	} else {
		alloc.turn.Dispositions = make([]Disposition, messages)
	}
	return &alloc.turn
}

// Turn delivers messages in order, runs the code until it blocks, and returns the events to append
// to the history. They take effect only when they are committed. If they cannot be committed, the
// caller must evict the execution.
//
// now is the cluster time; no event gets an earlier timestamp than its predecessor. The first
// message of an empty history must be OrchestrationStarted. Payloads of messages are recorded
// unchanged; those of the code are encoded by the codec. Errors are those of [Execution.Replay].
func (x *Execution) Turn(now time.Time, messages []Message) (*Turn, error) {
	if err := x.interruption(); err != nil {
		return nil, err
	}
	turn := newTurn(len(messages))
	x.starting = x.lastEventID == 0
	x.requestIDs.beginTurn()
	if now.Before(x.now) {
		now = x.now
	}
	if x.lastEventID > 0 {
		if err := x.recordActions(turn, now); err != nil {
			return nil, err
		}
	}
	for i, message := range messages {
		disposition := x.disposition(message)
		turn.Dispositions[i] = disposition
		if disposition != Recorded {
			continue
		}
		event := &journalpb.Event{SourceEventId: message.Event.SourceEventId, Body: message.Event.Body}
		if err := x.recordMessage(turn, now, event); err != nil {
			return nil, err
		}
		if err := x.recordActions(turn, now); err != nil {
			return nil, err
		}
	}
	return turn, nil
}

// recordActions records what the code has scheduled. The cursor is at the end of the history, so
// the whole queue is new. Each decision is recorded right after the event that caused it, before
// the next message.
func (x *Execution) recordActions(turn *Turn, now time.Time) error {
	for head := x.head(); head != nil && x.progress < ended; head = x.head() {
		x.assignChildID(head.event)
		if err := x.recordAction(turn, now, head.event); err != nil {
			return err
		}
	}
	return nil
}

// assignChildID derives the ID of a child or chained instance that has none.
func (x *Execution) assignChildID(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_SubOrchestrationScheduled:
		body.SubOrchestrationScheduled.Instance = x.idOrDerived(body.SubOrchestrationScheduled.Instance, x.lastEventID+1)
	case *journalpb.Event_OrchestrationChained:
		body.OrchestrationChained.Instance = x.idOrDerived(body.OrchestrationChained.Instance, x.lastEventID+1)
	}
}

// idOrDerived returns id, or the ID derived from the event that schedules the instance. A derived
// ID that is too long is shortened to a prefix and a hash, except in instances that began before
// protocol 3.
func (x *Execution) idOrDerived(id string, eventID uint64) string {
	if id != "" {
		return id
	}
	derived := x.derivedID(eventID)
	if len(derived) <= idMax || x.startInfo.incarnation == 0 {
		return derived
	}
	hash := sha256.Sum256([]byte(derived))
	short := "::" + hex.EncodeToString(hash[:16])
	return derived[:idMax-len(short)] + short
}

// derivedID returns the derived ID without shortening it.
func (x *Execution) derivedID(eventID uint64) string {
	if x.startInfo.incarnation == 0 {
		return fmt.Sprintf("%s::%d.%d", x.id.Instance, x.id.Number, eventID)
	}
	return fmt.Sprintf("%s::%s.%d.%d", x.id.Instance, journalpb.IncarnationText(x.startInfo.incarnation), x.id.Number, eventID)
}

// recordMessage appends an input to the history and moves the cursor onto it. Its sender has
// already encoded it.
func (x *Execution) recordMessage(turn *Turn, now time.Time, event *journalpb.Event) error {
	x.setPosition(event, now)
	if err := x.advance(event); err != nil {
		return err
	}
	turn.Events = append(turn.Events, event)
	return nil
}

// recordAction appends an action of the code to the history. It is encoded last, because a side
// effect gets its value in the step after the event is consumed.
func (x *Execution) recordAction(turn *Turn, now time.Time, event *journalpb.Event) error {
	x.setPosition(event, now)
	if err := x.consume(event); err != nil {
		return err
	}
	recorded, err := x.registry.payloads.sealEvent(event)
	if err != nil {
		return x.codecErrorAt(event, err)
	}
	x.trackCarryOver(recorded)
	turn.Events = append(turn.Events, recorded)
	return nil
}

// setPosition gives an event the next event_id and its timestamp.
func (x *Execution) setPosition(event *journalpb.Event, now time.Time) {
	event.EventId = x.lastEventID + 1
	event.Timestamp = now.UnixNano()
}

// disposition decides whether a message is recorded.
func (x *Execution) disposition(message Message) Disposition {
	event := message.Event
	eventType := event.TypeNumber()
	completes := journalpb.SchedulingType(eventType)
	switch {
	case !x.isForThisExecution(message), !x.acceptsType(eventType):
		return Dropped
	case completes != 0:
		op, open := x.openOperations.get(event.SourceEventId)
		if !open || op.completed || op.eventType != completes || x.isDone() {
			return Dropped
		}
	case x.isKnownRequest(event):
		if !x.requestIDs.isRepeat(event) {
			return RequestIDReused
		}
		return Dropped
	case x.successor != nil:
		return Postponed
	case x.isDone():
		return Ended
	case x.isForgotten(message):
		return Forgotten
	case event.GetOrchestrationCancelRequested().GetByParent():
		// Recorded even after other cancel requests, so that the next leader finds it in the
		// history.
		return dropIf(x.canceledByParent)
	case eventType == journalpb.TypeOrchestrationCancelRequested:
		return dropIf(x.cancelRequest != nil)
	case eventType == journalpb.TypeOrchestrationSuspended:
		return dropIf(x.suspended)
	case eventType == journalpb.TypeOrchestrationResumed:
		return dropIf(!x.suspended)
	}
	return Recorded
}

// isForThisExecution reports whether a message is for this execution. Messages for purged
// incarnations and earlier executions may still arrive.
func (x *Execution) isForThisExecution(message Message) bool {
	if message.Execution == 0 {
		return message.Incarnation == 0 || message.Incarnation == x.startInfo.incarnation
	}
	return message.Execution == x.id.Number && message.Incarnation == x.startInfo.incarnation
}

func dropIf(obsolete bool) Disposition {
	if obsolete {
		return Dropped
	}
	return Recorded
}

// acceptsType reports whether a message may be of that type. Only the code may schedule operations,
// and a start must be the first event.
func (x *Execution) acceptsType(eventType int) bool {
	if eventType == journalpb.TypeOrchestrationStarted {
		return x.lastEventID == 0
	}
	return isInputType(eventType)
}

// isInputType reports whether events of that type come from outside the code.
func isInputType(eventType int) bool {
	switch eventType {
	case journalpb.TypeExternalEvent, journalpb.TypeOrchestrationCancelRequested, journalpb.TypeOrchestrationTerminated,
		journalpb.TypeOrchestrationSuspended, journalpb.TypeOrchestrationResumed:
		return true
	}
	return journalpb.SchedulingType(eventType) != 0
}

// isDone reports whether the code has ended, even if its end is not recorded yet.
func (x *Execution) isDone() bool { return x.progress >= codeDone }

// isKnownRequest reports whether an input with the same request ID was recorded.
func (x *Execution) isKnownRequest(event *journalpb.Event) bool {
	return x.requestIDs.has(event.InputRequestID())
}

// isForgotten reports whether an input with an unknown request ID may have been recorded before. An
// event that arrives together with the start of its instance cannot have been.
func (x *Execution) isForgotten(message Message) bool {
	id := message.Event.InputRequestID()
	if !message.Retried || id == "" || x.starting && id == x.startInfo.requestID {
		return false
	}
	return message.FirstIndex < x.requestIDs.horizon
}
