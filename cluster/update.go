package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// ErrUpdateGivenUp: the update was accepted, and its instance has ended or
// continued as new before it was done. What it did until then is done.
var ErrUpdateGivenUp = actors.ErrUpdateGivenUp

// A RefusedError reports that an instance has refused an update. Nothing was
// recorded. Its field Err is what the validation returned.
type RefusedError = actors.RefusedError

// An UpdateOption changes how an update is asked for.
type UpdateOption func(*clusterpb.UpdateRequest)

// UpdateID names the update: it is carried out once, and every call with that ID
// gets the result, for as long as the ID is known; [EventID] says how long that is.
// IDs are at most 128 bytes; those of events, updates and [SendOrStart] must differ.
// Defaults to a random one for each call.
func UpdateID(id string) UpdateOption {
	return func(r *clusterpb.UpdateRequest) { r.RequestId = id }
}

// CallUpdate has a running instance carry out an update and returns its result,
// when that is committed. The instance validates the input first; what it
// refuses leaves no trace. An update that was accepted is carried out once,
// whatever happens to the nodes meanwhile, or the caller is told that the outcome is
// unknown ([UnavailableError]). ctx alone bounds how long its result
// is waited for. When it ends after the update was accepted, the error is an
// [*UnavailableError] that says so, and the update goes on without the caller: the
// same call with the same [UpdateID] waits for its result again.
//
// Errors: what the instance's function returned, as decoded from its record; a
// [*RefusedError] with what the validation returned; a [*replay.NoUpdateError]
// when there is no handler; [ErrUpdateGivenUp]; [ErrRequestID]; [ErrNotFound];
// [ErrEnded]; [ErrBusy]; [*InputError]; [*UnavailableError].
func CallUpdate[I, O any](ctx context.Context, client *Client, id string, update replay.UpdateHandle[I, O], input I, options ...UpdateOption) (O, error) {
	var output O
	payload, err := client.encode(replay.PayloadOf{Kind: "update", Name: update.Name(), Part: "input"}, input)
	if err == nil {
		payload, err = client.update(ctx, id, &clusterpb.UpdateRequest{Name: update.Name(), Input: payload}, options)
	}
	if err == nil {
		err = client.payloads.Decode(replay.PayloadOf{Kind: "update", Name: update.Name(), Part: "output"}, payload, &output)
	}
	if err != nil {
		return output, fmt.Errorf("update %q of %s: %w", update.Name(), id, err)
	}
	return output, nil
}

// update has an update accepted, then waits for what is recorded of its end on
// this node's replica, which needs no leader.
func (c *Client) update(ctx context.Context, id string, r *clusterpb.UpdateRequest, options []UpdateOption) (*journalpb.Payload, error) {
	if err := firstError(apply(r, options), checkID(id), checkUpdate(r)); err != nil {
		return nil, err
	}
	request := &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Update{Update: r}}
	r.RequestId, request.Again = requestIDOr(r.RequestId)
	response, err := c.call(ctx, request)
	if err != nil {
		return nil, err
	}
	result := response.GetUpdate()
	if result.GetRefusal() != nil {
		return nil, refusal(r.Name, c.payloads.DecodeError(result.GetRefusal()))
	}
	return c.updated(ctx, id, Position{result.GetExecution(), result.GetEventId()}, r.RequestId)
}

// refusal tells an update without a handler from one that was refused.
func refusal(name string, err error) error {
	var none *replay.NoQueryError
	if errors.As(err, &none) && strings.HasPrefix(none.Name, replay.UpdatePrefix) {
		return &replay.NoUpdateError{Name: name}
	}
	return &RefusedError{Err: err}
}

// updated waits for the end of an update that was accepted at a position.
func (c *Client) updated(ctx context.Context, id string, accepted Position, requestID string) (output *journalpb.Payload, err error) {
	outcome := ErrUpdateGivenUp
	err = c.access.follow(ctx, id, accepted, func(r Recorded) bool {
		switch body := r.Event.Body.(type) {
		case *journalpb.Event_SideEffectRecorded:
			if record := body.SideEffectRecorded; record.Label == replay.UpdatePrefix+requestID {
				output, outcome = record.Value, c.payloads.DecodeError(record.Error)
				return false
			}
		case *journalpb.Event_OrchestrationContinuedAsNew:
			// One that has not begun waits in the inbox of the next execution.
			return carried(body.OrchestrationContinuedAsNew.Inbox, requestID)
		}
		return true
	})
	if err != nil && err != errEnough {
		return nil, &UnavailableError{Err: fmt.Errorf("the update was accepted, and its result is not known yet: %w", err)}
	}
	return output, outcome
}

func carried(inbox []*journalpb.ExternalEvent, requestID string) bool {
	for _, event := range inbox {
		if event.RequestId == requestID {
			return true
		}
	}
	return false
}

// update validates an update and has it recorded, on the node that leads. The
// answer is where it stands.
func (g *group) update(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.UpdateRequest) (*clusterpb.Response, error) {
	if err := g.barrier(ctx); err != nil {
		return nil, err
	}
	known, ok := g.journal.Instance(request.Instance)
	if !ok {
		return nil, ErrNotFound
	}
	name := replay.UpdatePrefix + r.Name
	validated := send(p, request.Instance, actors.Message{Query: &actors.Query{Name: name, Input: r.Input}})
	validation, err := awaitAnswer(ctx, validated)
	switch {
	case err != nil:
		return nil, err
	case validation.Err != nil:
		return g.updateRefused(ctx, request, r, validation.Err)
	}
	event := externalEvent(&clusterpb.SendRequest{Name: name, Data: r.Input, RequestId: r.RequestId})
	answer, found, err := g.deliver(p, request, r.RequestId, event).await(ctx)
	switch {
	case err != nil:
		return g.updateEarlier(ctx, request, r, err)
	case answer.Dropped: // because it was recorded before
		return g.updateFound(ctx, request, r, found)
	}
	return g.updateFound(ctx, request, r, Position{known.Execution, known.LastEventId + 1})
}

// updateRefused answers an update that the instance's validation has refused, or that never
// came to it.
func (g *group) updateRefused(ctx context.Context, request *clusterpb.Request, r *clusterpb.UpdateRequest, refusal error) (*clusterpb.Response, error) {
	if request.Again {
		response, err := g.updateFound(ctx, request, r, Position{})
		if !errors.Is(err, ErrNotFound) {
			return response, err
		}
	}
	if request.FirstIndex != nil {
		if err := g.sameRun(request.Instance, r.RequestId, request.GetFirstIndex()); err != nil {
			return nil, err
		}
	}
	if isOurs(refusal) {
		return nil, refusal
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Update{Update: &clusterpb.UpdateResult{Refusal: replay.EncodeError(refusal)}}}, nil
}

// updateEarlier answers an update that was not recorded now, because of err. A
// repetition may have been before: it is not to be refused because of what it
// did itself.
func (g *group) updateEarlier(ctx context.Context, request *clusterpb.Request, r *clusterpb.UpdateRequest, err error) (*clusterpb.Response, error) {
	if !request.Again {
		return nil, err
	}
	response, findErr := g.updateFound(ctx, request, r, Position{})
	if errors.Is(findErr, ErrNotFound) {
		return nil, err
	}
	return response, findErr
}

// updateFound answers with the place of an update in the histories. The error
// is [ErrNotFound] when it is not there: the instance was purged, or it never was.
func (g *group) updateFound(ctx context.Context, request *clusterpb.Request, r *clusterpb.UpdateRequest, from Position) (*clusterpb.Response, error) {
	at, event, err := g.recorded(ctx, request.Instance, from, r.RequestId)
	switch {
	case err != nil:
		return nil, err
	case event == nil:
		return nil, ErrNotFound
	case event.GetExternalEvent().GetName() != replay.UpdatePrefix+r.Name:
		return nil, ErrRequestID
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Update{Update: &clusterpb.UpdateResult{Execution: at.Execution, EventId: at.EventID}}}, nil
}
