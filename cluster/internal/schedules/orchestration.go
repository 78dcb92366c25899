package schedules

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Control is how an activity controls instances, as a client does. ctx is that of the activity.
type Control struct {
	// Parent returns the instance that started another one, "" for none.
	Parent            func(ctx context.Context, id string) (string, error)
	Cancel, Terminate func(ctx context.Context, id, reason string) error
}

// Definitions returns the definitions that every node registers.
func Definitions(control Control) []replay.Definition {
	return []replay.Definition{
		Orchestration.Bind(run, replay.Receives(ended)),
		runOnce.Bind(runTarget),
		stopRun.Bind(control.stop),
	}
}

// A schedule is a schedule in an execution.
type schedule struct {
	State
	id     string
	spec   Spec
	target Target

	inputBytes int // of spec and target, 0 if it is not known

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
	// stepBytesMax is how much one step of the code may record before the rest is left to a later
	// one, in bytes: an append that is too large terminates an instance.
	stepBytesMax = 1 << 20
	// stepPause is the timer that begins another step.
	stepPause = time.Millisecond
	// Estimates of what is recorded, in bytes: of an event without its data, a due time, and the
	// answer for one due time of a backfill.
	eventBytes, timeBytes, answerBytes = 300, 30, 300
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
				s.Written += eventBytes + s.size()
				return Description{}, Orchestration.ContinueAsNew(ctx, Input{s.spec, s.target, &s.State})
			}
			break
		}
		s.changed = false
		wait, err := s.advance(ctx)
		switch {
		case err != nil:
		case s.isFull():
			err = s.beginStep(ctx)
		case !s.changed && s.turns < turnsMax:
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

// checkOnce checks the input of a new schedule. in is a copy. The answer is recorded, because it
// depends on the time zones that a node knows.
func checkOnce(ctx *replay.Context, id string, in Input) error {
	_, err := replay.SideEffect(ctx, "check", func() (struct{}, error) {
		err := Check(id, in.Spec, in.Target)
		if errors.As(err, new(*unknownZoneError)) {
			in.Spec.TimeZone = "" // another node may know the zone: plans report the problem and are repeated
			err = Check(id, in.Spec, in.Target)
		}
		return struct{}{}, rejection(err)
	})
	return err
}

// forever is a wait without a timer.
const forever time.Duration = -1

// advance starts what is due and returns how long nothing else will be. The body looks again before
// if the state has changed.
func (s *schedule) advance(ctx *replay.Context) (time.Duration, error) {
	s.next, s.problem = time.Time{}, ""
	s.startQueued(ctx)
	s.startBuffered(ctx)
	switch {
	case s.isFull():
		return 0, nil // the next step continues
	case s.Paused:
		return forever, nil
	}
	return s.plan(ctx)
}

// isFull reports whether this step has recorded so much that the rest is left to a later one.
func (s *schedule) isFull() bool { return s.Written >= stepBytesMax }

// beginStep begins another step of the code.
func (s *schedule) beginStep(ctx *replay.Context) error {
	err := ctx.Sleep(stepPause)
	s.Written = 0
	return err
}

// plan decides what is due, as advance does, also in a full step.
func (s *schedule) plan(ctx *replay.Context) (time.Duration, error) {
	now := ctx.Now()
	p, err := replay.SideEffect(ctx, "due times", func() (plan, error) { return newPlan(s.id, s.spec, s.Last, now), nil })
	if err != nil {
		return 0, err
	}
	s.Last, s.next, s.problem = p.Last, p.Next, p.Problem
	s.Missed += p.Missed
	s.turns++
	s.Written += eventBytes + timeBytes*len(p.Due)
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

// begin decides about a start, in a later step if this one is full.
func (s *schedule) begin(ctx *replay.Context, p pending) Start {
	if id := runID(s.spec, s.id, p.Due, p.Trigger); s.hasStart(id, p) {
		start := Start{InstanceID: id, Due: p.Due, EndedAt: ctx.Now(), Cause: p.Cause, Outcome: Exists}
		s.record(tracked{Start: start})
		return start
	}
	if !s.isFull() && len(s.Queue) == 0 {
		return s.decide(ctx, p)
	}
	s.touch()
	if !s.hasSpace() {
		return s.skip(p)
	}
	s.Queue = append(s.Queue, p)
	return Start{Due: p.Due, Cause: p.Cause, Outcome: Buffered}
}

// hasStart reports whether a run in progress, or a start that waits, has the ID of a start.
func (s *schedule) hasStart(id string, p pending) bool {
	same := func(q pending) bool { return q.Trigger == p.Trigger && q.Due.Unix() == p.Due.Unix() }
	return slices.ContainsFunc(s.Running, func(t tracked) bool { return t.InstanceID == id }) ||
		slices.ContainsFunc(s.Buffer, same) || slices.ContainsFunc(s.Queue, same)
}

// hasSpace reports whether the state can hold another start that waits.
func (s *schedule) hasSpace() bool {
	return len(s.Buffer)+len(s.Queue) < bufferMax && s.hasBytes(pendingBytes)
}

func (s *schedule) skip(p pending) Start {
	s.Skipped++
	return Start{Due: p.Due, Cause: p.Cause, Outcome: Skipped}
}

// decide starts a run, or does what the overlap policy says while another one is not done.
func (s *schedule) decide(ctx *replay.Context, p pending) Start {
	if len(s.Running) == 0 || p.Overlap == Allow && len(s.Running) < runningMax && s.hasBytes(trackedBytes) {
		return s.start(ctx, p)
	}
	s.verify(ctx)
	switch {
	case p.stops():
		s.dropStopping()
		s.Buffer = append([]pending{p}, s.Buffer...) // what it stops the runs for starts next
		for i := range s.Running {
			if s.Running[i].Stopping != p.Overlap && s.Running[i].Stopping != Terminate {
				s.Running[i].Stopping = p.Overlap
				s.stop(ctx, s.Running[i])
			}
		}
	case p.Overlap == BufferOne && len(s.Buffer) == 0, p.Overlap == BufferAll && s.hasSpace():
		s.Buffer = append(s.Buffer, p)
	default:
		return s.skip(p)
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

// startQueued decides about the starts that full steps have left.
func (s *schedule) startQueued(ctx *replay.Context) {
	for !s.ended && !s.isFull() {
		p, ok := s.take(&s.Queue)
		if !ok {
			break
		}
		s.decide(ctx, p)
	}
}

// startBuffered starts the next buffered run, if no other one is running.
func (s *schedule) startBuffered(ctx *replay.Context) {
	for !s.ended && !s.isFull() && len(s.Running) == 0 {
		p, ok := s.take(&s.Buffer)
		if !ok {
			break
		}
		s.start(ctx, p)
	}
	s.touchIfLong(ctx)
}

// take removes the first start from those that wait. While the schedule is paused, due times wait.
func (s *schedule) take(waiting *[]pending) (pending, bool) {
	i := slices.IndexFunc(*waiting, func(p pending) bool { return !s.Paused || p.Cause != CauseDue })
	if i < 0 {
		return pending{}, false
	}
	p := (*waiting)[i]
	*waiting = slices.Concat((*waiting)[:i], (*waiting)[i+1:])
	return p, true
}
