package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/cluster/internal/completion"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// ErrActivityClosed means that the attempt named by the token no longer counts, or never existed:
// the activity is done or was canceled, or this attempt has failed. The call did nothing. If a
// later attempt has failed or ended the activity, an earlier call with the same failure may have
// been recorded.
var ErrActivityClosed = activity.ErrClosed

// clientKey is the key of the *Client in the contexts of attempts.
type clientKey struct{}

// ClientFrom returns the client of the node that runs an activity. ctx is the context of its body.
// With the client, the activity can start, send to and query all instances of the cluster. Calls
// with ctx carry the headers of the activity. ok is false for other contexts and in package
// replaytest.
//
// A call that the next attempt repeats should have a [RequestID] that is the same in all attempts
// and differs between calls, such as a short prefix of a hash of [replay.Attempt.IdempotencyKey].
func ClientFrom(ctx context.Context) (client *Client, ok bool) {
	client, ok = ctx.Value(clientKey{}).(*Client)
	return client, ok
}

// CompleteActivity completes an activity from outside with a result; see [replay.ErrResultPending].
// The token comes from [replay.Attempt.Token] or [replay.Attempt.SignedToken]; the leader verifies
// a signed token. CompleteActivity returns after the completion is committed. Repeating it with the
// same value returns nil, until a signed token expires.
//
// An instance that is stalled or waits for code records nothing: the error is [ErrStalled]. The
// leader keeps the first result and records it when the instance continues. A new leader does not
// have that result. So the caller must repeat the call until it returns nil (this value was
// recorded) or [ErrActivityClosed] (this value was not recorded).
//
// Other errors: [ErrActivityClosed], [*replay.TokenError], [ErrTokenExpired], [*UnavailableError].
// While a member does not speak protocol 4, the error for a signed token is [ErrProtocol].
func CompleteActivity[O any](ctx context.Context, client *Client, token string, value O) error {
	payload, err := client.encode(replay.PayloadInfo{Kind: "activity", Part: "result"}, value)
	if err != nil {
		return fmt.Errorf("complete activity: %w", err)
	}
	return completeAttempt(ctx, client, token, &clusterpb.CompleteRequest{Result: payload})
}

// FailActivity fails an attempt from outside, as if the activity function had returned failure. The
// retry policy decides whether there is another attempt, which has its own token.
// [replay.NonRetryable] ends the activity. FailActivity returns after the failure is committed.
// Repeating it returns nil until a later attempt has failed or has ended the activity. Errors are
// those of [CompleteActivity].
func FailActivity(ctx context.Context, client *Client, token string, failure error) error {
	if failure == nil {
		return fmt.Errorf("fail activity: %w", invalidArgument("failure", "is nil: pass the error of the activity"))
	}
	if err := client.check(ctx); err != nil {
		return fmt.Errorf("fail activity: %w", err)
	}
	record, err := client.converter.EncodeError(failure)
	if err != nil {
		return fmt.Errorf("fail activity: %w", err)
	}
	return completeAttempt(ctx, client, token, &clusterpb.CompleteRequest{Error: record})
}

// completeJSON is [CompleteActivity] with valid JSON.
func completeJSON(ctx context.Context, client *Client, token string, value json.RawMessage) error {
	if err := client.check(ctx); err != nil {
		return fmt.Errorf("complete activity: %w", err)
	}
	payload, err := client.converter.EncodeJSON(replay.PayloadInfo{Kind: "activity", Part: "result"}, value)
	if err != nil {
		return fmt.Errorf("complete activity: %w", err)
	}
	return completeAttempt(ctx, client, token, &clusterpb.CompleteRequest{Result: payload})
}

func completeAttempt(ctx context.Context, c *Client, token string, request *clusterpb.CompleteRequest) error {
	instance, of, err := nameAttempt(token, request)
	if err != nil {
		return fmt.Errorf("complete activity: %w", err)
	}
	_, err = c.call(ctx, &clusterpb.Request{Instance: instance, Call: &clusterpb.Request_Complete{Complete: request}})
	if err != nil {
		return fmt.Errorf("complete activity %s: %w", of, err)
	}
	return nil
}

// nameAttempt sets the attempt that a request is for, or the signed token with which the leader
// finds out. It returns the instance and, for an error text, the attempt as far as it is known.
func nameAttempt(token string, request *clusterpb.CompleteRequest) (instance, of string, err error) {
	if engine.IsSignedToken(token) {
		request.SignedToken = token
		instance, err = engine.UnverifiedInstance(token)
		return instance, "by a signed token", err
	}
	attempt, err := engine.ParseToken(token)
	if err != nil {
		return "", "", err
	}
	request.Execution, request.EventId, request.Attempt = attempt.Execution, attempt.EventID, uint64(attempt.Number)
	request.Incarnation = attempt.Incarnation
	return attempt.Instance, attempt.IdempotencyKey(), nil
}

// CompletionHandler returns a handler with which third parties complete activities over HTTP. It
// works on any node, and accepts signed tokens only (see [replay.Attempt.CompletionURL]). The
// application mounts it on a server of its own, with TLS; [http.StripPrefix] works.
//
// POST /complete/{token} completes the attempt with the JSON value in the body, like
// [CompleteActivity]. POST /fail/{token} with {"code": TEXT, "message": TEXT} fails it, like
// [FailActivity]: errors.Is finds the sentinel of [replay.NewError] with that code. Codes that
// begin with "tenuto." are rejected. The status of the answer is:
//
//	204  recorded, also if it was recorded before with the same value
//	400  the body is not JSON in UTF-8, or not of that form
//	404  the token was changed, was signed by another cluster, or is a plain token
//	408  the body did not arrive within 10 s
//	409  the attempt has ended with another outcome, or does not exist any more
//	410  the token has expired
//	413  the value exceeds Settings.PayloadMax
//	503  no leader, overload, a stalled instance, no answer within 10 s, or more than 128
//	     concurrent requests, or 4 for one instance: repeat it after the time in Retry-After; the
//	     outcome may be unknown
//	500  an internal error
//
// A value is recorded as it is: if it is not of the activity's type, the call of the activity fails
// with [*replay.PayloadError]. Config.Authorize is not called: the token alone authorizes the
// request. The end of a request's context ends its call. A token in a URL is a secret: do not log
// it.
func (n *Node) CompletionHandler() http.Handler {
	return completion.NewHandler(nodeCompletions(n))
}

// nodeCompletions says how a handler of completions works on a node, which verifies tokens itself.
func nodeCompletions(n *Node) completion.Config {
	config := clientCompletions(n.Client(), func() int { return n.settings.payloadMax() })
	config.IsUnverified = false
	config.Verify = func(ctx context.Context, token string) (instance string, err error) {
		if err := n.check(); err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(ctx, verifyWaitMax)
		defer cancel()
		attempt, err := n.tokens.verify(ctx, token)
		if err != nil {
			return "", err
		}
		return attempt.Instance, nil
	}
	return config
}

// clientCompletions says how a handler of completions reaches the cluster through a client. Without
// the completion key it cannot recognize forged tokens, but bounds the requests with them.
func clientCompletions(c *Client, bodyMax func() int) completion.Config {
	return completion.Config{
		Verify: func(_ context.Context, token string) (instance string, err error) {
			return engine.UnverifiedInstance(token)
		},
		Complete: func(ctx context.Context, token string, value json.RawMessage) error {
			return completeJSON(ctx, c, token, value)
		},
		Fail: func(ctx context.Context, token string, failure error) error {
			return FailActivity(ctx, c, token, failure)
		},
		BodyMax:       bodyMax,
		IsUnavailable: isUnavailable,
		IsUnverified:  true,
	}
}

// verifyWaitMax bounds how long a request waits until this node can verify tokens.
const verifyWaitMax = 2 * time.Second

// isUnavailable reports whether a completion may succeed later with the same token.
func isUnavailable(err error) bool {
	return errors.As(err, new(*UnavailableError)) || errors.Is(err, ErrStalled) || errors.Is(err, ErrClosed) || errors.Is(err, ErrRemoved) ||
		errors.Is(err, ErrProtocol) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// The states of an open activity: what it is doing or waiting for.
const (
	// ActivityQueued: no node that can run it has a free slot, the rate of the activity allows no
	// attempt yet, or the leader waits for a worker that may still run it; see
	// Config.ActivitiesMax, Config.ActivityLimits and Settings.ActivityRates.
	ActivityQueued = activity.Queued
	// ActivityRunning: an attempt runs.
	ActivityRunning = activity.Running
	// ActivityBackingOff: the last attempt failed, and the next is not due yet.
	ActivityBackingOff = activity.BackingOff
	// ActivityPending: its result will come from outside; see [replay.ErrResultPending].
	ActivityPending = activity.Pending
	// ActivityWaitingForTag: no node serves its tag; see Config.Tags.
	ActivityWaitingForTag = activity.WaitingForTag
	// ActivityWaitingForCode: no node that serves its tag has code for it.
	ActivityWaitingForCode = activity.WaitingForCode
	// ActivityEnding: its end is being recorded.
	ActivityEnding = activity.Ending
)

// An OpenOperation is an operation that an instance has scheduled and that is not closed yet.
type OpenOperation struct {
	// EventType is the type of the event that scheduled the operation: ActivityScheduled,
	// TimerCreated, ExternalSubscribed, SubOrchestrationScheduled or MessageSent. ExternalEvent
	// stands for events that are buffered, because no code waits for them yet; see Buffered.
	EventType string
	// Name is the name of the activity, event or orchestration; "deadline" for the timer of
	// [Deadline]; "" for other timers and for a request to cancel another instance.
	Name      string
	Execution uint64
	EventID   uint64 // of the event that scheduled it; 0 for buffered events
	Since     time.Time
	// Buffered is how many events of that name are buffered.
	Buffered int

	// FireAt is when a timer is due.
	FireAt time.Time
	// ChildID is the instance ID of a child. Receiver is that of the receiver of a message.
	ChildID  string
	Receiver string

	// State is the state of an activity, such as [ActivityQueued]; "" briefly after it was
	// scheduled.
	State activity.State
	// FailedAttempts is how many attempts of an activity have failed. LastError is the error of the
	// last of them.
	FailedAttempts int
	LastError      error
	// Failures are the latest of the failed attempts, at most 20, in their order. Earlier builds
	// did not record them. AttemptStarted is when the attempt began that runs or is pending; zero
	// if there is none.
	Failures       []history.FailedAttempt
	AttemptStarted time.Time
	// Held says that an operator holds the activity or the timer; see package cluster/operate. The
	// state of an activity is then "held", unless an attempt runs or the activity backs off.
	Held bool
	// PausedBy and PausedReason say who has paused the activities of that name in the whole
	// cluster, and why. The state is then "paused", unless an attempt runs or the activity backs
	// off. PausedSince is zero if they are not paused.
	PausedBy     string
	PausedReason string
	PausedSince  time.Time
	// NextAttempt is when the next attempt is due, if the activity is backing off.
	NextAttempt time.Time

	heartbeat *journalpb.Payload
	converter engine.PayloadConverter
}

// Heartbeat decodes the last recorded heartbeat of an activity (see [replay.Heartbeat]) into the
// value that into points to. It leaves that value unchanged if there is no heartbeat.
func (o *OpenOperation) Heartbeat(into any) error {
	return o.converter.Decode(replay.PayloadInfo{Kind: "activity", Name: o.Name, Part: "details"}, o.heartbeat, into)
}

// Pending returns the open operations of an instance in the order in which they were scheduled, and
// then its buffered events: one entry for each name of events that the code does not wait for yet,
// without their time. It returns none if the instance has ended.
//
// Errors: [ErrNotFound], [*replay.InvalidError], [*UnavailableError].
func (c *Client) Pending(ctx context.Context, id string) ([]*OpenOperation, error) {
	if err := checkID(id); err != nil {
		return nil, ofInstance("pending of", id, err)
	}
	response, err := c.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Pending{Pending: new(clusterpb.PendingRequest)}})
	if err != nil {
		return nil, fmt.Errorf("pending of %s: %w", id, err)
	}
	var operations []*OpenOperation
	for _, wire := range response.GetPending().GetOperations() {
		operations = append(operations, newOpenOperation(wire, c.converter))
	}
	return operations, nil
}

func newOpenOperation(wire *clusterpb.OpenOperation, converter engine.PayloadConverter) *OpenOperation {
	open, attempt := wire.GetOperation(), wire.GetOperation().GetAttempt()
	o := &OpenOperation{
		EventType:      journalpb.TypeName(int(open.GetKind())),
		Name:           wire.GetName(),
		Execution:      open.GetRef().GetExecution(),
		EventID:        open.GetRef().GetEventId(),
		Buffered:       int(wire.GetBuffered()),
		ChildID:        open.GetChild(),
		Receiver:       wire.GetReceiver(),
		State:          activity.State(wire.GetState()),
		FailedAttempts: int(attempt.GetFailed()),
		LastError:      converter.DecodeError(attempt.GetLastError()),
		Failures:       eventpb.Failures(attempt.GetFailedAttempts()),
		heartbeat:      attempt.GetHeartbeat(),
		converter:      converter,
	}
	if since := wire.GetSince(); since != 0 {
		o.Since = time.Unix(0, since)
	}
	o.Held = open.GetHeld()
	if paused := wire.GetPaused(); paused != nil {
		o.PausedBy, o.PausedReason, o.PausedSince = paused.Principal, paused.Reason, time.Unix(0, paused.Since)
	}
	if at := wire.GetAttemptStartedAt(); at != 0 {
		o.AttemptStarted = time.Unix(0, at)
	}
	if at := open.GetFireAt(); at != 0 {
		o.FireAt = time.Unix(0, at)
	}
	if at := attempt.GetNextAt(); at != 0 && o.State == ActivityBackingOff {
		o.NextAttempt = time.Unix(0, at)
	}
	return o
}
