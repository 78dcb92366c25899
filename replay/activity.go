package replay

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
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
//
// The options are [Retry], [Tag], [CancelGrace] and four timeouts. They are recorded with the call.
// None of the timeouts is set by default, so an activity may run forever. The leader enforces them
// by its clock, never early, and continues them after a failover unless stated otherwise. 0 means
// no timeout. A negative timeout makes the call fail with an [*InvalidError], and nothing is
// scheduled.
//
//	ScheduleToStart  from the call to the start of the first attempt  ends the activity
//	StartToClose     each attempt, from its start to its end          fails the attempt
//	HeartbeatTimeout each attempt, from one heartbeat to the next     fails the attempt
//	ScheduleToClose  from the call to the result, all attempts        ends the activity
//
// An activity that is ended by a timeout fails with an [*ActivityError] that wraps a
// [*TimeoutError]. Whether the activity or only an attempt has timed out, the context of the
// running attempt ends with the *TimeoutError as its cause, and the attempt's result is dropped.
func (h ActivityHandle[I, O]) Call(ctx *Context, input I, options ...Option) (O, error) {
	return h.Start(ctx, input, options...).Await(ctx)
}

// Start schedules the activity and returns its future. Options are those of [ActivityHandle.Call].
func (h ActivityHandle[I, O]) Start(ctx *Context, input I, options ...Option) *Future[O] {
	return (*Future[O])(ctx.scope.StartActivity(h.name, host.ValueOf(input), activityOptions(options)))
}

// Bind binds the activity to its body. The context of the body is canceled if the attempt ends
// before the body returns; [context.Cause] is [ErrActivityCanceled], [ErrNodeStopping] or a
// [*TimeoutError]. [ActivityInfo], [HeartbeatDetails] and [Heartbeat] take the context.
//
// Input that is not an I, and output that cannot be encoded or is too large, end the activity with
// a [*PayloadError] without a retry. A [*CodecError] is retried.
func (h ActivityHandle[I, O]) Bind(body func(ctx context.Context, input I) (O, error)) Definition {
	if body == nil {
		return Definition{host.Definition{Err: fmt.Errorf("tenuto: activity %q is bound to nil", h.name)}}
	}
	return Definition{host.Definition{Activity: &host.Activity{
		Name: h.name,
		Run: func(ctx context.Context, input host.Decoder) (any, error) {
			var in I
			if err := input.Decode(&in); err != nil {
				return nil, err
			}
			return body(ctx, in)
		},
	}}}
}
