package operate

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The actions of this package, for Config.Authorize. Pausing and resuming an activity, transfers of
// leadership and roles concern no instance: the instance ID is "".
const (
	ActionRetryNow       cluster.Action = "retry now"
	ActionHold           cluster.Action = "hold"
	ActionRelease        cluster.Action = "release"
	ActionAdjust         cluster.Action = "adjust"
	ActionComplete       cluster.Action = "complete operation"
	ActionFail           cluster.Action = "fail operation"
	ActionFireNow        cluster.Action = "fire now"
	ActionPauseActivity  cluster.Action = "pause activity"
	ActionResumeActivity cluster.Action = "resume activity"
	ActionTransfer       cluster.Action = "transfer leadership"
	ActionSetRole        cluster.Action = "set role"
	ActionFinalize       cluster.Action = "finalize"
	// ActionRunActivities is asked of a client of cluster.Dial with Definitions. It gets the inputs
	// of all activities that it has code for, and their results are believed.
	ActionRunActivities cluster.Action = "run activities"
)

// PrincipalUser is the kind of a [cluster.Principal] that is a user of the dashboard (package
// cluster/dashboard), on a node with Config.Authorize. Its name is the one that the program gives
// the user. No certificate makes a caller one.
const PrincipalUser cluster.PrincipalKind = "user"

// Errors of actions. With each of them nothing was recorded.
var (
	// ErrUnknownOperation means that the instance has no such operation: there is no such event, or
	// it schedules none.
	ErrUnknownOperation = instances.ErrUnknownOperation
	// ErrClosed means that the operation is completed or canceled, or its execution has ended.
	ErrClosed = engine.ErrOperationClosed
	// ErrHeld means that the operation is held: release it first.
	ErrHeld = engine.ErrOperationHeld
	// ErrNotBackingOff means that there is nothing that [RetryNow] could begin earlier. The error
	// text contains the state of the activity.
	ErrNotBackingOff = instances.ErrNotBackingOff
)

// A KindError reports that an action does not apply to an operation of that kind. Its fields:
//
//	EventID   uint64   // of the operation
//	Found     string   // the type of its scheduling event, for example TimerCreated
//	Permitted []string // the types of scheduling events to which the action applies
type KindError = instances.OperationKindError

// An Operation names one operation of an instance.
type Operation struct {
	InstanceID string
	// Execution counts from 1; 0 means the latest.
	Execution uint64
	// EventID is that of the event that scheduled the operation; see [cluster.OpenOperation].
	EventID uint64
}

// WithPrincipal returns a context whose calls are recorded as made on behalf of a user, in addition
// to the program that makes them: "client gw for alice", or "local for alice" without TLS. It
// applies to the functions of this package and to all calls of a client that the history shows. The
// name has 1 to 256 bytes of UTF-8 without control characters; an empty one names no user. It
// authorizes nothing: the rights are those of the program.
func WithPrincipal(ctx context.Context, name string) context.Context {
	return access.WithUser(ctx, name)
}

// WithReason returns a context whose calls are recorded with a reason. It applies to starts,
// events, updates and completions, those of other packages such as cluster/schedule among them;
// other calls have an argument for the reason. A reason is text of at most 4,096 bytes.
func WithReason(ctx context.Context, reason string) context.Context {
	return access.WithReason(ctx, reason)
}

// RetryNow makes the next attempt of an activity begin at once, if the activity is backing off;
// otherwise the error is [ErrNotBackingOff]. Rates, slots and pauses still apply. A held activity
// returns [ErrHeld].
func RetryNow(ctx context.Context, client *cluster.Client, op Operation, reason string) error {
	return act(ctx, client, op, &clusterpb.OperateRequest{Kind: clusterpb.OperateRequest_KIND_RETRY_NOW, Reason: reason})
}

// Hold keeps an activity or a timer as it is until [Release]: no attempt begins, the timer does not
// fire. A running attempt continues and may end the activity. Timeouts of the activity keep
// running. Holding a held operation returns nil and records nothing.
func Hold(ctx context.Context, client *cluster.Client, op Operation, reason string) error {
	return act(ctx, client, op, &clusterpb.OperateRequest{Kind: clusterpb.OperateRequest_KIND_HOLD, Reason: reason})
}

// Release ends [Hold]. An attempt or timer that became due meanwhile begins or fires at once.
// Releasing an operation that is not held returns nil and records nothing.
func Release(ctx context.Context, client *cluster.Client, op Operation, reason string) error {
	return act(ctx, client, op, &clusterpb.OperateRequest{Kind: clusterpb.OperateRequest_KIND_RELEASE, Reason: reason})
}

// Complete ends an activity or a child as completed, with a value that the client's codec encodes.
// A subscription gets the value as the data of an event. The code decodes it as any other result: a
// value of another type fails the call there, except that an event is refused with a
// [*replay.PayloadError]. Events of one name go to its subscriptions in their order, so only the
// oldest can be completed; the error for the others is a [*replay.InvalidError].
func Complete(ctx context.Context, client *cluster.Client, op Operation, value any, reason string) error {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return fmt.Errorf("complete operation: %w", err)
	}
	payload, err := internals.Encode(replay.PayloadInfo{Kind: "operation", Part: "result"}, value)
	if err != nil {
		return fmt.Errorf("complete operation: %w", err)
	}
	return act(ctx, client, op, &clusterpb.OperateRequest{Kind: clusterpb.OperateRequest_KIND_COMPLETE, Result: payload, Reason: reason})
}

// Fail ends an activity or a child as failed. There is no further attempt. The code gets the error
// as that of the last attempt, or of the child.
func Fail(ctx context.Context, client *cluster.Client, op Operation, failure error, reason string) error {
	internals, err := client.Internal(access.Key{})
	switch {
	case err != nil:
		return fmt.Errorf("fail operation: %w", err)
	case failure == nil:
		return fmt.Errorf("fail operation: %w", &replay.InvalidError{Field: "failure", Reason: "is nil: pass the error of the operation"})
	}
	record, err := internals.Converter.EncodeError(failure)
	if err != nil {
		return fmt.Errorf("fail operation: %w", err)
	}
	return act(ctx, client, op, &clusterpb.OperateRequest{Kind: clusterpb.OperateRequest_KIND_FAIL, Error: record, Reason: reason})
}

// FireNow makes a timer fire. The code gets the time for which the timer was created, although
// [replay.Context.Now] is earlier. A held timer returns [ErrHeld].
func FireNow(ctx context.Context, client *cluster.Client, op Operation, reason string) error {
	return act(ctx, client, op, &clusterpb.OperateRequest{Kind: clusterpb.OperateRequest_KIND_FIRE_NOW, Reason: reason})
}

// Adjust changes the timeouts, [replay.CancelGrace] or the retry policy of an open activity.
// Options that are not given, or have the value 0, stay as they are: to do without a timeout, set a
// long one. A new timeout counts from the same moment as the old one, so it may have passed
// already. [replay.Attempt.Deadline] of a running attempt still shows the old one. A new retry
// policy replaces the old one as a whole and applies from the next decision on: an activity that
// backs off ends at once if its last failure is final under the new policy. [replay.Tag] cannot be
// changed.
func Adjust(ctx context.Context, client *cluster.Client, op Operation, reason string, options ...replay.Option) error {
	changes, err := engine.RecordedActivityOptions(options, "an adjustment")
	switch {
	case err != nil:
		return fmt.Errorf("adjust: %w", err)
	case len(options) == 0:
		return fmt.Errorf("adjust: %w", &replay.InvalidError{Field: "options", Reason: "are none: pass at least one"})
	}
	return act(ctx, client, op, &clusterpb.OperateRequest{Kind: clusterpb.OperateRequest_KIND_ADJUST, Options: changes, Reason: reason})
}

var verbs = map[clusterpb.OperateRequest_Kind]cluster.Action{
	clusterpb.OperateRequest_KIND_RETRY_NOW: ActionRetryNow,
	clusterpb.OperateRequest_KIND_HOLD:      ActionHold,
	clusterpb.OperateRequest_KIND_RELEASE:   ActionRelease,
	clusterpb.OperateRequest_KIND_ADJUST:    ActionAdjust,
	clusterpb.OperateRequest_KIND_COMPLETE:  ActionComplete,
	clusterpb.OperateRequest_KIND_FAIL:      ActionFail,
	clusterpb.OperateRequest_KIND_FIRE_NOW:  ActionFireNow,
}

// act sends an action with a new request ID.
func act(ctx context.Context, client *cluster.Client, op Operation, request *clusterpb.OperateRequest) error {
	where := fmt.Sprintf("%s %d of %s", verbs[request.Kind], op.EventID, op.InstanceID)
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	request.EventId, request.Execution, request.RequestId = op.EventID, op.Execution, rand.Text()
	sent := &clusterpb.Request{Instance: op.InstanceID, Call: &clusterpb.Request_Operate{Operate: request}}
	if err := internals.Check(sent); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if _, err := internals.Call(ctx, sent); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}
