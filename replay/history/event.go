package history

import (
	"bytes"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/eventpb/hook"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An Event is one recorded fact in the history of an execution. Events come from [Read], from a
// client of a cluster and from package replaytest. The fields are copies of the record: changing
// them does not change what [Write] writes. An Event may be copied, and its methods may be called
// concurrently.
type Event struct {
	// Execution of the instance, counted from 1. It is not part of the event's JSON.
	Execution uint64
	// EventID is the number of the event in its execution, counted from 1.
	EventID uint64
	Type    EventType
	// Time is the cluster time at which the event was recorded, in UTC. It is never before that of
	// the previous event.
	Time time.Time
	// SourceEventID is the EventID of the scheduling event of the operation that this event
	// completes or cancels; 0 in every other event.
	SourceEventID uint64
	// Name is what the event names: an orchestration, activity, event or side effect, as
	// [EventType] says for each type. It is empty in events that name nothing, such as completions.
	Name string
	// Principal is who has caused the event from outside: the name in the certificate of a client,
	// or what a program states about its user, for example "client gw for alice". It is empty if
	// that is not known, and for everything that the code or the cluster has caused.
	Principal string
	// Reason is why: the reason of the operator, or of a cancellation, termination, suspension or
	// resumption.
	Reason string

	message *journalpb.Event // nil in the zero Event; never changed
}

func init() { hook.New, hook.Message = newEvent, Event.recorded }

func newEvent(execution uint64, message *journalpb.Event) Event {
	return Event{
		Execution:     execution,
		EventID:       message.EventId,
		Type:          EventType(message.Type()),
		Time:          time.Unix(0, message.Timestamp).UTC(),
		SourceEventID: message.SourceEventId,
		Name:          nameIn(message),
		Principal:     message.GetOrigin().GetPrincipal(),
		Reason:        reasonIn(message),
		message:       message,
	}
}

// recorded returns the message, which is empty in the zero Event.
func (e Event) recorded() *journalpb.Event {
	if e.message == nil {
		return new(journalpb.Event)
	}
	return e.message
}

// Decode stores the payload of the event in the variable that into points to: the input, output,
// result, data, value or status, as [EventType] says for each type. An event without a payload
// leaves the variable unchanged.
//
// The error is a [*replay.PayloadError] if the payload is not of the variable's type, or a
// [*replay.CodecError] if it was encoded by a codec. Clients of a cluster have decoded it with
// their codec; see [Event.Open] for the others.
func (e Event) Decode(into any) error {
	payload, kind, part := payloadIn(e.message)
	return engine.PayloadConverter{}.Decode(replay.PayloadInfo{Kind: kind, Name: e.Name, Part: part}, payload, into)
}

// Err returns the recorded error of an activity, child, run, side effect or update that failed. If
// a run is retried, its OrchestrationContinuedAsNew and the OrchestrationStarted of the next
// attempt have the error, too. Err returns nil for every other event. errors.Is and errors.As work
// on the result as in orchestration code. If a codec is needed to decode the error, the result
// keeps the code and wraps a [*replay.CodecError].
func (e Event) Err() error {
	if record := errorIn(e.message); record != nil {
		return engine.PayloadConverter{}.DecodeError(record)
	}
	return nil
}

// Open returns the event with all payloads and errors decoded by a codec. Events that come from a
// client are open already; those that [Read] returns need it if they were recorded with a codec.
// The error is a [*replay.CodecError].
func (e Event) Open(converter replay.PayloadConverter) (Event, error) {
	opened, err := engine.NewPayloadConverter(converter, nil).OpenEvent(e.recorded())
	if err != nil {
		return Event{}, err
	}
	return newEvent(e.Execution, opened), nil
}

// FireAt returns when the timer of a TimerCreated or TimerFired event is due, in cluster time and
// UTC. It returns the zero time for every other event.
func (e Event) FireAt() time.Time {
	at := e.message.GetTimerCreated().GetFireAt()
	if fired := e.message.GetTimerFired(); fired != nil {
		at = fired.FireAt
	}
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, at).UTC()
}

// Attempts returns how many attempts the activity of an ActivityCompleted or ActivityFailed event
// took. It returns 0 for every other event.
func (e Event) Attempts() int {
	return int(max(e.message.GetActivityCompleted().GetAttempts(), e.message.GetActivityFailed().GetAttempts()))
}

// Child returns the ID of the instance that a SubOrchestrationScheduled or OrchestrationChained
// event starts. It returns "" for every other event.
func (e Event) Child() string {
	if chained := e.message.GetOrchestrationChained(); chained != nil {
		return chained.Instance
	}
	return e.message.GetSubOrchestrationScheduled().GetInstance()
}

// Operation returns the EventID of the scheduling event of the operation that an
// OperationControlled event concerns. It returns 0 for every other event.
func (e Event) Operation() uint64 { return e.message.GetOperationControlled().GetEventId() }

// Source returns the execution of whose history a HistoryCopied event ends the copy. It returns
// zero values for every other event.
func (e Event) Source() (instanceID string, execution uint64) {
	source := e.message.GetHistoryCopied().GetSource()
	return source.GetInstance(), source.GetExecution()
}

// Receiver returns the ID of the instance that a MessageSent event goes to. It returns "" for every
// other event.
func (e Event) Receiver() string { return e.message.GetMessageSent().GetInstance() }

// RequestID returns the request ID of an input of a client: an event from outside, an update, a
// cancellation, suspension or resumption, an action of an operator. It returns "" for every other
// event.
func (e Event) RequestID() string { return e.recorded().InputRequestID() }

// String returns the type and the recorded fields in one line, as in a printed history and in a
// [*replay.Mismatch]. Long payloads are cut.
func (e Event) String() string { return engine.Describe(e.recorded()) }

// Equal reports whether two events have the same execution and content.
func (e Event) Equal(other Event) bool {
	return e.Execution == other.Execution && proto.Equal(e.recorded(), other.recorded())
}

// MarshalJSON returns the event in the format of the package, as [Write] writes it in one line.
// json.Marshal in addition escapes <, > and & in payloads, which changes their bytes but not their
// values. The error says that the event contains text that is not UTF-8.
func (e Event) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	if err := e.write(&text); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

func (e Event) write(text *bytes.Buffer) error {
	if err := writeMessage(text, e.recorded().ProtoReflect()); err != nil {
		return fmt.Errorf("write event %d: %w", e.recorded().EventId, err)
	}
	return nil
}

// UnmarshalJSON reads what [Event.MarshalJSON] returns. It leaves Execution unchanged.
func (e *Event) UnmarshalJSON(text []byte) error {
	message, err := readEvent(text)
	if err != nil {
		return err
	}
	*e = newEvent(e.Execution, message)
	return nil
}
