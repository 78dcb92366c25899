package engine

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Limits of ShouldContinueAsNew.
const (
	continueAfterEvents = 10_000
	continueAfterBytes  = 8 << 20
)

// A continuation is the error with which an orchestration continues as new.
type continuation struct {
	input   *journalpb.Payload
	version string
}

func (c *continuation) Error() string {
	return "tenuto: continue as new, which the orchestration must return"
}

// continuedAsNewEvent returns the terminal event of an execution that continues as new.
func (x *Execution) continuedAsNewEvent(c *continuation) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationContinuedAsNew{
		OrchestrationContinuedAsNew: &journalpb.OrchestrationContinuedAsNew{
			Input:   c.input,
			Version: c.version,
			Inbox:   x.unconsumedEvents(),
		},
	}}
}

// Successor returns the first event of the next execution if this one has continued as new, nil
// otherwise.
func (x *Execution) Successor() *journalpb.Event {
	if x.successor == nil {
		return nil
	}
	started := &journalpb.OrchestrationStarted{
		Name:      x.startInfo.name,
		Version:   x.successor.Version,
		Input:     x.successor.Input,
		Parent:    x.startInfo.parent,
		Inbox:     x.successor.Inbox,
		Tags:      x.startInfo.tags,
		RequestId: x.startInfo.requestID,
		Status:    x.status,
		Trace:     x.startInfo.trace,

		Incarnation:       x.startInfo.incarnation,
		CanceledByParent:  x.canceledByParent,
		CountsAllPayloads: x.startInfo.protocol3 || x.countAllPayloadsNext,
	}
	x.requestIDs.carryOver(started)
	if x.cancelRequest != nil && !x.cancelObserved {
		// A request that the code has observed is not carried over: the code chose to continue.
		started.CancelRequested = &journalpb.OrchestrationCancelRequested{Reason: x.cancelRequest.Reason}
	}
	return &journalpb.Event{
		EventId:   1,
		Timestamp: x.now.UnixNano(),
		Body:      &journalpb.Event_OrchestrationStarted{OrchestrationStarted: started},
	}
}

// unconsumedEvents returns the external events that the code has not received, in order of arrival.
func (x *Execution) unconsumedEvents() []*journalpb.ExternalEvent {
	events := x.inbox.unconsumedEvents()
	for _, event := range x.deferred {
		if arrived := event.GetExternalEvent(); arrived != nil {
			events = append(events, arrived)
		}
	}
	return events
}

// sameContinuation ignores the version: the newest version may have changed since it was recorded.
func sameContinuation(have, want *journalpb.OrchestrationContinuedAsNew) bool {
	return samePayload(have.Input, want.Input) && slices.EqualFunc(have.Inbox, want.Inbox, func(a, b *journalpb.ExternalEvent) bool {
		return proto.Equal(a, b)
	})
}
