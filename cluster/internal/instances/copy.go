package instances

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Copy begins a run whose history begins with a copy. The state machine decides whether the history
// can be copied: see [state.CopyError].
func (i *Inputs) Copy(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.CopyRequest) (*clusterpb.Response, error) {
	if i.Journal.Protocol() < state.CopyProtocol {
		return nil, fmt.Errorf("%w: rerun, rewind and fork need protocol %d on every member", journal.ErrProtocol, state.CopyProtocol)
	}
	if err := i.Barrier(ctx); err != nil {
		return nil, err
	}
	target := i.copyTarget(request.Instance, r)
	if found := i.repetitions.findRun(target, r.RequestId); found.first > 0 {
		return i.copyResponse(target, found)
	}
	known, ok := i.Journal.Instance(request.Instance)
	if !ok {
		return nil, actors.ErrNotFound
	}
	if err := i.repetitions.checkRun(request); err != nil {
		return nil, err
	}
	c := &journalpb.CopyHistory{
		Source: known.Instance, SourceExecution: cmp.Or(r.Execution, known.Execution), UpTo: r.EventId,
		RequestId: r.RequestId, KeepEvents: !r.DropEvents, Origin: originOf(request, r.Reason), Input: r.Input,
	}
	switch r.Kind {
	case clusterpb.CopyRequest_KIND_RERUN:
		c.SourceExecution, c.UpTo = cmp.Or(r.Execution, known.FirstExecution), 1
	case clusterpb.CopyRequest_KIND_REWIND, clusterpb.CopyRequest_KIND_FORK:
	default:
		return nil, fmt.Errorf("%w: unknown kind of copy %d", journal.ErrProtocol, r.Kind)
	}
	if !i.Owns(target) {
		return nil, &state.CopyError{Instance: target, Execution: c.SourceExecution, EventID: c.UpTo, Reason: state.CopyOtherPartition}
	}
	if err := i.checkSource(c); err != nil {
		return nil, err
	}
	if r.Call != "" {
		if err := i.findCall(ctx, c, r); err != nil {
			return nil, err
		}
	}
	if err := i.checkEnds(ctx, c, target, known); err != nil {
		return nil, err
	}
	m := actors.Message{Message: engine.Message{Event: new(journalpb.Event)}, Copy: c}
	if target == request.Instance {
		m.Incarnation = request.Incarnation
	}
	answer, err := i.copySlot.deliver(ctx, p, target, m)
	if err != nil {
		return nil, err
	}
	return i.copyResponse(target, run{answer.FirstExecution, answer.Incarnation})
}

// A copySlot holds an element while a copy is in flight.
type copySlot chan struct{}

// deliver delivers a copy once no other one of the partition is in flight: each replica reads up to
// state.CopyBytesMax for a copy, and applies the records of one log entry together.
func (s copySlot) deliver(ctx context.Context, p *actors.Partition, target string, m actors.Message) (actors.Answer, error) {
	select {
	case s <- struct{}{}:
	case <-ctx.Done():
		return actors.Answer{}, ctx.Err()
	}
	release := sync.OnceFunc(func() { <-s })
	answers := make(chan actors.Answer, 1)
	m.Done = func(a actors.Answer) {
		release()
		answers <- a
	}
	p.Deliver(target, m)
	answer, err := Await(ctx, answers)
	if ctx.Err() != nil { // a copy that waits for blocked code may never be answered
		time.AfterFunc(copyAnswerMax, release)
	}
	return answer, err
}

// copyAnswerMax is how long after the end of its call a copy still prevents others.
const copyAnswerMax = time.Minute

// copyTarget returns the instance that the new run belongs to. The ID of a fork without one derives
// from the request ID, so that a repetition finds it, and is in the partition of the source.
func (i *Inputs) copyTarget(source string, r *clusterpb.CopyRequest) string {
	if r.Kind != clusterpb.CopyRequest_KIND_FORK {
		return source
	}
	if r.Target != "" {
		return r.Target
	}
	const sourceMax = 64
	hash := sha256.Sum256([]byte(r.RequestId + "\x00" + source))
	for n := 0; ; n++ {
		id := fmt.Sprintf("%.*s::fork.%x.%d", sourceMax, source, hash[:8], n)
		if i.Owns(id) {
			return id
		}
	}
}

// checkSource returns why the source cannot be copied. What an orchestration of the engine does was
// authorized when it was started: a copy would do it again, or other things with another input, on
// behalf of the principal in its input.
func (i *Inputs) checkSource(c *journalpb.CopyHistory) error {
	first, err := i.Journal.Event(c.Source, c.SourceExecution, 1)
	switch {
	case IsNotFound(err):
		return copyRefusal(c, state.CopyNoSource)
	case err != nil:
		return err
	case strings.HasPrefix(first.GetOrchestrationStarted().GetName(), schedules.ReservedPrefix):
		return copyRefusal(c, state.CopyReserved)
	}
	c.SourceIncarnation = first.GetOrchestrationStarted().GetIncarnation()
	return nil
}

// checkEnds returns why the last event or the target does not permit the copy. The state machine
// checks that, too, but by then the target's code has been abandoned if it is blocked, and evicted
// otherwise.
func (i *Inputs) checkEnds(ctx context.Context, c *journalpb.CopyHistory, target string, source *journalpb.Instance) error {
	last, err := i.Journal.Event(c.Source, c.SourceExecution, c.UpTo)
	switch {
	case IsNotFound(err):
		return copyRefusal(c, state.CopyBeyondEnd)
	case err != nil:
		return err
	case journalpb.IsTerminal(last.TypeNumber()):
		return copyRefusal(c, state.CopyEnded)
	case target == c.Source:
		c.TargetIncarnation = source.Incarnation
		return i.checkParent(ctx, c, source)
	}
	if existing, ok := i.Journal.Instance(target); ok {
		return &state.CopyError{Instance: target, Execution: existing.Execution, EventID: c.UpTo, Reason: state.CopyTargetExists}
	}
	return nil
}

// checkParent returns an error if a parent waits for the target: it runs and has one, or its end is
// not recorded by the parent, which would take the end of the new run for it.
func (i *Inputs) checkParent(ctx context.Context, c *journalpb.CopyHistory, target *journalpb.Instance) error {
	if target.Parent == nil {
		return nil
	}
	if target.Status != journalpb.Status_STATUS_RUNNING {
		if waits, err := i.ParentWaits(ctx, target); err != nil || !waits {
			return err
		}
	}
	return &state.CopyError{Instance: target.Instance, Execution: target.Execution, EventID: c.UpTo, Reason: state.CopyHasParent}
}

// copyRefusal refuses to copy a source.
func copyRefusal(c *journalpb.CopyHistory, reason state.CopyReason) error {
	return &state.CopyError{Instance: c.Source, Execution: c.SourceExecution, EventID: c.UpTo, Reason: reason}
}

// findCall sets the last event to copy to the one before a call of an activity or a child.
func (i *Inputs) findCall(ctx context.Context, c *journalpb.CopyHistory, r *clusterpb.CopyRequest) error {
	left := r.CallNumber
	for event, err := range i.Journal.Events(c.Source, c.SourceExecution, 1) {
		switch {
		case IsNotFound(err):
			return &state.CopyError{Instance: c.Source, Execution: c.SourceExecution, Reason: state.CopyNoSource}
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if name := event.GetActivityScheduled().GetName() + event.GetSubOrchestrationScheduled().GetName(); name != r.Call {
			continue
		}
		if left--; left == 0 {
			c.UpTo = event.EventId - 1
			return nil
		}
	}
	return &state.CopyError{Instance: c.Source, Execution: c.SourceExecution, Reason: state.CopyNoCall}
}

// copyResponse returns the answer for a run that begins with a copied history.
func (i *Inputs) copyResponse(target string, begun run) (*clusterpb.Response, error) {
	result := &clusterpb.CopyResult{Instance: target, FirstExecution: begun.first, Incarnation: begun.incarnation}
	first, err := i.Journal.Event(target, begun.first, 1)
	if err != nil {
		return nil, err
	}
	for _, part := range first.GetOrchestrationStarted().GetCopied() {
		result.EventId = part.UpTo
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Copy{Copy: result}}, nil
}
