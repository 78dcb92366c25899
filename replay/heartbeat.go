package replay

import (
	"context"
	"fmt"
)

// Heartbeat says that the attempt that the context of an activity's body belongs
// to is alive, and how far it has come. The attempt after this one, on whatever
// node, finds the details by [HeartbeatDetails]; operators see them as well.
//
// It may be called as often as one likes: details are recorded when they have
// changed, and at most once in a second, or in a third of the call's
// [HeartbeatTimeout] if that is longer. What was reported last may be lost with
// the node, then; an attempt that fails leaves all of it behind.
//
// The error says that there is no use in going on: it is the cause with which
// the context has ended. It is another one if details cannot be encoded, and then
// the sign of life counts all the same. Outside of an activity, in a test of its
// body for example, it does nothing.
func Heartbeat[T any](ctx context.Context, details T) error {
	attempt := ActivityInfo(ctx)
	if attempt == nil || attempt.Beat == nil {
		return context.Cause(ctx)
	}
	payload, err := encode(details)
	attempt.Beat(payload)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("encode details of heartbeat: %w", err)
	}
	return nil
}

// HeartbeatDetails returns what an earlier attempt of the same call has reported
// last; false if there was nothing, or something that is no T.
func HeartbeatDetails[T any](ctx context.Context) (T, bool) {
	var details T
	attempt := ActivityInfo(ctx)
	if attempt == nil || attempt.Details == nil {
		return details, false
	}
	if err := decode(attempt.Details, &details); err != nil {
		var zero T
		return zero, false
	}
	return details, true
}
