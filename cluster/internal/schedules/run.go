package schedules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// An end reports that a run of a schedule has ended.
type end struct {
	Key     string
	Outcome Outcome
	Error   string `json:",omitempty"`
	At      time.Time
}

// A runInput is the input of the instance that starts one run and waits for its end. It continues
// when the schedule continues as new, is paused or is deleted.
type runInput struct {
	Schedule, Key, InstanceID string
	Target                    Target
	Version                   string              `json:",omitempty"`
	Summary                   string              `json:",omitempty"`
	Retry                     *replay.RetryPolicy `json:",omitempty"`
}

var (
	ended    = replay.Event[end](Name + ".ended")
	runOnce  = replay.Orchestration[runInput, struct{}](Name + ".run")
	verified = replay.Event[struct{}](Name + ".verify")
	stopRun  = replay.Activity[stopInput, bool](Name + ".stop")
)

const (
	// stopReason is the reason for which runs are canceled and terminated.
	stopReason = "the schedule starts the next run"
	// The end of a run that has not begun yet is requested again after stopRetryMin, and then after
	// delays that double up to stopRetryMax.
	stopRetryMin, stopRetryMax = time.Second, time.Minute
	// verifyAfter is how long after its start, or after the last time, a run is verified.
	verifyAfter  = time.Hour
	lostFollower = "unknown: the instance of " + Name + ".run that followed the run has ended without its result"
	// stopMax bounds an attempt to end a run.
	stopMax = time.Minute
)

// start starts a run and tracks it.
func (s *schedule) start(ctx *replay.Context, p pending) Start {
	t := tracked{Key: fmt.Sprintf("%016x", ctx.Random().Uint64()), Start: Start{
		InstanceID: runID(s.spec, s.id, p.Due, p.Trigger), Due: p.Due, StartedAt: ctx.Now(), Cause: p.Cause, Outcome: Running,
	}}
	s.turns++
	s.Started++
	in := runInput{
		Schedule: s.id, Key: t.Key, InstanceID: t.InstanceID, Target: s.target,
		Version: s.spec.Version, Summary: s.spec.Summary, Retry: s.spec.Retry,
	}
	s.Written += eventBytes + sizeOf(in)
	err := runOnce.Chain(ctx, in, replay.ChildID(followerID(s.id, t.Key)))
	if err != nil {
		t.Outcome, t.Error, t.EndedAt = Failed, shortened(err.Error()), ctx.Now()
	} else {
		s.Running = append(s.Running, t)
	}
	s.record(t)
	return t.Start
}

// record adds a start to the recent ones.
func (s *schedule) record(t tracked) {
	s.Recent = append(s.Recent, t)
	if len(s.Recent) > recentMax {
		s.Recent = append(s.Recent[:0:0], s.Recent[len(s.Recent)-recentMax:]...)
	}
}

// runTarget starts one run of a schedule and tells the schedule how it has ended. Cancellation does
// not end it, because the schedule would wait forever.
func runTarget(ctx *replay.Context, in runInput) (struct{}, error) {
	ctx = replay.WithoutCancel(ctx)
	options := []replay.Option{
		replay.ChildID(in.InstanceID), replay.OnParentClose(replay.AbandonChild), replay.Version(in.Version), replay.Summary(in.Summary),
	}
	if in.Retry != nil {
		options = append(options, replay.Retry(*in.Retry))
	}
	target := replay.Orchestration[json.RawMessage, json.RawMessage](in.Target.Orchestration)
	_, err := target.Call(ctx, in.Target.Input, options...)
	report := end{Key: in.Key, Outcome: outcomeOf(err), At: ctx.Now()}
	if err != nil {
		report.Error = shortened(err.Error())
	}
	err = ended.SendTo(ctx, in.Schedule, report)
	if errors.Is(err, replay.ErrNotFound) || errors.Is(err, replay.ErrEnded) {
		err = nil // the schedule was deleted
	}
	return struct{}{}, err
}

func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Completed
	case errors.Is(err, replay.ErrInstanceExists):
		return Exists
	case errors.Is(err, replay.ErrCanceled):
		return Canceled
	case errors.Is(err, replay.ErrTerminated):
		return Terminated
	}
	return Failed
}

// shortened returns valid text that a state can hold.
func shortened(text string) string {
	if len(text) > textMax {
		text = text[:textMax]
	}
	return strings.ToValidUTF8(text, "")
}

// followRuns takes the ends of runs.
func (s *schedule) followRuns(ctx *replay.Context) (struct{}, error) {
	for {
		report, err := ended.Wait(ctx)
		if ctx.Err() != nil {
			return struct{}{}, ctx.Err()
		}
		if err != nil {
			return struct{}{}, fmt.Errorf("read the end of a run: %w", err)
		}
		s.end(report)
		s.startBuffered(ctx)
	}
}

// end records the end of a run. It ignores runs of an earlier schedule with the same ID.
func (s *schedule) end(report end) {
	for i := range s.Running {
		if s.Running[i].Key == report.Key {
			s.Running = append(s.Running[:i:i], s.Running[i+1:]...)
			break
		}
	}
	for i := range s.Recent {
		if r := &s.Recent[i]; r.Key == report.Key {
			r.Outcome, r.Error, r.EndedAt = report.Outcome, report.Error, report.At
		}
	}
}

// verify asks whether the instances that follow runs still do, for runs that block a start. Without
// it, a schedule would wait forever for the end of a run whose follower was terminated.
func (s *schedule) verify(ctx *replay.Context) {
	now := ctx.Now()
	for i := range s.Running {
		t := &s.Running[i]
		if now.Sub(later(t.StartedAt, t.Verified)) < verifyAfter {
			continue
		}
		t.Verified = now
		key := t.Key
		replay.Go(ctx, func(ctx *replay.Context) (struct{}, error) {
			err := verified.SendTo(ctx, followerID(s.id, key), struct{}{})
			if !errors.Is(err, replay.ErrEnded) && !errors.Is(err, replay.ErrNotFound) {
				return struct{}{}, err
			}
			s.end(end{Key: key, Outcome: Failed, Error: lostFollower, At: ctx.Now()})
			s.startBuffered(ctx)
			return struct{}{}, nil
		})
	}
}

// followerID returns the ID of the instance that starts and follows a run.
func followerID(schedule, key string) string { return schedule + "::" + key }

// stop cancels or terminates a run in a coroutine. It repeats the request while the run has not
// begun. If the schedule continues as new meanwhile, the next execution requests it again.
func (s *schedule) stop(ctx *replay.Context, t tracked) {
	in := stopInput{InstanceID: t.InstanceID, Follower: followerID(s.id, t.Key), Terminate: t.Stopping == Terminate}
	replay.Go(ctx, func(ctx *replay.Context) (struct{}, error) {
		for delay := stopRetryMin; s.isRunning(t.Key); delay = min(2*delay, stopRetryMax) {
			found, err := stopRun.Call(ctx, in, replay.StartToClose(stopMax))
			if err != nil || found {
				return struct{}{}, err
			}
			if err := ctx.Sleep(delay); err != nil {
				return struct{}{}, err
			}
			s.touchIfLong(ctx)
		}
		return struct{}{}, nil
	})
}

// A stopInput is a request to end a run that its follower has started.
type stopInput struct {
	InstanceID, Follower string
	Terminate            bool `json:",omitempty"`
}

// stop requests the end of a run. It reports whether the run was found: an instance with its ID
// that the follower has not started is not the run.
func (c Control) stop(ctx context.Context, in stopInput) (found bool, err error) {
	parent, err := c.Parent(ctx, in.InstanceID)
	switch {
	case err != nil:
		return foundOrEnded(err)
	case parent != in.Follower:
		return false, nil
	case in.Terminate:
		return foundOrEnded(c.Terminate(ctx, in.InstanceID, stopReason))
	}
	return foundOrEnded(c.Cancel(ctx, in.InstanceID, stopReason))
}

// foundOrEnded reports whether a control request has found an instance.
func foundOrEnded(err error) (bool, error) {
	switch {
	case errors.Is(err, replay.ErrNotFound):
		return false, nil
	case errors.Is(err, replay.ErrEnded):
		return true, nil
	}
	return err == nil, err
}

func (s *schedule) isRunning(key string) bool {
	for _, t := range s.Running {
		if t.Key == key {
			return true
		}
	}
	return false
}
