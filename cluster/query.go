package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Query calls a query handler of a running instance and returns its answer. The handler sees the
// state of the code at some moment during the call. Nothing is recorded.
//
// Errors: [ErrNotFound]; [ErrEnded]; the error that the handler returned; a [*replay.NoQueryError]
// if there is no such handler; [*InputError]; [*UnavailableError]. A suspended instance answers
// with the state that it has reached. One that is stalled or waits for code answers when it
// continues.
func Query[I, O any](ctx context.Context, client *Client, id string, query replay.QueryHandle[I, O], input I) (O, error) {
	var output O
	payload, err := client.encode(replay.PayloadInfo{Kind: "query", Name: query.Name(), Part: "input"}, input)
	if err = firstError(err, checkID(id), checkName("query name", query.Name())); err != nil {
		return output, fmt.Errorf("query %q of %s: %w", query.Name(), id, err)
	}
	response, err := client.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Query{
		Query: &clusterpb.QueryRequest{Name: query.Name(), Input: payload},
	}})
	if err == nil && response.GetQuery().GetError() != nil {
		err = client.converter.DecodeError(response.GetQuery().GetError())
	}
	if err == nil {
		err = client.converter.Decode(replay.PayloadInfo{Kind: "query", Name: query.Name(), Part: "output"}, response.GetQuery().GetOutput(), &output)
	}
	if err != nil {
		return output, fmt.Errorf("query %q of %s: %w", query.Name(), id, err)
	}
	return output, nil
}

func (g *partition) query(ctx context.Context, p *actors.Partition, instance string, r *clusterpb.QueryRequest) (*clusterpb.Response, error) {
	if err := g.barrier(ctx); err != nil {
		return nil, err
	}
	answer, err := awaitAnswer(ctx, deliverToInstance(p, instance, actors.Message{Query: &actors.Query{Name: r.Name, Input: r.Input}}))
	result := &clusterpb.QueryResult{Output: answer.Output}
	switch {
	case err != nil:
		return nil, err
	case answer.Err != nil && isPartitionError(answer.Err):
		return nil, answer.Err
	case answer.Err != nil:
		result.Error = replay.EncodeError(answer.Err)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Query{Query: result}}, nil
}

// isPartitionError reports whether an error comes from the partition and not from the instance's
// code.
func isPartitionError(err error) bool {
	for _, known := range []error{actors.ErrNotFound, actors.ErrEnded, actors.ErrStopped, actors.ErrBusy} {
		if errors.Is(err, known) {
			return true
		}
	}
	return errors.As(err, new(*actors.FaultError))
}
