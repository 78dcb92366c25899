package replay

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An ActivityHandle is the stable name of an activity with its input and output types. Declare it
// once, call it from orchestrations, and bind it to a body where a node is started.
type ActivityHandle[I, O any] struct{ name string }

// Activity declares an activity: an ordinary function that may do I/O. Histories record the name.
// Bind and each call check that it has 1 to 128 bytes.
func Activity[I, O any](name string) ActivityHandle[I, O] { return ActivityHandle[I, O]{name} }

// Name returns the name.
func (h ActivityHandle[I, O]) Name() string { return h.name }

// Call schedules the activity and awaits its result. The activity runs at least once, unless it is
// canceled or times out first, on any node that has code for it. At most one result is recorded.
//
// A failed attempt is retried under the call's [RetryPolicy], within its timeouts. If no retry
// remains, the error is an [*ActivityError].
func (h ActivityHandle[I, O]) Call(ctx *Context, input I, options ...ActivityOption) (O, error) {
	return h.Start(ctx, input, options...).Await(ctx)
}

// Start schedules the activity and returns its future.
func (h ActivityHandle[I, O]) Start(ctx *Context, input I, options ...ActivityOption) *Future[O] {
	payload, err := ctx.x.encodeInput("activity", h.name, input)
	if err != nil {
		return resolvedFuture[O](ctx.x, err)
	}
	recorded, err := activityOptions(options)
	if err != nil {
		return resolvedFuture[O](ctx.x, fmt.Errorf("call of activity %q: %w", h.name, err))
	}
	return scheduleFuture[O](ctx, h.name, activityScheduled(h.name, payload, recorded))
}

// activityScheduled returns the event that schedules an activity. It allocates its three messages
// together.
func activityScheduled(name string, input *journalpb.Payload, options *journalpb.ActivityOptions) *journalpb.Event {
	alloc := &struct {
		event     journalpb.Event
		body      journalpb.Event_ActivityScheduled
		requested journalpb.ActivityScheduled
	}{}
	alloc.requested.Name, alloc.requested.Input, alloc.requested.Options = name, input, options
	alloc.body.ActivityScheduled = &alloc.requested
	alloc.event.Body = &alloc.body
	return &alloc.event
}

// Bind binds the activity to its body. The context of the body is canceled if the attempt ends
// before the body returns; [context.Cause] is [ErrActivityCanceled], [ErrNodeStopping] or a
// [*TimeoutError]. [ActivityInfo], [HeartbeatDetails] and [Heartbeat] take the context.
//
// Input that is not an I, and output that cannot be encoded or is too large, end the activity with
// a [*PayloadError] without a retry. A [*CodecError] is retried.
func (h ActivityHandle[I, O]) Bind(body func(ctx context.Context, input I) (O, error)) Definition {
	if body == nil {
		return Definition{err: fmt.Errorf("tenuto: activity %q is bound to nil", h.name)}
	}
	return Definition{activity: &activity{name: h.name, run: func(ctx context.Context, payloads PayloadConverter, in *journalpb.Payload) (*journalpb.Payload, error) {
		var input I
		if err := payloads.Decode(PayloadInfo{"activity", h.name, "input"}, in, &input); err != nil {
			return nil, err
		}
		output, err := body(ctx, input)
		if err != nil {
			return nil, err
		}
		return payloads.Encode(PayloadInfo{"activity", h.name, "output"}, output)
	}}}
}

// An OrchestrationHandle is the stable name of an orchestration with its input and output types. It
// starts instances from outside (see package cluster) and children from orchestrations.
type OrchestrationHandle[I, O any] struct{ name string }

// Orchestration declares an orchestration. Histories record the name. Bind and each call check that
// it has 1 to 128 bytes.
func Orchestration[I, O any](name string) OrchestrationHandle[I, O] {
	return OrchestrationHandle[I, O]{name}
}

// Name returns the name.
func (h OrchestrationHandle[I, O]) Name() string { return h.name }

// Call starts a child instance and awaits its result. The error is a [*ChildError] if the child did
// not complete.
func (h OrchestrationHandle[I, O]) Call(ctx *Context, input I, options ...ChildOption) (O, error) {
	return h.Start(ctx, input, options...).Await(ctx)
}

// Start starts a child instance and returns the future of its result. The child's ID is
// "<parent>::<incarnation>.<execution>.<event_id>" unless [ChildID] sets one. A derived ID of more
// than 128 bytes is shortened to the first 94 bytes of the parent's ID, "::" and 32 hexadecimal
// digits of the SHA-256 of the full derived ID.
func (h OrchestrationHandle[I, O]) Start(ctx *Context, input I, options ...ChildOption) *Future[O] {
	child, err := h.childStart(ctx, input, options)
	if err != nil {
		return resolvedFuture[O](ctx.x, err)
	}
	event := &journalpb.Event{Body: &journalpb.Event_SubOrchestrationScheduled{SubOrchestrationScheduled: child}}
	return scheduleFuture[O](ctx, h.name, event)
}

// childStart returns the request to start a child or a chained instance.
func (h OrchestrationHandle[I, O]) childStart(ctx *Context, input I, options []ChildOption) (*journalpb.SubOrchestrationScheduled, error) {
	payload, err := ctx.x.encodeInput("orchestration", h.name, input)
	if err != nil {
		return nil, err
	}
	child := &journalpb.SubOrchestrationScheduled{Name: h.name, Input: payload}
	for _, option := range options {
		option(child)
	}
	if err := ctx.x.checkChildID(child.Instance); err != nil {
		return nil, err
	}
	return child, checkVersion(h.name, child.Version)
}

// Bind binds the orchestration, or one of its versions, to a body.
func (h OrchestrationHandle[I, O]) Bind(body func(ctx *Context, input I) (O, error), options ...BindOption) Definition {
	if body == nil {
		return Definition{err: fmt.Errorf("tenuto: orchestration %q is bound to nil", h.name)}
	}
	o := &orchestration{name: h.name, source: functionLine(body)}
	o.run = func(ctx *Context, in *journalpb.Payload) (*journalpb.Payload, error) {
		var input I
		if err := deserialize(PayloadInfo{"orchestration", h.name, "input"}, in, &input); err != nil {
			return nil, err
		}
		output, err := body(ctx, input)
		if err != nil {
			return nil, err
		}
		return ctx.x.encode(PayloadInfo{"orchestration", h.name, "output"}, output)
	}
	for _, option := range options {
		option(o)
	}
	return Definition{orchestration: o}
}

// A ChildOption configures the start of a child or chained instance.
type ChildOption func(*journalpb.SubOrchestrationScheduled)

// checkChildID checks an ID from orchestration code. Executions that began before protocol 3 only
// require UTF-8.
func (x *Execution) checkChildID(id string) error {
	switch {
	case id == "" || ValidInstanceID(id) || !x.startInfo.protocol3 && utf8.ValidString(id):
		return nil
	case !x.startInfo.protocol3:
		return fmt.Errorf("tenuto: child ID %q is not UTF-8", truncate(id))
	}
	return &OptionError{"ChildID", fmt.Sprintf("%q is not 1 to %d of A-Z a-z 0-9 . _ : @ / + -", truncate(id), idMax)}
}

// ChildID sets the ID of the child instead of a derived one. The ID must be 1 to 128 characters of
// A-Z a-z 0-9 . _ : @ / + -; otherwise the call fails with an [*OptionError] and starts nothing. ""
// means the derived ID. If an instance of that ID exists, the child fails with [ErrInstanceExists].
func ChildID(id string) ChildOption {
	return func(child *journalpb.SubOrchestrationScheduled) { child.Instance = id }
}

// An EventHandle is the stable name of an external event with the type of its data.
type EventHandle[T any] struct{ name string }

// Event declares an external event. Histories record the name. Each use of the handle checks that
// the name has 1 to 128 bytes.
func Event[T any](name string) EventHandle[T] { return EventHandle[T]{name} }

// Name returns the name.
func (h EventHandle[T]) Name() string { return h.name }

// Wait waits for the next event of that name. Earlier events are buffered and taken in order; none
// is lost.
func (h EventHandle[T]) Wait(ctx *Context) (T, error) { return h.Subscribe(ctx).Await(ctx) }

// WaitFor is Wait with a timeout. After d the subscription is withdrawn, the error is [ErrTimeout],
// and the next event goes to the next subscription.
func (h EventHandle[T]) WaitFor(ctx *Context, d time.Duration) (T, error) {
	return h.Subscribe(ctx).AwaitFor(ctx, d)
}

// Subscribe returns the future of the next event of that name: the k-th subscription, not counting
// canceled ones, gets the k-th event.
func (h EventHandle[T]) Subscribe(ctx *Context) *Future[T] {
	if err := checkName("event", h.name); err != nil {
		return resolvedFuture[T](ctx.x, err)
	}
	event := &journalpb.Event{Body: &journalpb.Event_ExternalSubscribed{
		ExternalSubscribed: &journalpb.ExternalSubscribed{Name: h.name},
	}}
	return scheduleFuture[T](ctx, h.name, event)
}
