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
	visitValues(event, func(p *journalpb.Payload, e *journalpb.Error) {
		switch {
		case err != nil:
		case p != nil:
			err = replaceMessage(p, payload)
		default:
			err = replaceMessage(e, failure)
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
	visitValues(event, func(payload *journalpb.Payload, failure *journalpb.Error) {
		sealed = sealed || isSealed(payload) || needsCodec(failure)
	})
	return sealed
}

// A visitor is called with a payload or an error; the other is nil. It must itself visit what an
// error contains.
type visitor func(*journalpb.Payload, *journalpb.Error)

// visitValues calls visit with every payload and every error that is set in an event. It avoids
// reflection, because it runs for every event of every replay. A test compares it with every field
// of the schema.
func visitValues(event *journalpb.Event, visit visitor) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		visit.payload(body.OrchestrationStarted.Input)
		visit.payload(body.OrchestrationStarted.Status)
		visit.inbox(body.OrchestrationStarted.Inbox)
	case *journalpb.Event_OrchestrationCompleted:
		visit.payload(body.OrchestrationCompleted.Output)
	case *journalpb.Event_OrchestrationFailed:
		visit.failure(body.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		visit.payload(body.OrchestrationContinuedAsNew.Input)
		visit.inbox(body.OrchestrationContinuedAsNew.Inbox)
	case *journalpb.Event_ActivityScheduled:
		visit.payload(body.ActivityScheduled.Input)
	case *journalpb.Event_ActivityCompleted:
		visit.payload(body.ActivityCompleted.Result)
	case *journalpb.Event_ActivityFailed:
		visit.failure(body.ActivityFailed.Error)
	case *journalpb.Event_ExternalEvent:
		visit.payload(body.ExternalEvent.Data)
	case *journalpb.Event_SubOrchestrationScheduled:
		visit.payload(body.SubOrchestrationScheduled.Input)
	case *journalpb.Event_SubOrchestrationCompleted:
		visit.payload(body.SubOrchestrationCompleted.Result)
	case *journalpb.Event_SubOrchestrationFailed:
		visit.failure(body.SubOrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationChained:
		visit.payload(body.OrchestrationChained.Input)
	case *journalpb.Event_SideEffectRecorded:
		visit.payload(body.SideEffectRecorded.Value)
		visit.failure(body.SideEffectRecorded.Error)
	case *journalpb.Event_StatusSet:
		visit.payload(body.StatusSet.Value)
	}
}

func (visit visitor) payload(payload *journalpb.Payload) {
	if payload != nil {
		visit(payload, nil)
	}
}

func (visit visitor) failure(failure *journalpb.Error) {
	if failure != nil {
		visit(nil, failure)
	}
}

func (visit visitor) inbox(inbox []*journalpb.ExternalEvent) {
	for _, event := range inbox {
		visit.payload(event.Data)
	}
}

// Size measures an execution.
type Size struct {
	Events int // of the history
	Bytes  int // of payloads and errors in the history
	Open   int // operations scheduled and not completed

	Buffered      int // external events that the code has not received
	BufferedBytes int // of their payloads
}

// Size returns the size of the execution up to the last recorded event.
func (x *Execution) Size() Size {
	size := Size{
		Events: int(x.lastEventID), Bytes: x.bytes, Open: x.openOperations.len(),
		Buffered: x.inbox.events, BufferedBytes: x.inbox.bytes,
	}
	for _, event := range x.deferred {
		if arrived := event.GetExternalEvent(); arrived != nil {
			size.Buffered++
			size.BufferedBytes += len(arrived.Data.GetData())
		}
	}
	return size
}

// HasSubscription reports whether a subscription waits for an external event of that name, so that
// the event would not be buffered. A suspended instance buffers every event.
func (x *Execution) HasSubscription(name string) bool {
	return !x.suspended && x.inbox.hasSubscription(name)
}

// valueBytes returns the bytes of user data in an event: of its payloads and error records.
func valueBytes(event *journalpb.Event) (bytes int) {
	visitValues(event, func(payload *journalpb.Payload, failure *journalpb.Error) {
		bytes += len(payload.GetData()) + errorBytes(failure)
	})
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

// addSize adds a consumed event to the size. A live side effect gets its value in the step after
// this, so sideEffect counts it, live and on replay.
func (x *Execution) addSize(event *journalpb.Event) {
	x.legacyBytes += legacyBytes(event)
	if record := event.GetSideEffectRecorded(); record == nil || strings.HasPrefix(record.Label, UpdatePrefix) {
		x.bytes += valueBytes(event)
	}
}

// continueAsNewBytes returns the size that ShouldContinueAsNew uses. Recorded decisions
// depend on it, so an execution that began before protocol 3 keeps the old rule.
func (x *Execution) continueAsNewBytes() int {
	if x.startInfo.protocol3 {
		return x.bytes
	}
	return x.legacyBytes
}

// CountAllPayloadsNext makes the next execution count all payloads in
// ShouldContinueAsNew. Every node that may replay it must support that.
func (x *Execution) CountAllPayloadsNext() { x.countAllPayloadsNext = true }

// legacyBytes returns how many bytes of an event the rule before protocol 3 counts. It omits
// chained starts, values carried over by continue-as-new, and errors. Side effects and updates are
// counted where their values are computed.
func legacyBytes(event *journalpb.Event) int {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		return len(body.OrchestrationStarted.Input.GetData())
	case *journalpb.Event_ActivityScheduled:
		return len(body.ActivityScheduled.Input.GetData())
	case *journalpb.Event_ActivityCompleted:
		return len(body.ActivityCompleted.Result.GetData())
	case *journalpb.Event_ExternalEvent:
		return len(body.ExternalEvent.Data.GetData())
	case *journalpb.Event_SubOrchestrationScheduled:
		return len(body.SubOrchestrationScheduled.Input.GetData())
	case *journalpb.Event_SubOrchestrationCompleted:
		return len(body.SubOrchestrationCompleted.Result.GetData())
	case *journalpb.Event_StatusSet:
		return len(body.StatusSet.Value.GetData())
	}
	return 0
}
