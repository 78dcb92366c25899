package schedules

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// backfillMax bounds the due times of one backfill.
const backfillMax = bufferMax

// handle registers the handlers of a schedule.
func (s *schedule) handle(ctx *replay.Context) error {
	describe := func(struct{}) (Description, error) { return s.describe(ctx.Now()), nil }
	note := func(text string) error { return checkText("note", text) }
	return errors.Join(
		DescribeQuery.Handle(ctx, describe),
		PauseUpdate.Handle(ctx, note, s.pause),
		ResumeUpdate.Handle(ctx, note, s.resume),
		TriggerUpdate.Handle(ctx, checkOverlap, s.trigger),
		BackfillUpdate.Handle(ctx, func(r Range) error { return s.checkBackfill(r, ctx.Now()) }, s.backfill),
		ReplaceUpdate.Handle(ctx, s.checkReplacement, s.replace),
		DeleteUpdate.Handle(ctx, nil, s.delete),
	)
}

func checkOverlap(overlap Overlap) error { return checkRuns("id", Spec{Overlap: overlap}) }

// pause stops starts of due times.
func (s *schedule) pause(_ *replay.Context, note string) (struct{}, error) {
	s.Paused, s.Note = true, note
	s.touch()
	return struct{}{}, nil
}

// resume continues from now on. What was due meanwhile is not started.
func (s *schedule) resume(ctx *replay.Context, note string) (struct{}, error) {
	if s.Paused {
		s.Paused, s.Last = false, later(s.Last, ctx.Now())
		s.touch()
	}
	s.Note = note
	s.startBuffered(ctx)
	return struct{}{}, nil
}

// trigger starts a run now.
func (s *schedule) trigger(ctx *replay.Context, overlap Overlap) (Start, error) {
	if s.ended {
		return Start{}, replay.ErrEnded
	}
	s.Triggers++
	if overlap == "" {
		overlap = s.spec.Overlap
	}
	s.touchIfLong(ctx)
	return s.begin(ctx, pending{Due: ctx.Now().UTC(), Cause: CauseTrigger, Trigger: s.Triggers, Overlap: overlap}), nil
}

// checkBackfill returns an error for a range that has future or too many due times.
func (s *schedule) checkBackfill(r Range, now time.Time) error {
	switch {
	case !r.Before.After(r.From):
		return invalid("range of the backfill", "is empty")
	case r.Before.After(now):
		return invalid("range of the backfill", "ends after the cluster time, %s", now.UTC().Format(time.RFC3339))
	}
	if err := checkOverlap(r.Overlap); err != nil {
		return err
	}
	due, err := backfillTimes(s.spec, r)
	if err == nil && len(due) > backfillMax {
		err = invalid("range of the backfill", "has more than %d due times", backfillMax)
	}
	return err
}

// backfillTimes returns the due times of a range, and at least one more than allowed if there are
// too many.
func backfillTimes(spec Spec, r Range) (due []time.Time, err error) {
	times, err := compile(spec)
	if err != nil {
		return nil, err
	}
	for t := times.next(r.From.Add(-1)); !t.IsZero() && t.Before(r.Before) && len(due) <= backfillMax; t = times.next(t) {
		due = append(due, t)
	}
	return due, nil
}

// backfill starts runs for past due times. It changes nothing for those whose instance exists.
func (s *schedule) backfill(ctx *replay.Context, r Range) ([]Start, error) {
	type answer struct {
		Due     []time.Time
		Problem string
	}
	recorded, err := replay.SideEffect(ctx, "backfill", func() (answer, error) {
		due, err := backfillTimes(s.spec, r)
		if err != nil {
			return answer{Problem: err.Error()}, nil
		}
		return answer{Due: due[:min(len(due), backfillMax)]}, nil
	})
	switch {
	case err != nil:
		return nil, err
	case recorded.Problem != "":
		return nil, fmt.Errorf("due times of the backfill: %s", recorded.Problem)
	case s.ended:
		return nil, replay.ErrEnded
	}
	if r.Overlap == "" {
		r.Overlap = BufferAll
	}
	var starts []Start
	for _, due := range recorded.Due {
		starts = append(starts, s.begin(ctx, pending{Due: due, Cause: CauseBackfill, Overlap: r.Overlap}))
	}
	s.touchIfLong(ctx)
	return starts, nil
}

// checkReplacement returns an error for a Spec or a Target that is not valid.
func (s *schedule) checkReplacement(r Replacement) error {
	target := s.target
	if r.Target != nil {
		target = *r.Target
	}
	return Check(s.id, r.Spec, target)
}

// replace applies a new Spec from now on. What was due before starts by the old one.
func (s *schedule) replace(ctx *replay.Context, r Replacement) (struct{}, error) {
	if err := s.settle(ctx); err != nil {
		return struct{}{}, err
	}
	s.spec, s.Last = r.Spec, later(s.Last, ctx.Now())
	if r.Target != nil {
		s.target = *r.Target
	}
	s.touch()
	return struct{}{}, nil
}

// ErrCatchingUp reports that a schedule is starting runs of past due times.
var ErrCatchingUp = replay.NewError("tenuto.schedule_catching_up", "tenuto: the schedule is starting runs of many past due times: try again, or pause it first")

// settle starts what was due until now, also what the jitter delays.
func (s *schedule) settle(ctx *replay.Context) error {
	for !s.Paused {
		if s.turns >= turnsMax {
			s.touch()
			return ErrCatchingUp
		}
		wait, err := s.advance(ctx)
		switch {
		case err != nil:
			return err
		case wait == 0:
			continue
		case !s.next.IsZero() && !s.next.After(ctx.Now()):
			s.Last = s.next
			s.begin(ctx, pending{Due: s.next, Cause: CauseDue, Overlap: s.spec.Overlap})
		}
		return nil
	}
	return nil
}

// delete ends the schedule. Its runs continue.
func (s *schedule) delete(*replay.Context, struct{}) (struct{}, error) {
	s.ended, s.Buffer = true, nil
	s.touch()
	return struct{}{}, nil
}

// touchIfLong makes the body continue as new if the execution has become long.
func (s *schedule) touchIfLong(ctx *replay.Context) {
	if s.turns >= turnsMax || ctx.ShouldContinueAsNew() {
		s.touch()
	}
}
