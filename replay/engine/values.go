package engine

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Between the cursor and the code all payloads are decoded. The engine opens (decodes) an event
// before the cursor moves onto it, and seals (encodes) an action of the code when it becomes an
// event. So each payload is encoded once, and the codec's output is never compared with the
// history.

// sealEvent returns an event as it is recorded.
func (p PayloadConverter) sealEvent(event *journalpb.Event) (*journalpb.Event, error) {
	if p.Codec == nil {
		return event, nil
	}
	return replaceValues(event, p.seal, p.sealError)
}

// OpenEvent returns a copy of a recorded event with decoded payloads and errors. An event that
// needs no codec is returned itself. The error is a [*replay.CodecError].
func (p PayloadConverter) OpenEvent(event *journalpb.Event) (*journalpb.Event, error) {
	if !isSealedEvent(event) {
		return event, nil
	}
	return replaceValues(event, p.open, p.openError)
}

// replaceValues returns a copy of an event with every payload and every error in it replaced.
func replaceValues(event *journalpb.Event, payload func(*journalpb.Payload) (*journalpb.Payload, error), failure func(*journalpb.Error) (*journalpb.Error, error)) (*journalpb.Event, error) {
	event = proto.CloneOf(event)
	var err error
	visitValues(event, func(v value) {
		switch {
		case err != nil:
		case v.payload != nil:
			err = replaceMessage(v.payload, payload)
		default:
			err = replaceMessage(v.failure, failure)
		}
	})
	if err != nil {
		return nil, err
	}
	return event, nil
}

// replaceMessage sets a message to what replace returns for it.
func replaceMessage[M interface {
	comparable
	proto.Message
}](m M, replace func(M) (M, error)) error {
	other, err := replace(m)
	if err == nil && other != m {
		proto.Reset(m)
		proto.Merge(m, other)
	}
	return err
}

// isSealedEvent reports whether an event holds anything that is encoded by a codec.
func isSealedEvent(event *journalpb.Event) (sealed bool) {
	visitValues(event, func(v value) { sealed = sealed || isSealed(v.payload) || needsCodec(v.failure) })
	return sealed
}

// A value is a payload or an error in an event; the other is nil. An error in it may have details
// and causes, which the visitor must visit itself.
type value struct {
	field   string // one of the constants below
	payload *journalpb.Payload
	failure *journalpb.Error
}

// The names of the fields that hold values, as descriptions of events show them. fieldInbox stands
// for the data of each event in an inbox, fieldValues for each value that an execution begins with.
const (
	fieldData        = "data"
	fieldError       = "error"
	fieldInbox       = "inbox"
	fieldInput       = "input"
	fieldLastFailure = "last_failure"
	fieldOutput      = "output"
	fieldResult      = "result"
	fieldRetried     = "retried"
	fieldStatus      = "status"
	fieldValue       = "value"
	fieldValues      = "values"
)

// A visitor is called with a value.
type visitor func(value)

// visitValues calls visit with every payload and every error that is set in an event, in the order
// in which they are described. It avoids reflection, because it runs for every event of every
// replay. A test compares it with every field of the schema.
func visitValues(event *journalpb.Event, visit visitor) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		visit.payload(fieldInput, body.OrchestrationStarted.Input)
		visit.payload(fieldStatus, body.OrchestrationStarted.Status)
		visit.inbox(body.OrchestrationStarted.Inbox)
		for _, set := range body.OrchestrationStarted.Values {
			visit.payload(fieldValues, set.Value)
		}
		visit.failure(fieldLastFailure, body.OrchestrationStarted.LastFailure)
	case *journalpb.Event_OrchestrationCompleted:
		visit.payload(fieldOutput, body.OrchestrationCompleted.Output)
	case *journalpb.Event_OrchestrationFailed:
		visit.failure(fieldError, body.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		visit.payload(fieldInput, body.OrchestrationContinuedAsNew.Input)
		visit.failure(fieldRetried, body.OrchestrationContinuedAsNew.Retried)
		visit.inbox(body.OrchestrationContinuedAsNew.Inbox)
	case *journalpb.Event_HistoryCopied:
		visit.inbox(body.HistoryCopied.Inbox)
	case *journalpb.Event_ActivityScheduled:
		visit.payload(fieldInput, body.ActivityScheduled.Input)
	case *journalpb.Event_ActivityCompleted:
		visit.payload(fieldResult, body.ActivityCompleted.Result)
	case *journalpb.Event_ActivityFailed:
		visit.failure(fieldError, body.ActivityFailed.Error)
	case *journalpb.Event_ExternalEvent:
		visit.payload(fieldData, body.ExternalEvent.Data)
	case *journalpb.Event_SubOrchestrationScheduled:
		visit.payload(fieldInput, body.SubOrchestrationScheduled.Input)
	case *journalpb.Event_SubOrchestrationCompleted:
		visit.payload(fieldResult, body.SubOrchestrationCompleted.Result)
	case *journalpb.Event_SubOrchestrationFailed:
		visit.failure(fieldError, body.SubOrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationChained:
		visit.payload(fieldInput, body.OrchestrationChained.Input)
	case *journalpb.Event_SideEffectRecorded:
		visit.payload(fieldValue, body.SideEffectRecorded.Value)
		visit.failure(fieldError, body.SideEffectRecorded.Error)
	case *journalpb.Event_StatusSet:
		visit.payload(fieldValue, body.StatusSet.Value)
	case *journalpb.Event_ValueSet:
		visit.payload(fieldValue, body.ValueSet.Value)
	case *journalpb.Event_MessageSent:
		visit.payload(fieldData, body.MessageSent.Event.GetData())
	case *journalpb.Event_MessageRejected:
		visit.failure(fieldError, body.MessageRejected.Error)
	}
}

func (visit visitor) payload(field string, payload *journalpb.Payload) {
	if payload != nil {
		visit(value{field: field, payload: payload})
	}
}

func (visit visitor) failure(field string, failure *journalpb.Error) {
	if failure != nil {
		visit(value{field: field, failure: failure})
	}
}

func (visit visitor) inbox(inbox []*journalpb.ExternalEvent) {
	for _, event := range inbox {
		visit.payload(fieldInbox, event.Data)
	}
}

// headersIn returns the headers of an event, nil if it has none.
func headersIn(event *journalpb.Event) []*journalpb.Header {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		return body.OrchestrationStarted.Headers
	case *journalpb.Event_ActivityScheduled:
		return body.ActivityScheduled.GetOptions().GetHeaders()
	case *journalpb.Event_ExternalEvent:
		return body.ExternalEvent.Headers
	case *journalpb.Event_SubOrchestrationScheduled:
		return body.SubOrchestrationScheduled.Headers
	case *journalpb.Event_OrchestrationChained:
		return body.OrchestrationChained.Headers
	case *journalpb.Event_MessageSent:
		return body.MessageSent.Event.GetHeaders()
	}
	return nil
}

// headerBytes returns the bytes of the names and values of headers.
func headerBytes(headers []*journalpb.Header) (bytes int) {
	for _, header := range headers {
		bytes += len(header.Name) + len(header.Value)
	}
	return bytes
}

// bytes returns the bytes of user data in a value.
func (v value) bytes() int { return len(v.payload.GetData()) + errorBytes(v.failure) }

// valueBytes returns the bytes of user data in an event: of its payloads and error records.
func valueBytes(event *journalpb.Event) (bytes int) {
	visitValues(event, func(v value) { bytes += v.bytes() })
	return bytes
}

func errorBytes(failure *journalpb.Error) int {
	if failure == nil {
		return 0
	}
	bytes := len(failure.Message) + len(failure.Stack) + len(failure.Details.GetData()) + errorBytes(failure.Cause)
	for _, cause := range failure.OtherCauses {
		bytes += errorBytes(cause)
	}
	return bytes
}

// Size measures an execution.
type Size struct {
	Events int // of the history
	Bytes  int // of payloads, errors and headers in the history
	Open   int // operations scheduled and not completed

	Buffered      int // external events that the code has not received
	BufferedBytes int // of their payloads and headers
}

// Size returns the size of the execution up to the last recorded event.
func (x *Execution) Size() Size {
	operations := &x.program.operations
	size := Size{
		Events: int(x.cursor.eventID), Bytes: x.cursor.size.bytes, Open: operations.open.len(),
		Buffered: operations.inbox.events, BufferedBytes: operations.inbox.bytes,
	}
	for _, arrived := range x.deferred.externalEvents() {
		size.Buffered++
		size.BufferedBytes += eventBytes(arrived)
	}
	return size
}

// HasSubscription reports whether a subscription waits for an external event of that name, so that
// the event would not be buffered. A suspended instance buffers every event.
func (x *Execution) HasSubscription(name string) bool {
	return !x.deferred.suspended && x.program.operations.inbox.hasSubscription(name)
}

// A historySize counts the bytes of user data in a history.
type historySize struct {
	bytes  int // of payloads, errors and headers
	legacy int // by the rule before protocol 3
}

// add adds a consumed event. A live side effect gets its value in the step after this, so
// addSideEffect counts it, live and on replay.
func (s *historySize) add(event *journalpb.Event) {
	if record := event.GetSideEffectRecorded(); record != nil && !strings.HasPrefix(record.Label, UpdatePrefix) {
		return
	}
	s.bytes += headerBytes(headersIn(event))
	eventType := event.TypeNumber()
	visitValues(event, func(v value) {
		s.bytes += v.bytes()
		if isLegacyCounted(eventType, v.field) {
			s.legacy += len(v.payload.GetData())
		}
	})
}

func (s *historySize) addSideEffect(recorded *journalpb.SideEffectRecorded) {
	s.legacy += len(recorded.Value.GetData())
	s.bytes += len(recorded.Value.GetData()) + errorBytes(recorded.Error)
}

// addUpdate adds the output of an update when it is computed, for the rule before protocol 3. For
// the present rule, add counts it when its event is consumed.
func (s *historySize) addUpdate(output *journalpb.Payload) { s.legacy += len(output.GetData()) }

// forContinueAsNew returns the size that ShouldContinueAsNew uses. Recorded decisions depend on it,
// so an execution that began before protocol 3 keeps the old rule.
func (s *historySize) forContinueAsNew(protocol3 bool) int {
	if protocol3 {
		return s.bytes
	}
	return s.legacy
}

// isLegacyCounted reports whether the rule before protocol 3 counts a payload when the cursor
// consumes its event. The rule omits chained starts, values carried over by continue-as-new,
// errors, and the output. Side effects and updates are counted where their values are computed.
func isLegacyCounted(eventType int, field string) bool {
	switch eventType {
	case journalpb.TypeOrchestrationChained, journalpb.TypeOrchestrationContinuedAsNew, journalpb.TypeSideEffectRecorded:
		return false
	}
	return field == fieldInput || field == fieldResult || field == fieldData || field == fieldValue
}
