package replay

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Limits of [Context.ShouldContinueAsNew].
const (
	continueAfterEvents = 10_000
	continueAfterBytes  = 8 << 20
)

// ShouldContinueAsNew reports whether the history has reached 10,000 events or 8 MiB of payloads.
// Then the orchestration should continue as new.
func (c *Context) ShouldContinueAsNew() bool {
	return c.x.lastEventID >= continueAfterEvents || c.x.continueAsNewBytes() >= continueAfterBytes
}

// A continuation is the error with which an orchestration continues as new.
type continuation struct {
	input   *journalpb.Payload
	version string
}

func (c *continuation) Error() string {
	return "tenuto: continue as new, which the orchestration must return"
}

// A ContinueOption configures a continue-as-new.
type ContinueOption func(*continuation)

// ContinueVersion sets the version that the next execution runs. Defaults to the newest version on
// the node.
func ContinueVersion(version string) ContinueOption {
	return func(c *continuation) { c.version = version }
}

// ContinueAsNew returns an error that the body of this orchestration must return. The execution
// then ends, and the next one begins with input and an empty history, in one append. Unconsumed
// external events are carried over in order. So is a cancel request that no await and no
// [Context.Err] has returned yet. The status set by [SetStatus] remains. Open operations are
// canceled. Functions registered with OnClose are not called.
//
//	return total, Counter.ContinueAsNew(ctx, total)
func (h OrchestrationHandle[I, O]) ContinueAsNew(ctx *Context, input I, options ...ContinueOption) error {
	if h.name != ctx.x.startInfo.name {
		return fmt.Errorf("tenuto: orchestration %q cannot continue as %q", ctx.x.startInfo.name, h.name)
	}
	payload, err := ctx.x.encodeInput("orchestration", h.name, input)
	if err != nil {
		return err
	}
	c := &continuation{input: payload}
	for _, option := range options {
		option(c)
	}
	if c.version == "" {
		c.version = ctx.x.registry.Newest(h.name)
	}
	if err := checkVersion(h.name, c.version); err != nil {
		return err
	}
	return c
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
