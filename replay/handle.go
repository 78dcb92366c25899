package replay

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An ActivityHandle is a stable name with the types of what goes in and comes
// out. It is declared once, called from orchestrations, and bound to a body
// where a node is started.
type ActivityHandle[I, O any] struct{ name string }

// Activity declares an activity: an ordinary function that may do I/O. The name
// is what histories keep: 1 to 128 bytes, checked where the handle is bound or
// called.
func Activity[I, O any](name string) ActivityHandle[I, O] { return ActivityHandle[I, O]{name} }

// Name returns the name.
func (h ActivityHandle[I, O]) Name() string { return h.name }

// Call schedules the activity and awaits its result. It runs at least once, unless it is
// canceled or times out first, on any node that has code for it, and at most one result
// is recorded.
//
// A failed attempt is retried under the call's [RetryPolicy], within the limits
// of time of its other options; the error is an [*ActivityError] when it gave up.
func (h ActivityHandle[I, O]) Call(ctx *Context, input I, options ...ActivityOption) (O, error) {
	return h.Start(ctx, input, options...).Await(ctx)
}

// Start schedules the activity and returns its future.
func (h ActivityHandle[I, O]) Start(ctx *Context, input I, options ...ActivityOption) *Future[O] {
	payload, err := ctx.x.encodeInput("activity", h.name, input)
	if err != nil {
		return settledFuture[O](ctx.x, err)
	}
	recorded, err := activityOptions(options)
	if err != nil {
		return settledFuture[O](ctx.x, fmt.Errorf("call of activity %q: %w", h.name, err))
	}
	return call[O](ctx, h.name, activityScheduled(h.name, payload, recorded))
}

// activityScheduled returns the event that asks for an activity; the three messages
// that it is made of are one allocation.
func activityScheduled(name string, input *journalpb.Payload, options *journalpb.ActivityOptions) *journalpb.Event {
	made := &struct {
		event journalpb.Event
		body  journalpb.Event_ActivityScheduled
		asked journalpb.ActivityScheduled
	}{}
	made.asked.Name, made.asked.Input, made.asked.Options = name, input, options
	made.body.ActivityScheduled = &made.asked
	made.event.Body = &made.body
	return &made.event
}

// Bind gives the activity its body. The context of the body is cancelled when
// the attempt is over before the body has returned; [context.Cause] tells why:
// [ErrGivenUp], [ErrNodeStopping] or a [*TimeoutError]. [ActivityInfo] and
// [HeartbeatDetails] read from it, [Heartbeat] reports by it.
//
// Input that is no I, and output that cannot be encoded or is too large, end the
// activity with a [*PayloadError]: trying again would change nothing. A
// [*CodecError] is retried.
func (h ActivityHandle[I, O]) Bind(body func(ctx context.Context, input I) (O, error)) Definition {
	if body == nil {
		return Definition{err: fmt.Errorf("tenuto: activity %q is bound to nil", h.name)}
	}
	return Definition{activity: &activity{name: h.name, run: func(ctx context.Context, payloads Payloads, in *journalpb.Payload) (*journalpb.Payload, error) {
		var input I
		if err := payloads.Decode(PayloadOf{"activity", h.name, "input"}, in, &input); err != nil {
			return nil, err
		}
		output, err := body(ctx, input)
		if err != nil {
			return nil, err
		}
		return payloads.Encode(PayloadOf{"activity", h.name, "output"}, output)
	}}}
}

// An OrchestrationHandle is a stable name with the types of what goes in and
// comes out. It starts instances from outside (see package cluster) and
// children from orchestrations.
type OrchestrationHandle[I, O any] struct{ name string }

// Orchestration declares an orchestration. The name is what histories keep: 1
// to 128 bytes, checked where the handle is bound or called.
func Orchestration[I, O any](name string) OrchestrationHandle[I, O] {
	return OrchestrationHandle[I, O]{name}
}

// Name returns the name.
func (h OrchestrationHandle[I, O]) Name() string { return h.name }

// Call starts a child instance and awaits its result; the error is a
// [*ChildError] when it did not complete.
func (h OrchestrationHandle[I, O]) Call(ctx *Context, input I, options ...ChildOption) (O, error) {
	return h.Start(ctx, input, options...).Await(ctx)
}

// Start starts a child instance and returns the future of its result. Its ID is
// derived from the parent's, "<parent>::<incarnation>.<execution>.<event_id>", unless
// [ChildID] gives one. If that has more than 128 bytes, it is the first 94 bytes of the
// parent's ID, "::" and 32 hexadecimal digits of the SHA-256 of the longer ID.
func (h OrchestrationHandle[I, O]) Start(ctx *Context, input I, options ...ChildOption) *Future[O] {
	child, err := h.child(ctx, input, options)
	if err != nil {
		return settledFuture[O](ctx.x, err)
	}
	event := &journalpb.Event{Body: &journalpb.Event_SubOrchestrationScheduled{SubOrchestrationScheduled: child}}
	return call[O](ctx, h.name, event)
}

// child returns what a start of a child or a chained instance asks for.
func (h OrchestrationHandle[I, O]) child(ctx *Context, input I, options []ChildOption) (*journalpb.SubOrchestrationScheduled, error) {
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

// Bind gives the orchestration its body, or one of its versions a body.
func (h OrchestrationHandle[I, O]) Bind(body func(ctx *Context, input I) (O, error), options ...BindOption) Definition {
	if body == nil {
		return Definition{err: fmt.Errorf("tenuto: orchestration %q is bound to nil", h.name)}
	}
	o := &orchestration{name: h.name, source: functionLine(body)}
	o.run = func(ctx *Context, in *journalpb.Payload) (*journalpb.Payload, error) {
		var input I
		if err := deserialize(PayloadOf{"orchestration", h.name, "input"}, in, &input); err != nil {
			return nil, err
		}
		output, err := body(ctx, input)
		if err != nil {
			return nil, err
		}
		return ctx.x.encode(PayloadOf{"orchestration", h.name, "output"}, output)
	}
	for _, option := range options {
		option(o)
	}
	return Definition{orchestration: o}
}

// A ChildOption changes how a child is started.
type ChildOption func(*journalpb.SubOrchestrationScheduled)

// checkChildID checks an ID that code gives. Executions that began before protocol 3 had
// those refused only that are not UTF-8.
func (x *Execution) checkChildID(id string) error {
	switch {
	case id == "" || ValidInstanceID(id) || !x.origin.protocol3 && utf8.ValidString(id):
		return nil
	case !x.origin.protocol3:
		return fmt.Errorf("tenuto: child ID %q is not UTF-8", cut(id))
	}
	return &OptionError{"ChildID", fmt.Sprintf("%q is not 1 to %d of A-Z a-z 0-9 . _ : @ / + -", cut(id), idMax)}
}

// ChildID gives the child an ID instead of the derived one. One that is not 1 to 128 of
// A-Z a-z 0-9 . _ : @ / + - makes the call fail with an [*OptionError], and nothing is
// started; "" stands for the derived one. If an instance of that ID exists already, the
// child fails with [ErrInstanceExists].
func ChildID(id string) ChildOption {
	return func(child *journalpb.SubOrchestrationScheduled) { child.Instance = id }
}

// An EventHandle is the stable name of an external event with the type of its
// data.
type EventHandle[T any] struct{ name string }

// Event declares an external event. The name is what histories keep: 1 to 128
// bytes, checked where the handle is used.
func Event[T any](name string) EventHandle[T] { return EventHandle[T]{name} }

// Name returns the name.
func (h EventHandle[T]) Name() string { return h.name }

// Wait waits for the next event of that name. Events that came before are
// buffered and taken in order; none is lost.
func (h EventHandle[T]) Wait(ctx *Context) (T, error) { return h.Subscribe(ctx).Await(ctx) }

// WaitFor is Wait with a limit of time: when d passes first, the subscription
// is withdrawn, the error is [ErrTimeout], and the next event goes to the next
// subscription.
func (h EventHandle[T]) WaitFor(ctx *Context, d time.Duration) (T, error) {
	return h.Subscribe(ctx).AwaitFor(ctx, d)
}

// Subscribe returns the future of the next event of that name: the k-th
// subscription that was not given up gets the k-th event.
func (h EventHandle[T]) Subscribe(ctx *Context) *Future[T] {
	if err := checkName("event", h.name); err != nil {
		return settledFuture[T](ctx.x, err)
	}
	event := &journalpb.Event{Body: &journalpb.Event_ExternalSubscribed{
		ExternalSubscribed: &journalpb.ExternalSubscribed{Name: h.name},
	}}
	return call[T](ctx, h.name, event)
}
