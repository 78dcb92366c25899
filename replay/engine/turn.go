package engine

import (
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
	// FirstIndex is, with Retried, the journal index after which the message may have been
	// recorded.
	FirstIndex uint64
	// Retried reports that the message is sent again. It may have been recorded before.
	Retried bool
	// Subscription is, for an external event that is meant for one subscription, the event_id of
	// that subscription; 0 for every other message.
	Subscription uint64
	// CheckData asks, for an external event, to refuse it if its data does not decode as a type
	// that the code expects.
	CheckData bool
	// Validation says when an update is validated. It is ValidateNone for all other messages,
	// except for a start whose inbox holds an update.
	Validation Validation
}

// Validation says when an update is validated.
type Validation uint8

const (
	// ValidateNone: it was validated before.
	ValidateNone Validation = iota
	// ValidateFirst: before it is recorded. If the validation rejects it, or there is no handler,
	// it is [Refused].
	ValidateFirst
	// ValidateInStep: if the code has not begun, it is recorded first, and validated when the code
	// registers its handler in the same turn. If it is not accepted, the turn fails with a
	// [*NotAcceptedError]. If the code has begun, this is ValidateFirst.
	ValidateInStep
)

// A NotAcceptedError ends a turn in which the code did not accept an update of [ValidateInStep].
// The caller evicts the execution, and repeats the turn without the update.
type NotAcceptedError struct {
	Message int // its index
	// Err is why the code rejected the update, or that it has no handler. It is nil if the code has
	// not begun, or if the execution has continued as new before the handler ran: the update is
	// then for a later attempt or execution.
	Err error
}

func (e *NotAcceptedError) Error() string {
	return "an update was not accepted in the step that began the code"
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
	// Refused: the data of an external event does not decode, an update was rejected, or the
	// operation that the message names does not permit it; see [Execution.Refusal]. The message is
	// not recorded.
	Refused
)

// A Turn is the outcome of delivering a batch of messages.
type Turn struct {
	// Events to append, in order; empty if the messages changed nothing.
	Events []*journalpb.Event
	// Dispositions holds the outcome of each message.
	Dispositions []Disposition
}

// Refusal returns why a message of the latest turn was refused: a [*replay.PayloadError], the error
// of the validation of an update, [ErrOperationClosed], [ErrOperationHeld] or [ErrAdjusted]. It is
// nil for a message that was not.
func (x *Execution) Refusal(message int) error { return x.refusals[message] }

// refuses reports whether a message must not be recorded because of its data or its operation, or
// because the code rejects the update, and stores why.
func (x *Execution) refuses(index int, message Message) bool {
	reason := x.program.operations.refusal(&message)
	switch sent := message.Event.GetExternalEvent(); {
	case reason != nil:
	case message.Validation == ValidateFirst, message.Validation == ValidateInStep && x.program.bodyBegan:
		_, reason = x.Query(sent.GetName(), sent.GetData())
	case message.CheckData:
		reason = x.refusal(sent)
	}
	if reason == nil {
		return false
	}
	x.refusals.add(index, reason)
	return true
}

// refusals are why messages of a turn were refused, by their index; nil while none was.
type refusals map[int]error

func (r *refusals) add(index int, reason error) {
	if *r == nil {
		*r = make(refusals)
	}
	(*r)[index] = reason
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
	if err := x.program.calls.interruption(); err != nil {
		return nil, err
	}
	turn := newTurn(len(messages))
	x.refusals = nil
	x.cursor.mode = live
	if x.cursor.eventID == 0 {
		x.cursor.mode = recordingStart
	}
	x.requestIDs.beginTurn()
	if now.Before(x.cursor.now) {
		now = x.cursor.now
	}
	if x.cursor.eventID > 0 {
		if err := x.recordActions(turn, now); err != nil {
			return nil, err
		}
	}
	for i, message := range messages {
		disposition := x.disposition(message)
		switch {
		case disposition == Refused:
			x.refusals.add(i, ErrOperationClosed)
		case disposition == Recorded && x.refuses(i, message):
			disposition = Refused
		}
		turn.Dispositions[i] = disposition
		if disposition != Recorded {
			continue
		}
		if message.Validation == ValidateInStep && !x.program.bodyBegan {
			x.program.handlers.validateInStep(message.Event)
		}
		event := &journalpb.Event{SourceEventId: message.Event.SourceEventId, Origin: message.Event.Origin, Body: message.Event.Body}
		if err := x.recordMessage(turn, now, event); err != nil {
			return nil, err
		}
		if err := x.recordActions(turn, now); err != nil {
			return nil, err
		}
	}
	if len(x.program.handlers.inStep) > 0 {
		return x.program.checkAccepted(turn, messages, x.carryOver.continuedAs != nil)
	}
	return turn, nil
}

// checkAccepted returns a turn if the code has accepted the updates of [ValidateInStep], and a
// [*NotAcceptedError] for the first that it has not. continues says that the execution has
// continued as new.
func (p *program) checkAccepted(turn *Turn, messages []Message, continues bool) (*Turn, error) {
	for i, message := range messages {
		update := updateOf(message.Event)
		decision := p.handlers.inStep[update.GetRequestId()]
		switch {
		case message.Validation != ValidateInStep || decision == nil || turn.Dispositions[i] != Recorded:
		case decision.accepted && (decision.began || !continues):
		case decision.rejection != nil:
			return nil, &NotAcceptedError{i, decision.rejection}
		case continues || p.awaitsAttempt() || p.isDone() && !p.bodyBegan:
			return nil, &NotAcceptedError{i, nil}
		default:
			return nil, &NotAcceptedError{i, p.noHandlerError(update.Name)}
		}
	}
	p.handlers.inStep = nil
	return turn, nil
}

// updateOf returns the update of a message: an external event, or the only one in the inbox of a
// start. It returns nil if there is none.
func updateOf(event *journalpb.Event) *journalpb.ExternalEvent {
	if inbox := event.GetOrchestrationStarted().GetInbox(); len(inbox) > 0 {
		return inbox[0]
	}
	return event.GetExternalEvent()
}

// recordActions records what the code has scheduled. The cursor is at the end of the history, so
// the whole queue is new. Each decision is recorded right after the event that caused it, before
// the next message.
func (x *Execution) recordActions(turn *Turn, now time.Time) error {
	queue := &x.program.operations.queue
	for head := queue.head(); head != nil && x.program.progress < ended; head = queue.head() {
		x.id.assignChildID(head.event, x.cursor.eventID+1)
		if err := x.recordAction(turn, now, head.event); err != nil {
			return err
		}
	}
	return nil
}

// recordMessage appends an input to the history and moves the cursor onto it. Its sender has
// already encoded it.
func (x *Execution) recordMessage(turn *Turn, now time.Time, event *journalpb.Event) error {
	x.cursor.setPosition(event, now)
	if err := x.advance(event); err != nil {
		return err
	}
	turn.Events = append(turn.Events, event)
	return nil
}

// recordAction appends an action of the code to the history. It is encoded last, because a side
// effect gets its value in the step after the event is consumed.
func (x *Execution) recordAction(turn *Turn, now time.Time, event *journalpb.Event) error {
	x.cursor.setPosition(event, now)
	if err := x.consume(event); err != nil {
		return err
	}
	recorded, err := x.program.registry.payloads.sealEvent(event)
	if err != nil {
		return x.id.codecError(event, err)
	}
	x.carryOver.add(recorded)
	turn.Events = append(turn.Events, recorded)
	return nil
}

// disposition decides whether a message is recorded.
func (x *Execution) disposition(message Message) Disposition {
	event := message.Event
	eventType := event.TypeNumber()
	switch {
	case event.IsOperated(), message.Subscription != 0:
		return operatedDisposition(x, message)
	case !x.id.isReceiver(message), !x.acceptsType(eventType):
		return Dropped
	case journalpb.SchedulingType(eventType) != 0:
		return dropIf(!x.program.operations.accepts(event) || x.program.isDone())
	case x.requestIDs.has(event.InputRequestID()):
		if !x.requestIDs.isRepeat(event) {
			return RequestIDReused
		}
		return Dropped
	case x.carryOver.continuedAs != nil:
		return Postponed
	case x.program.isDone():
		return Ended
	case x.isForgotten(message):
		return Forgotten
	case eventType == journalpb.TypeOrchestrationCancelRequested:
		return dropIf(x.program.cancellation.includes(event.GetOrchestrationCancelRequested()))
	case eventType == journalpb.TypeOrchestrationSuspended:
		return dropIf(x.deferred.suspended)
	case eventType == journalpb.TypeOrchestrationResumed:
		return dropIf(!x.deferred.suspended)
	}
	return Recorded
}

// operatedDisposition decides about an action of an operator. Unlike a completion of the cluster,
// it gets an error if its operation is closed. A repetition is recognized even in a later
// execution.
func operatedDisposition(x *Execution, message Message) Disposition {
	event := message.Event
	switch {
	case x.requestIDs.has(event.InputRequestID()):
		if !x.requestIDs.isRepeat(event) {
			return RequestIDReused
		}
		return Dropped
	case x.isForgotten(message):
		return Forgotten
	case !x.id.isReceiver(message), x.carryOver.continuedAs != nil:
		return Refused
	case x.program.isDone():
		return Ended
	}
	return dropIf(x.program.operations.isInEffect(event.GetOperationControlled()))
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
		return x.cursor.eventID == 0
	}
	return isInputType(eventType)
}

// isInputType reports whether events of that type come from outside the code.
func isInputType(eventType int) bool {
	switch eventType {
	case journalpb.TypeExternalEvent, journalpb.TypeOrchestrationCancelRequested, journalpb.TypeOrchestrationTerminated,
		journalpb.TypeOrchestrationSuspended, journalpb.TypeOrchestrationResumed, journalpb.TypeOperationControlled:
		return true
	}
	return journalpb.SchedulingType(eventType) != 0
}

// isForgotten reports whether an input with an unknown request ID may have been recorded before. An
// event that arrives together with the start of its instance cannot have been.
func (x *Execution) isForgotten(message Message) bool {
	id := message.Event.InputRequestID()
	if !message.Retried || id == "" || x.cursor.mode == recordingStart && id == x.id.requestID {
		return false
	}
	return message.FirstIndex < x.requestIDs.horizon
}
