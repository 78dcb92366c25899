package replay

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// From these sizes of a history on, [Context.ShouldContinueAsNew] says yes.
const (
	continueAfterEvents = 10_000
	continueAfterBytes  = 8 << 20
)

// ShouldContinueAsNew tells whether the history has become so long, 10,000
// events or 8 MiB of payloads, that it is time to continue as new.
func (c *Context) ShouldContinueAsNew() bool {
	return c.x.last >= continueAfterEvents || c.x.decisionBytes() >= continueAfterBytes
}

// A continuation is the error by which an orchestration asks to continue as new.
type continuation struct {
	input   *journalpb.Payload
	version string
}

func (c *continuation) Error() string {
	return "tenuto: continue as new, which the orchestration must return"
}

// A ContinueOption changes how an instance continues as new.
type ContinueOption func(*continuation)

// ContinueVersion names the version that the next execution runs. Defaults to
// the newest that the node has.
func ContinueVersion(version string) ContinueOption {
	return func(c *continuation) { c.version = version }
}

// ContinueAsNew returns an error for the body of this very orchestration to
// return: the execution ends, and the next begins with input and an empty
// history, in one append. External events that were not consumed are carried
// over in order; everything open is given up; what was published by
// [SetStatus] stays. Functions given to OnClose are not called. A request to
// cancel that no await has returned yet is carried over too.
//
//	return total, Counter.ContinueAsNew(ctx, total)
func (h OrchestrationHandle[I, O]) ContinueAsNew(ctx *Context, input I, options ...ContinueOption) error {
	if h.name != ctx.x.origin.name {
		return fmt.Errorf("tenuto: orchestration %q cannot continue as %q", ctx.x.origin.name, h.name)
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

// continued returns the terminal event of an execution that continues as new.
func (x *Execution) continued(c *continuation) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationContinuedAsNew{
		OrchestrationContinuedAsNew: &journalpb.OrchestrationContinuedAsNew{
			Input:   c.input,
			Version: c.version,
			Inbox:   x.unconsumed(),
		},
	}}
}

// Successor returns the first event of the next execution, if this one has
// ended by continuing as new; nil otherwise.
func (x *Execution) Successor() *journalpb.Event {
	if x.successor == nil {
		return nil
	}
	started := &journalpb.OrchestrationStarted{
		Name:      x.origin.name,
		Version:   x.successor.Version,
		Input:     x.successor.Input,
		Parent:    x.origin.parent,
		Inbox:     x.successor.Inbox,
		Tags:      x.origin.tags,
		RequestId: x.origin.requestID,
		Status:    x.status,
		Trace:     x.origin.trace,

		Incarnation:       x.origin.incarnation,
		CanceledByParent:  x.byParent,
		CountsAllPayloads: x.origin.protocol3 || x.countsAllNext,
	}
	x.requests.carry(started)
	if x.cancelRequest != nil && !x.cancelSeen {
		// Code that was told of it may go on all the same; one that was not must
		// not lose it.
		started.CancelRequested = &journalpb.OrchestrationCancelRequested{Reason: x.cancelRequest.Reason}
	}
	return &journalpb.Event{
		EventId:   1,
		Timestamp: x.now.UnixNano(),
		Body:      &journalpb.Event_OrchestrationStarted{OrchestrationStarted: started},
	}
}

// unconsumed returns the external events that no code has taken, in the order in
// which they arrived.
func (x *Execution) unconsumed() []*journalpb.ExternalEvent {
	events := x.inbox.unconsumed()
	for _, event := range x.held {
		if arrived := event.GetExternalEvent(); arrived != nil {
			events = append(events, arrived)
		}
	}
	return events
}

// sameContinuation takes the version as recorded: which one is the newest may
// have changed since.
func sameContinuation(have, want *journalpb.OrchestrationContinuedAsNew) bool {
	return samePayload(have.Input, want.Input) && slices.EqualFunc(have.Inbox, want.Inbox, func(a, b *journalpb.ExternalEvent) bool {
		return proto.Equal(a, b)
	})
}
