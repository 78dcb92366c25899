package instances

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Complete completes or fails an attempt from outside. It verifies a signed token first.
func (i *Inputs) Complete(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.CompleteRequest) (*clusterpb.Response, error) {
	instance := request.Instance
	ref, attempt, err := i.attemptOf(ctx, instance, r)
	if err != nil {
		return nil, err
	}
	if err := i.Barrier(ctx); err != nil {
		return nil, err
	}
	scheduled, err := i.Journal.Event(instance, ref.Execution, ref.EventId)
	if err == nil { // otherwise the completion is answered below
		err = checkOperable(scheduled)
	}
	if err != nil && !IsNotFound(err) {
		return nil, err
	}
	stalls, cancel := p.WatchStalls(instance)
	defer cancel()
	if err := checkNotStalled(p, ref); err != nil {
		return nil, err
	}
	outcomes := make(chan error, 1)
	p.CompleteActivity(activity.Completion{Ref: ref, Attempt: attempt, Result: r.Result, Error: r.Error, Origin: originOf(request, request.Reason)},
		func(err error) { outcomes <- err })
	if err := awaitCompletion(ctx, p, ref, outcomes, stalls); err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Complete{Complete: new(clusterpb.CompleteResult)}}, nil
}

// attemptOf returns the activity and the number of the attempt that a request is for. Of a request
// with a signed token nothing is used but what was signed.
func (i *Inputs) attemptOf(ctx context.Context, instance string, r *clusterpb.CompleteRequest) (*journalpb.OperationRef, int, error) {
	if r.SignedToken == "" {
		return &journalpb.OperationRef{Instance: instance, Incarnation: r.Incarnation, Execution: r.Execution, EventId: r.EventId}, int(r.Attempt), nil
	}
	a, err := i.VerifyToken(ctx, r.SignedToken)
	switch {
	case errors.As(err, new(*replay.TokenError)), errors.Is(err, engine.ErrTokenExpired), errors.Is(err, journal.ErrProtocol):
		return nil, 0, err
	case err != nil: // whatever the reason, nothing was done
		return nil, 0, fmt.Errorf("%w: cannot verify the token: %v", journal.ErrNotLeader, err)
	case a.Instance != instance:
		return nil, 0, &replay.InvalidError{Field: "instance ID", Reason: "is not that of the signed token"}
	}
	return &journalpb.OperationRef{Instance: a.Instance, Incarnation: a.Incarnation, Execution: a.Execution, EventId: a.EventID}, a.Number, nil
}

// awaitCompletion returns the outcome of a completion, or an error if the instance stalls first.
// The completion itself may stall it.
func awaitCompletion(ctx context.Context, p *actors.Partition, ref *journalpb.OperationRef, outcomes <-chan error, stalls <-chan struct{}) error {
	for {
		select {
		case err := <-outcomes: // may have arrived already
			return err
		default:
		}
		if err := checkNotStalled(p, ref); err != nil {
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

// checkNotStalled returns an error if an activity has ended but its instance cannot record the end,
// because the instance is stalled or waits for code.
func checkNotStalled(p *actors.Partition, ref *journalpb.OperationRef) error {
	reason := p.StallReason(ref.Instance)
	if reason == nil || p.AttemptsOf(ref).State != activity.Ending {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrStalled, withoutPayloads(reason))
}

// withoutPayloads returns why an instance is stalled, without payloads: a caller who may act on it
// may lack the right to read them.
func withoutPayloads(reason error) error {
	if mismatch, ok := reason.(*replay.Mismatch); ok {
		return mismatch.WithoutPayloads()
	}
	return reason
}
