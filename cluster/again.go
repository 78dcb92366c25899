package cluster

import (
	"context"
	"errors"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A call that is repeated because its answer was lost has to get the answer that
// was lost, also when the instance has gone on since. These functions look for
// the traces of an earlier attempt, on the node that leads.

// startsMax bounds how many executions are searched for an earlier start.
const startsMax = 1000

// begunBy returns the run that a start which may be a repetition has begun before;
// one of execution 0 if there is none. A start that carries an event as well goes on
// to the latest run, where that is looked for.
func (g *group) begunBy(request *clusterpb.Request, start *clusterpb.StartRequest) runRef {
	if !request.Again {
		return runRef{}
	}
	known, ok := g.journal.Instance(request.Instance)
	if !ok {
		return runRef{}
	}
	if known.RequestId == start.RequestId {
		if start.Send != nil {
			return runRef{}
		}
		return runOf(known)
	}
	oldest := max(known.FirstExecution, startsMax+1) - startsMax
	for execution := oldest; execution < known.FirstExecution; execution++ {
		event, err := g.journal.Event(request.Instance, execution, 1)
		if started := event.GetOrchestrationStarted(); err == nil && started.GetRequestId() == start.RequestId {
			return runRef{execution, started.GetIncarnation()}
		}
	}
	return runRef{}
}

// unlessRecorded passes an error on, unless it says that the instance has ended,
// and the input that may be a repetition was recorded before that.
func (g *group) unlessRecorded(ctx context.Context, request *clusterpb.Request, requestID string, err error) error {
	if !errors.Is(err, ErrEnded) || !request.Again {
		return err
	}
	_, event, findErr := g.recorded(ctx, request.Instance, Position{}, requestID)
	switch {
	case findErr != nil:
		return findErr
	case event != nil:
		return nil
	}
	return err
}

// unlessTerminated is unlessRecorded for a termination, which has no request ID.
func (g *group) unlessTerminated(request *clusterpb.Request, reason string, err error) error {
	if !errors.Is(err, ErrEnded) || !request.Again {
		return err
	}
	known, ok := g.journal.Instance(request.Instance)
	if !ok {
		return err
	}
	last, readErr := g.journal.Event(request.Instance, known.Execution, known.LastEventId)
	if terminated := last.GetOrchestrationTerminated(); readErr == nil && terminated != nil && terminated.Reason == reason {
		return nil
	}
	return err
}

// recorded finds the input with a request ID in the latest run of an instance,
// from a position on; nil if there is none. A run may be long: the search ends
// with ctx.
func (g *group) recorded(ctx context.Context, instance string, from Position, requestID string) (Position, *journalpb.Event, error) {
	known, ok := g.journal.Instance(instance)
	if !ok {
		return Position{}, nil, ErrNotFound
	}
	if from.Execution < known.FirstExecution {
		from = Position{Execution: known.FirstExecution}
	}
	for execution := from.Execution; execution <= known.Execution; execution++ {
		for event, err := range g.journal.Events(instance, execution, from.EventID) {
			switch {
			case ctx.Err() != nil:
				return Position{}, nil, ctx.Err()
			case err != nil:
				return Position{}, nil, err
			case requestIDOf(event) == requestID:
				return Position{execution, event.EventId}, event, nil
			}
		}
		from.EventID = 1
	}
	return Position{}, nil, nil
}

// requestIDOf returns the request ID of an input, "" if it has none.
func requestIDOf(event *journalpb.Event) string {
	switch body := event.Body.(type) {
	case *journalpb.Event_ExternalEvent:
		return body.ExternalEvent.RequestId
	case *journalpb.Event_OrchestrationCancelRequested:
		return body.OrchestrationCancelRequested.RequestId
	case *journalpb.Event_OrchestrationSuspended:
		return body.OrchestrationSuspended.RequestId
	case *journalpb.Event_OrchestrationResumed:
		return body.OrchestrationResumed.RequestId
	}
	return ""
}
