package instances

import (
	"context"
	"errors"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// IsInInbox reports whether an inbox holds the event with a request ID.
func IsInInbox(inbox []*journalpb.ExternalEvent, requestID string) bool {
	for _, event := range inbox {
		if event.RequestId == requestID {
			return true
		}
	}
	return false
}

// Update validates an update and records it, on the leader. The response holds its position.
func (i *Inputs) Update(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.UpdateRequest) (*clusterpb.Response, error) {
	if err := i.checkHeadersProtocol(r); err != nil {
		return nil, err
	}
	if err := i.Barrier(ctx); err != nil {
		return nil, err
	}
	known, ok := i.Journal.Instance(request.Instance)
	if !ok {
		return nil, actors.ErrNotFound
	}
	if r.FirstExecution != 0 && r.FirstExecution != known.FirstExecution {
		return i.findEarlierUpdate(ctx, known, r)
	}
	name := engine.UpdatePrefix + r.Name
	validated := Deliver(p, request.Instance, actors.Message{Query: &actors.Query{Name: name, Input: r.Input}})
	validation, err := awaitAnswer(ctx, validated)
	switch {
	case err != nil:
		return nil, err
	case validation.Err != nil:
		return i.handleRejectedUpdate(ctx, request, r, validation.Err)
	}
	event := ExternalEvent(&clusterpb.SendRequest{Name: name, Data: r.Input, RequestId: r.RequestId, Headers: r.Headers})
	event.Event.Origin = originOf(request, "")
	answer, found, err := i.repetitions.deliver(p, request, r.RequestId, event).await(ctx)
	switch {
	case err != nil:
		return i.handleUnrecordedUpdate(ctx, request, r, err)
	case answer.Dropped: // the update was recorded before
		return i.findUpdate(ctx, request, r, found)
	}
	return i.findUpdate(ctx, request, r, Position{known.Execution, known.LastEventId + 1})
}

// handleRejectedUpdate answers an update that the instance's validation has rejected, or that the
// validation could not examine.
func (i *Inputs) handleRejectedUpdate(ctx context.Context, request *clusterpb.Request, r *clusterpb.UpdateRequest, rejection error) (*clusterpb.Response, error) {
	if request.Retried {
		response, err := i.findUpdate(ctx, request, r, Position{})
		if !errors.Is(err, actors.ErrNotFound) {
			return response, err
		}
	}
	if request.FirstIndex != nil {
		if err := i.repetitions.CheckSameRun(request.Instance, r.RequestId, request.GetFirstIndex()); err != nil {
			return nil, err
		}
	}
	if isPartitionError(rejection) {
		return nil, rejection
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Update{Update: &clusterpb.UpdateResult{Rejection: engine.EncodeError(rejection)}}}, nil
}

// handleUnrecordedUpdate answers an update that was not recorded now, because of err. A retry may
// find the update recorded by an earlier attempt, and must not fail because of that attempt's
// effects.
func (i *Inputs) handleUnrecordedUpdate(ctx context.Context, request *clusterpb.Request, r *clusterpb.UpdateRequest, err error) (*clusterpb.Response, error) {
	if !request.Retried {
		return nil, err
	}
	response, findErr := i.findUpdate(ctx, request, r, Position{})
	if errors.Is(findErr, actors.ErrNotFound) {
		return nil, err
	}
	return response, findErr
}

// findEarlierUpdate returns the position of an update in a run that was followed by another one
// under the ID. The error is [actors.ErrEnded] if it is not there: the run takes no more updates.
func (i *Inputs) findEarlierUpdate(ctx context.Context, latest *journalpb.Instance, r *clusterpb.UpdateRequest) (*clusterpb.Response, error) {
	for execution := r.FirstExecution; execution < latest.FirstExecution; execution++ {
		for event, err := range i.Journal.Events(latest.Instance, execution, 1) {
			switch {
			case IsNotFound(err):
				return nil, actors.ErrNotFound // it was purged
			case err != nil:
				return nil, err
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case event.InputRequestID() == r.RequestId:
				return updateResponse(r, Position{execution, event.EventId}, event)
			case journalpb.IsTerminal(event.TypeNumber()) && event.GetOrchestrationContinuedAsNew() == nil:
				return nil, actors.ErrEnded
			}
		}
	}
	return nil, actors.ErrNotFound // the ID was purged and used again
}

// findUpdate returns the position of an update in the histories. The error is [actors.ErrNotFound]
// if it is not there: the instance was purged, or the update was never recorded.
func (i *Inputs) findUpdate(ctx context.Context, request *clusterpb.Request, r *clusterpb.UpdateRequest, from Position) (*clusterpb.Response, error) {
	at, event, err := i.repetitions.FindInput(ctx, request.Instance, from, r.RequestId)
	switch {
	case err != nil:
		return nil, err
	case event == nil:
		return nil, actors.ErrNotFound
	}
	return updateResponse(r, at, event)
}

// updateResponse returns the position of the input with the request ID of an update, if it is that
// update.
func updateResponse(r *clusterpb.UpdateRequest, at Position, recorded *journalpb.Event) (*clusterpb.Response, error) {
	if recorded.GetExternalEvent().GetName() != engine.UpdatePrefix+r.Name {
		return nil, actors.ErrRequestIDReused
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Update{Update: &clusterpb.UpdateResult{Execution: at.Execution, EventId: at.EventID}}}, nil
}
