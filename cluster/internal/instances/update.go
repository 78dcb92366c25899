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
	update := updateMessage(r)
	update.Validation, update.Event.Origin = engine.ValidateFirst, originOf(request, request.Reason)
	answer, found, err := i.repetitions.deliver(p, request, r.RequestId, update).await(ctx)
	var rejected *actors.RejectedError
	switch {
	case errors.As(err, &rejected):
		return i.handleRejectedUpdate(ctx, request, r, rejected.Err)
	case err != nil && isPartitionError(err):
		return i.handleRejectedUpdate(ctx, request, r, err)
	case err != nil:
		return i.handleUnrecordedUpdate(ctx, request, r, err)
	case answer.Dropped: // the update was recorded before
		return i.findUpdate(ctx, request, r, found)
	}
	return i.findUpdate(ctx, request, r, Position{known.Execution, known.LastEventId + 1})
}

// updateMessage returns the message of an update.
func updateMessage(r *clusterpb.UpdateRequest) actors.Message {
	return ExternalEvent(&clusterpb.SendRequest{Name: engine.UpdatePrefix + r.Name, Data: r.Input, RequestId: r.RequestId, Headers: r.Headers})
}

// updateOfStart returns the update that a start begins with; nil if there is none.
func updateOfStart(r *clusterpb.StartRequest) *journalpb.ExternalEvent {
	if r.BeginWith == nil {
		return nil
	}
	update := r.BeginWith
	return &journalpb.ExternalEvent{Name: engine.UpdatePrefix + update.Name, Data: update.Input, RequestId: r.RequestId, Headers: update.Headers}
}

// resultOfStart returns what became of the update that a run has begun with; nil if the caller is
// to send the update.
func resultOfStart(a actors.Answer) *clusterpb.UpdateResult {
	switch {
	case a.UpdateRecorded:
		return &clusterpb.UpdateResult{Execution: a.FirstExecution, EventId: 1}
	case a.UpdateErr != nil:
		return &clusterpb.UpdateResult{Rejection: engine.EncodeError(a.UpdateErr)}
	}
	return nil
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
			}
			if input := event.InputWithID(r.RequestId); input != nil {
				return updateResponse(r, Position{execution, event.EventId}, input)
			}
			if journalpb.IsTerminal(event.TypeNumber()) && event.GetOrchestrationContinuedAsNew() == nil {
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
