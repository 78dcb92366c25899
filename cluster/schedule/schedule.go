package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/jsontext"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/replay"
)

// ErrCatchingUp reports that the schedule is starting runs of many past due times, so that the
// update was not made. Pause it first, or try again.
var ErrCatchingUp = schedules.ErrCatchingUp

// Create creates a schedule and returns when that is committed. It starts runs of the orchestration
// with the input, and with the headers of ctx. The ID has 1 to 80 characters of A-Z a-z 0-9 . _ : @
// / + -. It is the ID of an instance, so an ended instance with that ID is replaced. The input has
// at most 256,000 bytes of JSON.
//
// The options are [cluster.Attach], which makes Create do nothing if the ID exists and is in
// progress; [cluster.RequestID]; and [cluster.Tags] and [replay.Summary] of the schedule itself.
//
// Errors: [*replay.InvalidError] for the first field that is not valid;
// [cluster.ErrInstanceExists]; those of [cluster.StartRun].
func Create[I, O any](ctx context.Context, client *cluster.Client, id string, spec Spec, orchestration replay.OrchestrationHandle[I, O], input I, options ...replay.Option) error {
	target, err := newTarget(orchestration, input)
	if err == nil {
		err = schedules.Check(id, spec, target)
	}
	if err == nil {
		options = append([]replay.Option{cluster.ReuseWhenEnded()}, options...)
		var run *cluster.Run[Description]
		run, err = cluster.StartRun(ctx, client, schedules.Orchestration, id, schedules.Input{Spec: spec, Target: target}, options...)
		if err == nil && run.Attached {
			err = checkAttached(ctx, client, id)
		}
	}
	return wrap(err, "create", id)
}

// checkAttached returns an error if the existing instance is no schedule.
func checkAttached(ctx context.Context, client *cluster.Client, id string) error {
	status, err := client.Get(ctx, id)
	if err == nil && status.Name != schedules.Name {
		err = fmt.Errorf("%w and is no schedule: %s", cluster.ErrInstanceExists, id)
	}
	return err
}

// newTarget returns what a schedule starts.
func newTarget[I, O any](orchestration replay.OrchestrationHandle[I, O], input I) (schedules.Target, error) {
	if path, _, found := jsontext.Invalid("input", input); found {
		return schedules.Target{}, &replay.InvalidError{Field: path, Reason: "is not UTF-8, which JSON cannot represent: pass it as []byte"}
	}
	encoded, err := json.Marshal(input)
	if err != nil {
		return schedules.Target{}, &replay.InvalidError{Field: "input", Reason: "cannot be encoded: " + err.Error()}
	}
	return schedules.Target{Orchestration: orchestration.Name(), Input: encoded}, nil
}

// Update replaces the Spec of a schedule. Due times until now are decided by the old one, those
// after it by the new one. Runs in progress and buffered due times are kept; the latter start as
// the new one says.
//
// Errors: [*replay.InvalidError] for the first field that is not valid; [ErrCatchingUp]; those of
// [cluster.CallUpdate].
func Update(ctx context.Context, client *cluster.Client, id string, spec Spec) error {
	return update(ctx, client, id, "update", schedules.ReplaceUpdate, schedules.Replacement{Spec: spec}, schedules.CheckSpec(id, spec))
}

// Replace is [Update], and also replaces what the schedule starts.
func Replace[I, O any](ctx context.Context, client *cluster.Client, id string, spec Spec, orchestration replay.OrchestrationHandle[I, O], input I) error {
	target, err := newTarget(orchestration, input)
	if err == nil {
		err = schedules.Check(id, spec, target)
	}
	return update(ctx, client, id, "update", schedules.ReplaceUpdate, schedules.Replacement{Spec: spec, Target: &target}, err)
}

// Pause stops a schedule from starting runs for due times until [Resume]; [Trigger] and [Backfill]
// still do. A due time that has passed and is delayed by the jitter starts at once. Those that an
// outage has left undecided are dropped at Resume, and not counted. The note has at most 1,000
// bytes.
func Pause(ctx context.Context, client *cluster.Client, id, note string) error {
	return update(ctx, client, id, "pause", schedules.PauseUpdate, note, schedules.CheckNote(note))
}

// Resume continues a paused schedule with the due times after now, and with the buffered ones. The
// note replaces that of Pause. A schedule that is not paused only gets the note.
func Resume(ctx context.Context, client *cluster.Client, id, note string) error {
	return update(ctx, client, id, "resume", schedules.ResumeUpdate, note, schedules.CheckNote(note))
}

// Trigger starts a run now, also if the schedule is paused. The overlap policy applies; "" means
// that of the schedule. The answer says whether the run was started, buffered or skipped. The
// instance of a started run may not exist yet when Trigger returns. A buffered run starts also if
// the schedule is paused.
func Trigger(ctx context.Context, client *cluster.Client, id string, overlap Overlap) (Start, error) {
	return call(ctx, client, id, "trigger", schedules.TriggerUpdate, overlap, schedules.CheckOverlap(overlap))
}

// Backfill starts runs for the due times of the present Spec in a past interval, which includes
// from and excludes before: at most 1,000. The overlap policy applies; "" means [BufferAll]. On a
// paused schedule too, runs start, buffered ones among them. A due time whose run has not been
// purged starts nothing: its outcome becomes [Exists]. The answer says for each due time
// whether its run was started, buffered or skipped. The instances of started runs may not exist yet
// when Backfill returns.
//
// Errors: [*replay.InvalidError] for an interval that is empty, ends in the future, or has too many
// due times; those of [cluster.CallUpdate].
func Backfill(ctx context.Context, client *cluster.Client, id string, from, before time.Time, overlap Overlap) ([]Start, error) {
	r := schedules.Range{From: from, Before: before, Overlap: overlap}
	return call(ctx, client, id, "backfill", schedules.BackfillUpdate, r, schedules.CheckRange(r))
}

// Delete ends a schedule. Its runs continue; buffered due times are dropped. [Describe] works until
// the instance is purged. To end a stalled schedule, use [cluster.Client.Terminate].
func Delete(ctx context.Context, client *cluster.Client, id string) error {
	return update(ctx, client, id, "delete", schedules.DeleteUpdate, struct{}{}, nil)
}

// Describe returns the spec of a schedule, its latest runs and its next due times; if the schedule
// has ended, as they were at its end.
func Describe(ctx context.Context, client *cluster.Client, id string) (*Description, error) {
	description, err := cluster.Query(ctx, client, id, schedules.DescribeQuery, time.Now())
	if err != nil {
		return nil, wrap(err, "describe", id)
	}
	return &description, nil
}

// update executes an update without a result, unless its input is not valid.
func update[I any](ctx context.Context, client *cluster.Client, id, verb string, handle replay.UpdateHandle[I, struct{}], input I, invalid error) error {
	_, err := call(ctx, client, id, verb, handle, input, invalid)
	return err
}

// call executes an update, unless its input is not valid.
func call[I, O any](ctx context.Context, client *cluster.Client, id, verb string, handle replay.UpdateHandle[I, O], input I, invalid error) (O, error) {
	var output O
	err := invalid
	if err == nil {
		output, err = cluster.CallUpdate(ctx, client, id, handle, input)
	}
	return output, wrap(err, verb, id)
}

// wrap says what failed. What a schedule rejects becomes a *replay.InvalidError.
func wrap(err error, verb, id string) error {
	var rejected *schedules.Rejection
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*replay.NotRegisteredError)):
		return fmt.Errorf("%s schedule: instance %q is not a schedule: %w", verb, id, err)
	case errors.As(err, &rejected):
		err = &replay.InvalidError{Field: rejected.Field, Reason: rejected.Reason}
	}
	return fmt.Errorf("%s schedule: %w", verb, err)
}
