package instances

import (
	"context"
	"errors"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Query runs a query on the live instance, on the leader.
func (re *Reads) Query(ctx context.Context, p *actors.Partition, instance string, r *clusterpb.QueryRequest) (*clusterpb.Response, error) {
	if err := re.Barrier(ctx); err != nil {
		return nil, err
	}
	answer, err := query(ctx, p, instance, r)
	result := &clusterpb.QueryResult{Output: answer.Output}
	switch {
	case err != nil:
		return nil, err
	case answer.Err != nil && isPartitionError(answer.Err):
		return nil, answer.Err
	case answer.Err != nil:
		result.Error = engine.EncodeError(answer.Err)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Query{Query: result}}, nil
}

func query(ctx context.Context, p *actors.Partition, instance string, r *clusterpb.QueryRequest) (actors.Answer, error) {
	if r.Name == engine.StackQuery {
		if answer, hung := p.QueryHungStack(instance); hung {
			return answer, nil
		}
	}
	return awaitAnswer(ctx, Deliver(p, instance, actors.Message{Query: &actors.Query{Name: r.Name, Input: r.Input}}))
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
