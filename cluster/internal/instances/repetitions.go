package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A retried call whose answer was lost must get the same answer, even if the instance has recorded
// more since. On the leader, the functions in this file look for what an earlier attempt recorded.

// A run identifies a run among those under the same ID.
type run struct {
	first       uint64 // its first execution
	incarnation uint64 // 0: none, or unknown
}

func runOf(known *journalpb.Instance) run {
	return run{known.GetFirstExecution(), known.GetIncarnation()}
}

// A Position is a place in the histories of an instance.
type Position struct{ Execution, EventID uint64 }

// repetitions finds what an earlier attempt of a call has recorded.
type repetitions struct{ Partition }

// startSearchMax bounds how many executions are searched for an earlier start.
const startSearchMax = 1000

// findStartedRun returns the run that an earlier attempt of this start has begun, or execution 0 if
// there is none. It also returns execution 0 if that run is the latest and the start carries an
// event: the run may lack the event.
func (r *repetitions) findStartedRun(request *clusterpb.Request, start *clusterpb.StartRequest) run {
	if !request.Retried {
		return run{}
	}
	known, ok := r.Journal.Instance(request.Instance)
	if !ok {
		return run{}
	}
	if known.RequestId == start.RequestId {
		if start.Send != nil {
			return run{}
		}
		return runOf(known)
	}
	return r.findRun(request.Instance, start.RequestId)
}

// findRun returns the run that a start or a copy with that request ID has begun, or execution 0 if
// there is none among the latest.
func (r *repetitions) findRun(instance, requestID string) run {
	known, ok := r.Journal.Instance(instance)
	switch {
	case !ok:
		return run{}
	case known.RequestId == requestID:
		return runOf(known)
	}
	oldest := max(known.FirstExecution, startSearchMax+1) - startSearchMax
	for execution := oldest; execution < known.FirstExecution; execution++ {
		event, err := r.Journal.Event(instance, execution, 1)
		if started := event.GetOrchestrationStarted(); err == nil && started.GetRequestId() == requestID {
			return run{execution, started.GetIncarnation()}
		}
	}
	return run{}
}

// findRunWithInput returns the run that has recorded the event or update of a retried start and has
// ended. The start then begins no other run. Otherwise findRunWithInput returns execution 0. It
// searches the latest run, and for an update also earlier ones. The event is searched for only by
// repetitions of this library, the update by all.
func (r *repetitions) findRunWithInput(ctx context.Context, request *clusterpb.Request, start *clusterpb.StartRequest) (run, error) {
	repeatsUpdate := start.Update && request.Retried
	if !repeatsUpdate && (request.FirstIndex == nil || start.Send == nil) {
		return run{}, nil
	}
	known, ok := r.Journal.Instance(request.Instance)
	if !ok {
		return run{}, nil
	}
	if repeatsUpdate {
		return r.findRunWithUpdate(ctx, known, start.RequestId)
	}
	if known.Status == journalpb.Status_STATUS_RUNNING {
		return run{}, nil
	}
	found, _, err := r.findInputSince(ctx, request.Instance, start.Send.RequestId, request.GetFirstIndex())
	if found == (Position{}) || err != nil {
		if errors.Is(err, actors.ErrForgotten) {
			err = nil // a retried start after a purge begins a new run
		}
		return run{}, err
	}
	return runOf(known), nil
}

// findRunWithUpdate returns the ended run that has recorded an update: the latest one, or one of
// the last startSearchMax executions before it. A running run recognizes the update itself.
func (r *repetitions) findRunWithUpdate(ctx context.Context, known *journalpb.Instance, requestID string) (run, error) {
	last := known.Execution
	if known.Status == journalpb.Status_STATUS_RUNNING {
		last = known.FirstExecution - 1
	}
	var found run
	for execution := max(known.FirstExecution, startSearchMax+1) - startSearchMax; execution <= last; execution++ {
		for event, err := range r.Journal.Events(known.Instance, execution, 1) {
			switch started := event.GetOrchestrationStarted(); {
			case ctx.Err() != nil:
				return run{}, ctx.Err()
			case IsNotFound(err): // it was purged
			case err != nil:
				return run{}, err
			case started != nil && (found.first == 0 || started.Incarnation != found.incarnation):
				found = run{execution, started.Incarnation}
			}
			if event.InputWithID(requestID) != nil {
				return found, nil
			}
		}
	}
	return run{}, nil
}

// WrapForgotten adds ErrForgotten to an error if a retried input finds no instance: an earlier
// attempt may have been recorded before a purge.
func WrapForgotten(request *clusterpb.Request, err error) error {
	if request.FirstIndex == nil || !errors.Is(err, actors.ErrNotFound) {
		return err
	}
	switch request.Call.(type) {
	case *clusterpb.Request_Send, *clusterpb.Request_Control, *clusterpb.Request_Update, *clusterpb.Request_Complete,
		*clusterpb.Request_Operate:
		return fmt.Errorf("%w: %w", actors.ErrForgotten, err)
	}
	return err
}

// ignoreIfRecorded returns nil instead of [actors.ErrEnded] if an earlier attempt of the input was
// recorded. It returns other errors unchanged.
func (r *repetitions) ignoreIfRecorded(ctx context.Context, request *clusterpb.Request, requestID string, err error) error {
	if !errors.Is(err, actors.ErrEnded) || !request.Retried {
		return err
	}
	if request.Incarnation != 0 {
		return r.ignoreIfRunRecorded(ctx, request, err, func(event *journalpb.Event) bool { return event.InputWithID(requestID) != nil })
	}
	_, event, findErr := r.FindInput(ctx, request.Instance, Position{}, requestID)
	switch {
	case findErr != nil:
		return findErr
	case event != nil:
		return nil
	case request.FirstIndex != nil:
		return cmp.Or(r.CheckSameRun(request.Instance, requestID, request.GetFirstIndex()), err)
	}
	return err
}

// ignoreIfTerminated is ignoreIfRecorded for a termination, which has no request ID.
func (r *repetitions) ignoreIfTerminated(ctx context.Context, request *clusterpb.Request, reason string, err error) error {
	if !errors.Is(err, actors.ErrEnded) || !request.Retried {
		return err
	}
	if request.Incarnation != 0 {
		return r.ignoreIfRunRecorded(ctx, request, err, func(event *journalpb.Event) bool {
			return event.GetOrchestrationTerminated() != nil && event.GetOrchestrationTerminated().Reason == reason
		})
	}
	known, ok := r.Journal.Instance(request.Instance)
	if !ok {
		return err
	}
	last, readErr := r.Journal.Event(request.Instance, known.Execution, known.LastEventId)
	if terminated := last.GetOrchestrationTerminated(); readErr == nil && terminated != nil && terminated.Reason == reason {
		return nil
	}
	return err
}

// checkRun returns an error if a request names a run that is not the latest one.
func (r *repetitions) checkRun(request *clusterpb.Request) error {
	if request.Incarnation == 0 {
		return nil
	}
	known, ok := r.Journal.Instance(request.Instance)
	switch {
	case !ok:
		return actors.ErrNotFound
	case known.Incarnation != request.Incarnation:
		return actors.ErrEnded
	}
	return nil
}

// ignoreIfRunRecorded returns nil instead of an error if the run that a request names has recorded
// a matching event. That run may be followed by others; it is searched for among the latest
// startSearchMax executions.
func (r *repetitions) ignoreIfRunRecorded(ctx context.Context, request *clusterpb.Request, err error, matches func(*journalpb.Event) bool) error {
	known, ok := r.Journal.Instance(request.Instance)
	if !ok {
		return err
	}
	found := false
	for execution := known.Execution; execution > max(known.Execution, startSearchMax)-startSearchMax; execution-- {
		first, readErr := r.Journal.Event(request.Instance, execution, 1)
		switch of := first.GetOrchestrationStarted().GetIncarnation() == request.Incarnation; {
		case IsNotFound(readErr), found && !of:
			return err
		case readErr != nil:
			return readErr
		case !of:
			continue
		}
		found = true
		for event, readErr := range r.Journal.Events(request.Instance, execution, 1) {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case readErr != nil:
				return readErr
			case matches(event):
				return nil
			}
		}
	}
	return err
}

// FindInput finds the input with a request ID in the latest run of an instance, or from a position
// on, which may be in an earlier run; nil if there is none. It ends early if ctx ends, because a
// run may be long.
func (r *repetitions) FindInput(ctx context.Context, instance string, from Position, requestID string) (Position, *journalpb.Event, error) {
	known, ok := r.Journal.Instance(instance)
	if !ok {
		return Position{}, nil, actors.ErrNotFound
	}
	if from == (Position{}) {
		from = Position{Execution: known.FirstExecution}
	}
	for execution := from.Execution; execution <= known.Execution; execution++ {
		for event, err := range r.Journal.Events(instance, execution, from.EventID) {
			switch {
			case ctx.Err() != nil:
				return Position{}, nil, ctx.Err()
			case err != nil:
				return Position{}, nil, err
			}
			if input := event.InputWithID(requestID); input != nil {
				return Position{execution, event.EventId}, input, nil
			}
		}
		from.EventID = 1
	}
	return Position{}, nil, nil
}

// An input is a message with a request ID in flight to an instance, which records it once.
type input struct {
	repetitions    *repetitions
	actorPartition *actors.Partition
	request        *clusterpb.Request
	requestID      string
	message        actors.Message
	answer         <-chan actors.Answer
}

// deliver sends an input to an instance, marked as retried if the call is.
func (r *repetitions) deliver(p *actors.Partition, request *clusterpb.Request, requestID string, m actors.Message) *input {
	m.Retried, m.FirstIndex = request.FirstIndex != nil, request.GetFirstIndex()
	if m.Execution == 0 {
		m.Incarnation = request.Incarnation
	}
	m.FreshID = !request.Retried && !m.Retried // a caller that chose the ID may have sent it before
	return &input{r, p, request, requestID, m, Deliver(p, request.Instance, m)}
}

// await returns the answer. If an earlier attempt was recorded so long ago that the instance does
// not remember it, await returns its position in the history. If it was not recorded, await
// delivers the input again.
func (in *input) await(ctx context.Context) (actors.Answer, Position, error) {
	for {
		answer, err := Await(ctx, in.answer)
		if !errors.Is(err, actors.ErrForgotten) {
			return answer, Position{}, err
		}
		found, index, err := in.repetitions.findInputSince(ctx, in.request.Instance, in.requestID, in.message.FirstIndex)
		switch {
		case err != nil:
			return answer, Position{}, err
		case found != Position{}:
			return actors.Answer{Dropped: true}, found, nil
		}
		in.message.FirstIndex = index
		in.answer = Deliver(in.actorPartition, in.request.Instance, in.message)
	}
}

// findInputSince looks for an input recorded after index first of the journal. If it was not
// recorded, it returns the index up to which that holds. The error is [actors.ErrForgotten] if an
// earlier run may have recorded it.
func (r *repetitions) findInputSince(ctx context.Context, instance, requestID string, first uint64) (Position, uint64, error) {
	if err := r.Barrier(ctx); err != nil {
		return Position{}, 0, fmt.Errorf("%w: %v", journal.ErrNotLeader, err)
	}
	index := r.Journal.AppliedIndex() // before the reads, which reflect at least this index
	known, ok := r.Journal.Instance(instance)
	if !ok {
		return Position{}, 0, actors.ErrForgotten
	}
	for execution := known.Execution; execution >= known.FirstExecution; execution-- {
		at, started, err := r.findInputInExecution(ctx, instance, execution, requestID)
		switch {
		case IsNotFound(err), err == nil && started.Incarnation != known.Incarnation:
			return Position{}, 0, actors.ErrForgotten // purged meanwhile
		case err != nil || at != Position{}:
			return at, 0, err
		case execution == known.FirstExecution && IsInInbox(started.Inbox, requestID):
			return Position{execution, 1}, 0, nil
		case started.RequestHorizon == 0 || started.RequestHorizon > first:
		case !slices.Contains(started.RequestIds, requestID) && !IsInInbox(started.Inbox, requestID):
			return Position{}, index, nil // nor did an earlier execution record it after first
		}
	}
	if err := r.CheckSameRun(instance, requestID, first); err != nil {
		return Position{}, 0, err
	}
	return Position{}, index, nil
}

// findInputInExecution looks for the input with a request ID in one execution. It also returns the
// first event of the execution.
func (r *repetitions) findInputInExecution(ctx context.Context, instance string, execution uint64, requestID string) (at Position, started *journalpb.OrchestrationStarted, err error) {
	for event, err := range r.Journal.Events(instance, execution, 1) {
		switch {
		case err != nil:
			return Position{}, nil, err
		case ctx.Err() != nil:
			return Position{}, nil, ctx.Err()
		case event.EventId == 1:
			started = event.GetOrchestrationStarted()
		case event.InputRequestID() == requestID:
			return Position{execution, event.EventId}, started, nil
		}
	}
	return Position{}, started, nil
}

// CheckSameRun returns [actors.ErrForgotten] if another call began the latest run after the retried
// call was first sent. An earlier attempt may have reached a previous run that was purged since.
func (r *repetitions) CheckSameRun(instance, requestID string, first uint64) error {
	known, ok := r.Journal.Instance(instance)
	if !ok {
		return nil
	}
	event, err := r.Journal.Event(instance, known.FirstExecution, 1)
	if err != nil {
		return err
	}
	started := event.GetOrchestrationStarted()
	if started.RequestHorizon > first && (requestID == "" || started.RequestId != requestID) {
		return actors.ErrForgotten
	}
	return nil
}
