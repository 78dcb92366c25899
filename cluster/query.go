package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// Query calls a query handler of an instance and returns its answer. The handler sees the state of
// the code at some moment during the call. Nothing is recorded. A suspended instance answers with
// the state that it has reached. One that is stalled, hung or waits for code answers when it
// continues.
//
// An ended instance answers until it is purged, from the final state of its last execution. The
// leader replays that execution for each query: one query of an instance at a time, at most 16 at
// once per node; further queries wait. A handler or deferred function that blocks holds its place
// until it returns, and the node logs that.
//
// Errors: [ErrNotFound]; the error that the handler returned; a [*replay.NotRegisteredError] if
// there is no such handler, or, for an ended instance, no such orchestration;
// [*replay.InvalidError]; [*UnavailableError]. If the code does not fit the history of an ended
// instance, the error says so.
func Query[I, O any](ctx context.Context, client *Client, id string, query replay.QueryHandle[I, O], input I) (O, error) {
	output, err := ask(ctx, client, id, query, input)
	if err != nil {
		return output, fmt.Errorf("query %q of %s: %w", query.Name(), id, err)
	}
	return output, nil
}

// ask implements Query. Its errors do not name the query and the instance.
func ask[I, O any](ctx context.Context, client *Client, id string, query replay.QueryHandle[I, O], input I) (output O, err error) {
	payload, err := client.encode(replay.PayloadInfo{Kind: "query", Name: query.Name(), Part: "input"}, input)
	if err = firstError(err, checkID(id), checkName("query name", query.Name())); err != nil {
		return output, err
	}
	response, err := client.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Query{
		Query: &clusterpb.QueryRequest{Name: query.Name(), Input: payload},
	}})
	if err != nil {
		return output, err
	}
	if failure := response.GetQuery().GetError(); failure != nil {
		return output, client.converter.DecodeError(failure)
	}
	info := replay.PayloadInfo{Kind: "query", Name: query.Name(), Part: "output"}
	err = client.converter.Decode(info, response.GetQuery().GetOutput(), &output)
	return output, err
}

// ReadKV returns a key-value map of an instance's latest run, also after its end, until it is
// purged. The map is empty if the run has set none of its keys. It is a consistent view. With
// [Stale] any node answers; there are no other options. Config.Authorize gets [ActionGet].
//
// Errors: [ErrNotFound], [*replay.PayloadError] if a value is not a T, [*replay.InvalidError],
// [*UnavailableError].
func ReadKV[T any](ctx context.Context, client *Client, id string, kv replay.KVHandle[T], options ...replay.Option) (map[string]T, error) {
	values, err := readValues(ctx, client, id, kv.Name(), options)
	if err != nil {
		return nil, fmt.Errorf("read key-value map %q of %s: %w", kv.Name(), id, err)
	}
	read, err := engine.DecodeValues[T](client.converter, values)
	if err != nil {
		return nil, fmt.Errorf("read key-value map of %s: %w", id, err)
	}
	return read, nil
}

// readValues returns the records of a key-value map.
func readValues(ctx context.Context, c *Client, id, kv string, options []replay.Option) ([]*journalpb.ValueSet, error) {
	if err := firstError(checkID(id), checkName("name of the key-value map", kv)); err != nil {
		return nil, err
	}
	response, err := c.read(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Values{Values: &clusterpb.ValuesRequest{Map: kv}}}, options)
	return response.GetValues().GetValues(), err
}

// Stack returns where each coroutine of a running instance waits, the body of the orchestration
// first. It calls no handler and records nothing; an instance that is not in memory is replayed
// first. The answer ends before the coroutine whose stack would exceed 512 KiB in total. For a hung
// instance (see [Hung]) it has one element, with the stack of the code that runs. A client needs
// the right to query the instance.
//
// Errors: as for [Query], [ErrEnded], and [ErrProtocol] from a leader of an earlier build. A
// stalled instance, or one that waits for code, answers when it continues. If the orchestration
// handles a query named "tenuto.stack", that handler answers instead.
func (c *Client) Stack(ctx context.Context, id string) ([]replay.Coroutine, error) {
	list, err := ask(ctx, c, id, replay.Query[any, []replay.Coroutine](engine.StackQuery), nil)
	var none *replay.NotRegisteredError
	if errors.As(err, &none) && none.Kind == "query" {
		err = ErrProtocol
	}
	if err != nil {
		return nil, fmt.Errorf("stack of %q: %w", id, err)
	}
	return list, nil
}

// ErrUpdateAborted: the update was accepted, but its instance ended or continued as new before the
// update was done. The effects so far remain.
var ErrUpdateAborted = actors.ErrUpdateAborted

// A RejectedError reports that an instance has rejected an update. Nothing was recorded. Its field
// Err is what the validation returned.
type RejectedError = actors.RejectedError

// CallUpdate executes an update on a running instance and returns its result when that is
// committed. The instance validates the input first; a rejected update is not recorded. An accepted
// update is executed once despite failures of nodes, or the error says that the outcome is unknown
// ([UnavailableError]). Only ctx bounds the wait for the result. If ctx ends after the update was
// accepted, the error is an [*UnavailableError] that says so, and the update continues. The same
// call with the same [RequestID] waits for its result again. There are no other options. The update
// has the headers of ctx.
//
// Errors: the error that the handler returned, decoded from its record; a [*RejectedError] with
// what the validation returned; a [*replay.NotRegisteredError] if there is no handler;
// [ErrUpdateAborted]; [ErrRequestIDReused]; [ErrNotFound]; [ErrEnded]; [ErrBusy];
// [*replay.InvalidError]; [*UnavailableError].
func CallUpdate[I, O any](ctx context.Context, client *Client, id string, update replay.UpdateHandle[I, O], input I, options ...replay.Option) (O, error) {
	payload, err := client.encode(replay.PayloadInfo{Kind: "update", Name: update.Name(), Part: "input"}, input)
	var chosen actors.InputOptions
	if err == nil {
		err = engine.ApplyOptions(options, &chosen, "an update")
	}
	if err != nil {
		var zero O
		return zero, fmt.Errorf("update %q of %s: %w", update.Name(), id, err)
	}
	requestID, again := requestIDOrNew(chosen.RequestID)
	return callUpdate[O](ctx, client, id, &clusterpb.UpdateRequest{Name: update.Name(), Input: payload, RequestId: requestID}, again, nil)
}

// callUpdate executes an update and decodes its result. again says that the request ID may have
// been used for the same update before. decided is what a start has answered for the update; nil
// for nothing.
func callUpdate[O any](ctx context.Context, c *Client, id string, r *clusterpb.UpdateRequest, again bool, decided *clusterpb.UpdateResult) (output O, err error) {
	payload, err := c.update(ctx, id, r, again, decided)
	if err == nil {
		err = c.converter.Decode(replay.PayloadInfo{Kind: "update", Name: r.Name, Part: "output"}, payload, &output)
	}
	if err != nil {
		return output, fmt.Errorf("update %q of %s: %w", r.Name, id, err)
	}
	return output, nil
}

// update sends an update to the leader, unless that has decided on it. When the update is accepted,
// it waits for the recorded result on a replica, which needs no leader.
func (c *Client) update(ctx context.Context, id string, r *clusterpb.UpdateRequest, again bool, decided *clusterpb.UpdateResult) (*journalpb.Payload, error) {
	request := &clusterpb.Request{Instance: id, Retried: again, Call: &clusterpb.Request_Update{Update: r}}
	if err := firstError(checkID(id), checkUpdate(r)); err != nil {
		return nil, err
	}
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	if len(c.options.interceptors) == 0 {
		return executeUpdate(ctx, c, request, decided)
	}
	return intercepted(ctx, &c.options, describeCall(request), func(ctx context.Context) (*journalpb.Payload, error) {
		return executeUpdate(ctx, c, request, decided)
	})
}

// executeUpdate implements update, without the interceptors.
func executeUpdate(ctx context.Context, c *Client, request *clusterpb.Request, decided *clusterpb.UpdateResult) (*journalpb.Payload, error) {
	r, result := request.GetUpdate(), decided
	if result == nil {
		response, err := sendCall(ctx, c, request)
		if err != nil {
			return nil, err
		}
		result = response.GetUpdate()
	}
	if result.GetRejection() != nil {
		return nil, rejectionError(r.Name, c.converter.DecodeError(result.GetRejection()))
	}
	return awaitUpdate(ctx, c, request.Instance, history.Position{Execution: result.GetExecution(), EventID: result.GetEventId()}, r.RequestId)
}

// rejectionError distinguishes an update without a handler from a rejected one.
func rejectionError(name string, err error) error {
	var none *replay.NotRegisteredError
	if errors.As(err, &none) && none.Kind == "query" && strings.HasPrefix(none.Name, engine.UpdatePrefix) {
		notHandled := &replay.NotRegisteredError{Kind: "update", Name: name}
		*notHandled.Host() = *none.Host()
		return notHandled
	}
	return &RejectedError{Err: err}
}

// awaitUpdate waits for the result of an update that was accepted at a position.
func awaitUpdate(ctx context.Context, c *Client, id string, accepted history.Position, requestID string) (output *journalpb.Payload, err error) {
	outcome := ErrUpdateAborted
	err = c.transport.follow(ctx, id, accepted, func(r recordedEvent) bool {
		switch body := r.message.Body.(type) {
		case *journalpb.Event_SideEffectRecorded:
			if record := body.SideEffectRecorded; record.Label == engine.UpdatePrefix+requestID {
				output, outcome = record.Value, c.converter.DecodeError(record.Error)
				return false
			}
		case *journalpb.Event_OrchestrationContinuedAsNew:
			// An update that has not begun waits in the inbox of the next execution.
			return instances.IsInInbox(body.OrchestrationContinuedAsNew.Inbox, requestID)
		}
		return true
	})
	if err != nil && err != errReaderStopped {
		return nil, &UnavailableError{Err: fmt.Errorf("the update was accepted, but its result is not known yet: %w", err)}
	}
	return output, outcome
}
