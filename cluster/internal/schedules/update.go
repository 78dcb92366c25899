package schedules

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// A Rejection is a *replay.InvalidError that a schedule answers: it keeps its fields when it is
// recorded or sent.
type Rejection struct{ Field, Reason string }

func (e *Rejection) Error() string {
	return (&replay.InvalidError{Field: e.Field, Reason: e.Reason}).Error()
}

func init() { replay.RegisterErrorType[*Rejection](Name + ".invalid") }

// rejection returns a *replay.InvalidError as a Rejection, and other errors unchanged.
func rejection(err error) error {
	var invalid *replay.InvalidError
	if errors.As(err, &invalid) {
		return replay.NonRetryable(&Rejection{invalid.Field, invalid.Reason})
	}
	return err
}

// rejecting returns the validation of an update.
func rejecting[I any](check func(I) error) func(I) error {
	return func(input I) error { return rejection(check(input)) }
}

// backfillMax bounds the due times of one backfill.
const backfillMax = bufferMax

// handle registers the handlers of a schedule.
func (s *schedule) handle(ctx *replay.Context) error {
	// Between events, the time of the schedule stands still; that of the caller does not.
	describe := func(now time.Time) (Description, error) { return s.describe(later(now, ctx.Now())), nil }
	return errors.Join(
		DescribeQuery.Handle(ctx, describe),
		PauseUpdate.Handle(ctx, rejecting(CheckNote), s.pause),
		ResumeUpdate.Handle(ctx, rejecting(CheckNote), s.resume),
		TriggerUpdate.Handle(ctx, rejecting(CheckOverlap), s.trigger),
		BackfillUpdate.Handle(ctx, rejecting(s.checkBackfill), s.backfill),
		ReplaceUpdate.Handle(ctx, rejecting(s.checkReplacement), s.replace),
		DeleteUpdate.Handle(ctx, nil, s.delete),
	)
}

// CheckNote returns a *replay.InvalidError for a note that is too long.
func CheckNote(note string) error { return checkText("note", note) }

// CheckOverlap returns a *replay.InvalidError for an unknown policy. "" means the default.
func CheckOverlap(overlap Overlap) error {
	if overlap != "" && !slices.Contains(overlaps, overlap) {
		return invalid("overlap policy", "is %.40q: %v are allowed", overlap, overlaps)
	}
	return nil
}

// pause stops starts of due times. A due time before now that the jitter delays starts at once.
func (s *schedule) pause(ctx *replay.Context, note string) (struct{}, error) {
	if !s.Paused {
		s.startDelayed(ctx)
	}
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

// CheckRange returns a *replay.InvalidError for a range that no schedule accepts.
func CheckRange(r Range) error {
	if !r.Before.After(r.From) {
		return invalid("range of the backfill", "is empty")
	}
	return CheckOverlap(r.Overlap)
}

// checkBackfill returns an error for a range with too many due times.
func (s *schedule) checkBackfill(r Range) error {
	if err := CheckRange(r); err != nil {
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
	if now := ctx.Now(); r.Before.After(now) {
		return nil, rejection(invalid("range of the backfill", "ends after the cluster time, %s", now.UTC().Format(time.RFC3339)))
	}
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
	s.Written += eventBytes + (timeBytes+answerBytes)*len(recorded.Due)
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
	s.inputBytes = 0
	s.touch()
	return struct{}{}, nil
}

// ErrCatchingUp reports that a schedule is starting runs of past due times.
var ErrCatchingUp = replay.NewError("tenuto.schedule_catching_up", "tenuto: the schedule is starting runs of many past due times: try again, or pause it first")

// settlePlansMax bounds the plans that an update makes, of at most 100 due times each.
const settlePlansMax = 100

// settle decides what was due until now, also what the jitter delays. Starts that a full step
// leaves are those of the Spec at that later time.
func (s *schedule) settle(ctx *replay.Context) error {
	for plans := 0; !s.Paused; plans++ {
		if plans == settlePlansMax || len(s.Buffer)+len(s.Queue)+dueMax > bufferMax && len(s.Queue) > 0 {
			s.touch()
			return ErrCatchingUp
		}
		wait, err := s.plan(ctx)
		switch {
		case err != nil:
			return err
		case wait == 0:
			continue
		}
		s.startDelayed(ctx)
		return nil
	}
	return nil
}

// startDelayed starts the next due time if it has passed and only the jitter delays it.
func (s *schedule) startDelayed(ctx *replay.Context) {
	if s.next.After(s.Last) && !s.next.After(ctx.Now()) {
		s.Last = s.next
		s.begin(ctx, pending{Due: s.next, Cause: CauseDue, Overlap: s.spec.Overlap})
	}
}

// delete ends the schedule. Its runs continue.
func (s *schedule) delete(*replay.Context, struct{}) (struct{}, error) {
	s.ended, s.Buffer, s.Queue = true, nil, nil
	s.touch()
	return struct{}{}, nil
}

// touchIfLong makes the body look at the state if the execution has become long or the step is
// full.
func (s *schedule) touchIfLong(ctx *replay.Context) {
	if s.turns >= turnsMax || s.isFull() || ctx.ShouldContinueAsNew() {
		s.touch()
	}
}
