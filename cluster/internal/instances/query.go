package instances

import (
	"context"
	"errors"
	"time"

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

// query asks the instance, or replays it if it has ended.
func query(ctx context.Context, p *actors.Partition, instance string, r *clusterpb.QueryRequest) (actors.Answer, error) {
	q := &actors.Query{Name: r.Name, Input: r.Input}
	for {
		answer, err := awaitQuery(ctx, p, instance, q)
		if err != nil || !errors.Is(answer.Err, actors.ErrEnded) || !q.IsAnsweredAfterEnd() {
			return answer, err
		}
		if answer, ended := p.QueryEnded(ctx, instance, q); ended {
			if ctx.Err() != nil && answer.Err == ctx.Err() {
				return actors.Answer{}, answer.Err
			}
			return answer, nil
		}
		// A new run has begun.
	}
}

// hungPollInterval is how often a query for the stack checks whether the instance is hung.
const hungPollInterval = 100 * time.Millisecond

// awaitQuery delivers a query and waits for the answer. A hung instance cannot answer a query for
// its stack, so QueryHungStack does.
func awaitQuery(ctx context.Context, p *actors.Partition, instance string, q *actors.Query) (actors.Answer, error) {
	if q.Name != engine.StackQuery {
		return awaitAnswer(ctx, Deliver(p, instance, actors.Message{Query: q}))
	}
	if answer, hung := p.QueryHungStack(instance); hung {
		return answer, nil // a query that is delivered would wait in the inbox
	}
	answers := Deliver(p, instance, actors.Message{Query: q})
	poll := time.NewTicker(hungPollInterval)
	defer poll.Stop()
	for {
		select {
		case answer := <-answers:
			return answer, nil
		case <-poll.C:
			if answer, hung := p.QueryHungStack(instance); hung {
				return answer, nil
			}
		case <-ctx.Done():
			return actors.Answer{}, ctx.Err()
		}
	}
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
