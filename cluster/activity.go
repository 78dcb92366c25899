package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// ErrActivityClosed: the attempt that the token names does not count any more:
// the activity is done or was given up, or this attempt has failed. Or there never
// was such an attempt. This call has done nothing. A failure that it repeats may have
// been recorded before, if a later attempt has failed or has ended the activity since.
var ErrActivityClosed = actors.ErrActivityClosed

// CompleteActivity ends an activity from outside with a result; see
// [replay.ErrPending]. The token is that of the attempt, as
// [replay.Attempt.Token] returns it. It returns when the end is committed. Doing
// it again with the same value is no error.
//
// An instance that is stalled or waits for code records nothing: the error is
// [ErrStalled]. The leading node keeps the first result that it got and has it
// recorded when the instance goes on; a leader that takes over meanwhile knows
// nothing of it. So the call is to be repeated, until another answer says what
// was recorded: nil for this value, [ErrActivityClosed] for another one.
//
// Other errors: [ErrActivityClosed], [*replay.TokenError], [*UnavailableError].
func CompleteActivity[O any](ctx context.Context, client *Client, token string, value O) error {
	payload, err := client.encode(replay.PayloadOf{Kind: "activity", Part: "result"}, value)
	if err != nil {
		return fmt.Errorf("complete activity: %w", err)
	}
	return client.complete(ctx, token, &clusterpb.CompleteRequest{Result: payload})
}

// FailActivity fails an attempt from outside, as if the activity's body had
// returned failure: the call's retry policy decides whether there is another
// attempt, which has a token of its own. [replay.NonRetryable] ends the activity.
// It returns when the failure is committed. Doing it again is no error until a later
// attempt has failed or has ended the activity. Errors are those of [CompleteActivity].
func FailActivity(ctx context.Context, client *Client, token string, failure error) error {
	if failure == nil {
		return &InputError{"failure", "is nil: say what the activity failed with"}
	}
	if err := client.check(ctx); err != nil {
		return fmt.Errorf("fail activity: %w", err)
	}
	record, err := client.payloads.EncodeError(failure)
	if err != nil {
		return fmt.Errorf("fail activity: %w", err)
	}
	return client.complete(ctx, token, &clusterpb.CompleteRequest{Error: record})
}

func (c *Client) complete(ctx context.Context, token string, request *clusterpb.CompleteRequest) error {
	attempt, err := replay.ParseToken(token)
	if err != nil {
		return fmt.Errorf("complete activity: %w", err)
	}
	request.Execution, request.EventId, request.Attempt = attempt.Execution, attempt.EventID, uint64(attempt.Number)
	request.Incarnation = attempt.Incarnation
	_, err = c.call(ctx, &clusterpb.Request{Instance: attempt.Instance, Call: &clusterpb.Request_Complete{Complete: request}})
	if err != nil {
		return fmt.Errorf("complete activity %s: %w", attempt.IdempotencyKey(), err)
	}
	return nil
}

func (g *group) complete(ctx context.Context, p *actors.Partition, instance string, r *clusterpb.CompleteRequest) (*clusterpb.Response, error) {
	if err := g.barrier(ctx); err != nil {
		return nil, err
	}
	ref := &journalpb.OperationRef{Instance: instance, Incarnation: r.Incarnation, Execution: r.Execution, EventId: r.EventId}
	stalls, cancel := p.WatchStalls(instance)
	defer cancel()
	if err := withheld(p, ref); err != nil {
		return nil, err
	}
	outcomes := make(chan error, 1)
	p.CompleteActivity(actors.Completion{Ref: ref, Attempt: int(r.Attempt), Result: r.Result, Error: r.Error},
		func(err error) { outcomes <- err })
	if err := awaitRecord(ctx, p, ref, outcomes, stalls); err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Complete{Complete: new(clusterpb.CompleteResult)}}, nil
}

// awaitRecord waits for the outcome of a completion, as long as its instance has
// not stalled, maybe over it.
func awaitRecord(ctx context.Context, p *actors.Partition, ref *journalpb.OperationRef, outcomes <-chan error, stalls <-chan struct{}) error {
	for {
		select {
		case err := <-outcomes: // may be there already
			return err
		default:
		}
		if err := withheld(p, ref); err != nil {
			return err
		}
		select {
		case err := <-outcomes:
			return err
		case <-stalls:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// withheld tells whether the end of an activity is not recorded because its
// instance does not go on.
func withheld(p *actors.Partition, ref *journalpb.OperationRef) error {
	reason := p.Stalled(ref.Instance)
	if reason == nil || p.Activity(ref) != ActivityEnding {
		return nil
	}
	// Whoever completes an activity may read nothing of its instance.
	if mismatch, ok := reason.(*replay.Mismatch); ok {
		reason = mismatch.WithoutPayloads()
	}
	return fmt.Errorf("%w: %w", ErrStalled, reason)
}

// An ActivityState says what an open activity is doing or waiting for.
type ActivityState = actors.ActivityState

// The states of an open activity.
const (
	// ActivityQueued: no node that could run it has a place for it, or the rate of
	// the activity does not let an attempt begin, or a worker that may still run it
	// is waited for; see Config.ActivitiesMax, ActivityLimits and ActivityRates.
	ActivityQueued = actors.ActivityQueued
	// ActivityRunning: an attempt's body runs.
	ActivityRunning = actors.ActivityRunning
	// ActivityPausing: the last attempt has failed, and the next is due later.
	ActivityPausing = actors.ActivityPausing
	// ActivityPending: its end will come from outside; see [replay.ErrPending].
	ActivityPending = actors.ActivityPending
	// ActivityWaitingForTag: no node serves its tag; see Config.Tags.
	ActivityWaitingForTag = actors.ActivityWaitingForTag
	// ActivityWaitingForCode: no node that serves its tag has code for it.
	ActivityWaitingForCode = actors.ActivityWaitingForCode
	// ActivityEnding: its end is being recorded.
	ActivityEnding = actors.ActivityEnding
)

// An OpenOperation is something that an instance waits for.
type OpenOperation struct {
	// The type of the event that scheduled it: ActivityScheduled, TimerCreated,
	// ExternalSubscribed or SubOrchestrationScheduled.
	Kind string
	// Of the activity, event or orchestration; "" of a timer.
	Name      string
	Execution uint64
	EventID   uint64 // of the event that scheduled it
	Since     time.Time

	// Of a timer: when it is due.
	FireAt time.Time
	// Of a child: the ID of its instance.
	ChildID string

	// Of an activity: what it is doing, "" for a moment after it was scheduled.
	State ActivityState
	// Of an activity: how many attempts have failed, and what the last of them
	// failed with.
	Failed    int
	LastError error
	// Of an activity that pauses: when the next attempt is due.
	NextAttempt time.Time

	heartbeat *journalpb.Payload
	payloads  replay.Payloads
}

// Heartbeat decodes what an activity has reported last, as far as that is
// recorded (see [replay.Heartbeat]), into what into points to; it leaves it as it
// is when nothing was.
func (o *OpenOperation) Heartbeat(into any) error {
	return o.payloads.Decode(replay.PayloadOf{Kind: "activity", Name: o.Name, Part: "details"}, o.heartbeat, into)
}

// Pending returns what an instance waits for, in the order in which it was
// scheduled; nothing if it has ended.
//
// Errors: [ErrNotFound], [*InputError], [*UnavailableError].
func (c *Client) Pending(ctx context.Context, id string) ([]*OpenOperation, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	response, err := c.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Pending{Pending: new(clusterpb.PendingRequest)}})
	if err != nil {
		return nil, fmt.Errorf("pending of %s: %w", id, err)
	}
	var operations []*OpenOperation
	for _, wire := range response.GetPending().GetOperations() {
		operations = append(operations, newOpenOperation(wire, c.payloads))
	}
	return operations, nil
}

func newOpenOperation(wire *clusterpb.OpenOperation, payloads replay.Payloads) *OpenOperation {
	open, attempt := wire.GetOperation(), wire.GetOperation().GetAttempt()
	o := &OpenOperation{
		Kind:      journalpb.ArmName(int(open.GetKind())),
		Name:      wire.GetName(),
		Execution: open.GetRef().GetExecution(),
		EventID:   open.GetRef().GetEventId(),
		Since:     time.Unix(0, wire.GetSince()),
		ChildID:   open.GetChild(),
		State:     ActivityState(wire.GetState()),
		Failed:    int(attempt.GetFailed()),
		LastError: payloads.DecodeError(attempt.GetLastError()),
		heartbeat: attempt.GetHeartbeat(),
		payloads:  payloads,
	}
	if at := open.GetFireAt(); at != 0 {
		o.FireAt = time.Unix(0, at)
	}
	if at := attempt.GetNextAt(); at != 0 && o.State == ActivityPausing {
		o.NextAttempt = time.Unix(0, at)
	}
	return o
}

func (g *group) pending(ctx context.Context, p *actors.Partition, instance string) (*clusterpb.Response, error) {
	if err := g.barrier(ctx); err != nil {
		return nil, err
	}
	if _, ok := g.journal.Instance(instance); !ok {
		return nil, ErrNotFound
	}
	result := new(clusterpb.PendingResult)
	for open := range g.journal.OpenOf(instance) {
		event, err := g.journal.Event(open.Ref.Instance, open.Ref.Execution, open.Ref.EventId)
		if err != nil {
			return nil, err
		}
		result.Operations = append(result.Operations, &clusterpb.OpenOperation{
			Operation: open,
			Name:      scheduledName(event),
			Since:     event.Timestamp,
			State:     string(p.Activity(open.Ref)),
		})
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Pending{Pending: result}}, nil
}

func scheduledName(event *journalpb.Event) string {
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		return body.ActivityScheduled.Name
	case *journalpb.Event_ExternalSubscribed:
		return body.ExternalSubscribed.Name
	case *journalpb.Event_SubOrchestrationScheduled:
		return body.SubOrchestrationScheduled.Name
	}
	return ""
}
