package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
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

// sentTo returns the run that has ended and has recorded the event of a start which is
// repeated: the event does not begin another run. One of execution 0 if there is none.
func (g *group) sentTo(ctx context.Context, request *clusterpb.Request, event *clusterpb.SendRequest) (runRef, error) {
	known, ok := g.journal.Instance(request.Instance)
	if request.FirstIndex == nil || event == nil || !ok || known.Status == journalpb.Status_STATUS_RUNNING {
		return runRef{}, nil
	}
	found, _, err := g.recordedSince(ctx, request.Instance, event.RequestId, request.GetFirstIndex())
	if found == (Position{}) || err != nil {
		if errors.Is(err, actors.ErrForgotten) {
			err = nil // a start that is repeated after a purge begins anew
		}
		return runRef{}, err
	}
	return runOf(known), nil
}

// unlessForgotten passes an error on, unless it says that there is no instance for an input
// that is repeated: an earlier attempt may have been recorded before a purge.
func unlessForgotten(request *clusterpb.Request, err error) error {
	if request.FirstIndex == nil || !errors.Is(err, ErrNotFound) {
		return err
	}
	switch request.Call.(type) {
	case *clusterpb.Request_Send, *clusterpb.Request_Signal, *clusterpb.Request_Update, *clusterpb.Request_Complete:
		return fmt.Errorf("%w: %w", actors.ErrForgotten, err)
	}
	return err
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
	case request.FirstIndex != nil:
		return firstError(g.sameRun(request.Instance, requestID, request.GetFirstIndex()), err)
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

// An input is a message with a request ID on its way to an instance, which records it once.
type input struct {
	group     *group
	partition *actors.Partition
	request   *clusterpb.Request
	requestID string
	message   actors.Message
	answer    <-chan actors.Answer
}

// deliver gives an input to an instance. What a call that is repeated brings says so.
func (g *group) deliver(p *actors.Partition, request *clusterpb.Request, requestID string, m actors.Message) *input {
	m.Repeated, m.FirstIndex = request.FirstIndex != nil, request.GetFirstIndex()
	return &input{g, p, request, requestID, m, send(p, request.Instance, m)}
}

// await returns the answer, and where the input was found if an earlier attempt of the call
// has brought it so long ago that the instance does not know it any more. It was not brought
// before if it stands nowhere: then it is delivered again.
func (in *input) await(ctx context.Context) (actors.Answer, Position, error) {
	for {
		answer, err := await(ctx, in.answer)
		if !errors.Is(err, actors.ErrForgotten) {
			return answer, Position{}, err
		}
		found, index, err := in.group.recordedSince(ctx, in.request.Instance, in.requestID, in.message.FirstIndex)
		switch {
		case err != nil:
			return answer, Position{}, err
		case found != Position{}:
			return actors.Answer{Dropped: true}, found, nil
		}
		in.message.FirstIndex = index
		in.answer = send(in.partition, in.request.Instance, in.message)
	}
}

// recordedSince looks for the input with a request ID which was recorded, if it was, at an
// index of the journal larger than first. If it was not, up to another index, it returns
// that. The error is [actors.ErrForgotten] if a run before this one may have recorded it.
func (g *group) recordedSince(ctx context.Context, instance, requestID string, first uint64) (Position, uint64, error) {
	if err := g.barrier(ctx); err != nil {
		return Position{}, 0, fmt.Errorf("%w: %v", journal.ErrNotLeader, err)
	}
	index := g.journal.AppliedIndex() // before the reads, which show at least that
	known, ok := g.journal.Instance(instance)
	if !ok {
		return Position{}, 0, actors.ErrForgotten
	}
	for execution := known.Execution; execution >= known.FirstExecution; execution-- {
		at, started, err := g.recordedIn(ctx, instance, execution, requestID)
		switch {
		case isNotFound(err), err == nil && started.Incarnation != known.Incarnation:
			return Position{}, 0, actors.ErrForgotten // purged meanwhile
		case err != nil || at != Position{}:
			return at, 0, err
		case started.RequestHorizon == 0 || started.RequestHorizon > first:
		case !slices.Contains(started.RequestIds, requestID) && !carried(started.Inbox, requestID):
			return Position{}, index, nil // what came before that was not recorded since
		}
	}
	if err := g.sameRun(instance, requestID, first); err != nil {
		return Position{}, 0, err
	}
	return Position{}, index, nil
}

// recordedIn looks for the input with a request ID in one execution. It returns its first
// event, too.
func (g *group) recordedIn(ctx context.Context, instance string, execution uint64, requestID string) (at Position, started *journalpb.OrchestrationStarted, err error) {
	for event, err := range g.journal.Events(instance, execution, 1) {
		switch {
		case err != nil:
			return Position{}, nil, err
		case ctx.Err() != nil:
			return Position{}, nil, ctx.Err()
		case event.EventId == 1:
			started = event.GetOrchestrationStarted()
		case requestIDOf(event) == requestID:
			return Position{execution, event.EventId}, started, nil
		}
	}
	return Position{}, started, nil
}

// sameRun returns [actors.ErrForgotten] if the latest run of an instance began after a call
// that is repeated was first sent, by another call: an earlier attempt may have reached a run
// before it, of which nothing may be left.
func (g *group) sameRun(instance, requestID string, first uint64) error {
	known, ok := g.journal.Instance(instance)
	if !ok {
		return nil
	}
	event, err := g.journal.Event(instance, known.FirstExecution, 1)
	if err != nil {
		return err
	}
	started := event.GetOrchestrationStarted()
	if started.RequestHorizon > first && (requestID == "" || started.RequestId != requestID) {
		return actors.ErrForgotten
	}
	return nil
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
