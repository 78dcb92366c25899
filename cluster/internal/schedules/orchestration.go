package schedules

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Definitions returns the definitions that every node registers. terminate terminates an instance
// as a client does; ctx is that of an activity.
func Definitions(terminate func(ctx context.Context, id, reason string) error) []replay.Definition {
	return []replay.Definition{
		Orchestration.Bind(run, replay.Receives(ended)),
		runOnce.Bind(runTarget),
		terminateRun.Bind(func(ctx context.Context, id string) (bool, error) {
			return foundOrEnded(terminate(ctx, id, stopReason))
		}),
	}
}

// A schedule is a schedule in an execution.
type schedule struct {
	State
	id     string
	spec   Spec
	target Target

	next    time.Time // the next due time, zero if it is not known or there is none
	problem string    // why the next due time is not known
	changed bool      // the body has to look at the state again
	ended   bool      // deleted or canceled
	turns   int       // plans and starts in this execution
}

// Bounds of an execution and of waits.
const (
	// turnsMax is the number of plans and starts after which a schedule continues as new.
	turnsMax = 200
	// problemRetry is when a schedule whose due times cannot be computed tries again.
	problemRetry = time.Minute
)

// run is the body of a schedule. It waits for due times until it is deleted.
func run(ctx *replay.Context, in Input) (Description, error) {
	s := &schedule{id: ctx.InstanceID(), spec: in.Spec, target: in.Target}
	if in.State != nil {
		s.State = *in.State
	} else {
		s.Last = ctx.Now()
		if err := checkOnce(ctx, s.id, in); err != nil {
			return Description{}, err
		}
	}
	if err := s.handle(ctx); err != nil {
		return Description{}, err
	}
	replay.Go(ctx, s.followRuns)
	for _, r := range s.Running {
		if r.Stopping != "" {
			s.stop(ctx, r)
		}
	}
	for !s.ended {
		if s.turns >= turnsMax || ctx.ShouldContinueAsNew() {
			if err := replay.AwaitUpdates(ctx); err != nil {
				return Description{}, err
			}
			if !s.ended {
				return Description{}, Orchestration.ContinueAsNew(ctx, Input{s.spec, s.target, &s.State})
			}
			break
		}
		s.changed = false
		wait, err := s.advance(ctx)
		if err == nil && !s.changed && s.turns < turnsMax {
			err = s.wait(ctx, wait)
		}
		if err != nil {
			s.ended = true
			return Description{}, err
		}
	}
	if err := replay.AwaitUpdates(ctx); err != nil {
		return Description{}, err
	}
	return s.describe(ctx.Now()), nil
}

// checkOnce checks the input of a new schedule. The answer is recorded, because it depends on the
// time zones that a node knows.
func checkOnce(ctx *replay.Context, id string, in Input) error {
	_, err := replay.SideEffect(ctx, "check", func() (struct{}, error) {
		return struct{}{}, rejection(Check(id, in.Spec, in.Target))
	})
	return err
}

// forever is a wait without a timer.
const forever time.Duration = -1

// advance starts what is due and returns how long nothing else will be. The body looks again before
// if the state has changed.
func (s *schedule) advance(ctx *replay.Context) (time.Duration, error) {
	s.next, s.problem = time.Time{}, ""
	if s.Paused {
		return forever, nil
	}
	now := ctx.Now()
	p, err := replay.SideEffect(ctx, "due times", func() (plan, error) { return newPlan(s.id, s.spec, s.Last, now), nil })
	if err != nil {
		return 0, err
	}
	s.Last, s.next, s.problem = p.Last, p.Next, p.Problem
	s.Missed += p.Missed
	s.turns++
	for _, due := range p.Due {
		s.begin(ctx, pending{Due: due, Cause: CauseDue, Overlap: s.spec.Overlap})
	}
	switch {
	case p.Problem != "":
		ctx.Log().Warn("the due times of a schedule cannot be computed; trying again", "problem", p.Problem, "after", problemRetry)
		return problemRetry, nil
	case p.More:
		return 0, nil
	case p.Next.IsZero():
		return forever, nil
	}
	return p.At.Sub(now), nil
}

// wait waits for a time, or until the state has changed.
func (s *schedule) wait(ctx *replay.Context, d time.Duration) error {
	changed := func() bool { return s.changed }
	switch d {
	case 0:
		return nil
	case forever:
		return replay.Await(ctx, changed)
	}
	err := replay.AwaitFor(ctx, d, changed)
	if errors.Is(err, replay.ErrTimeout) {
		return nil
	}
	return err
}

// touch makes the body look at the state.
func (s *schedule) touch() { s.changed = true }

// begin starts a run, or does what the overlap policy says while another one is not done.
func (s *schedule) begin(ctx *replay.Context, p pending) Start {
	if len(s.Running) == 0 || p.Overlap == Allow && len(s.Running) < runningMax {
		return s.start(ctx, p)
	}
	s.verify(ctx)
	switch {
	case p.stops():
		s.dropStopping()
		s.Buffer = append(s.Buffer, p)
		for i := range s.Running {
			if s.Running[i].Stopping != p.Overlap && s.Running[i].Stopping != Terminate {
				s.Running[i].Stopping = p.Overlap
				s.stop(ctx, s.Running[i])
			}
		}
	case p.Overlap == BufferOne && len(s.Buffer) == 0, p.Overlap == BufferAll && len(s.Buffer) < bufferMax:
		s.Buffer = append(s.Buffer, p)
	default:
		s.Skipped++
		return Start{Due: p.Due, Cause: p.Cause, Outcome: Skipped}
	}
	return Start{Due: p.Due, Cause: p.Cause, Outcome: Buffered}
}

// dropStopping removes buffered starts that a later start of their kind replaces.
func (s *schedule) dropStopping() {
	kept := s.Buffer[:0:0]
	for _, p := range s.Buffer {
		if p.stops() {
			s.Skipped++
		} else {
			kept = append(kept, p)
		}
	}
	s.Buffer = kept
}

// startBuffered starts the next buffered run, if no other one is running.
func (s *schedule) startBuffered(ctx *replay.Context) {
	for !s.Paused && !s.ended && len(s.Buffer) > 0 && len(s.Running) == 0 {
		p := s.Buffer[0]
		s.Buffer = append(s.Buffer[:0:0], s.Buffer[1:]...)
		s.start(ctx, p)
	}
}
