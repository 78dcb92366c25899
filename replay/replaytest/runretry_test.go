package replaytest_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var (
	flakyRun = replay.Orchestration[int, string]("flaky")
	parentOf = replay.Orchestration[int, string]("parent of flaky")
	errFlaky = replay.NewError("test.flaky", "flaky")
)

// flakyBody fails in all attempts before the one that succeeds.
func flakyBody(ctx *replay.Context, succeeds int) (string, error) {
	if err := ctx.Sleep(time.Second); err != nil {
		return "", err
	}
	if ctx.Attempt() < succeeds {
		return "", fmt.Errorf("attempt %d: %w", ctx.Attempt(), errFlaky)
	}
	return fmt.Sprintf("attempt %d in execution %d", ctx.Attempt(), ctx.Execution()), nil
}

func TestRunRetry_WaitsFollowAttempts(t *testing.T) {
	env := replaytest.New(t, flakyRun.Bind(flakyBody))
	began := env.Now()
	run, err := replaytest.StartRun(env, flakyRun, "a", 3, replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour}))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(); got != "attempt 3 in execution 3" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// Longer than MaxInterval, an interval counts as MaxInterval: 100 s.
	if took := env.Now().Sub(began); took < 2*80*time.Second || took > 2*120*time.Second+3*time.Second {
		t.Errorf("three attempts took %v", took)
	}
	if status := run.Status(); status.State != replaytest.Completed || status.Execution != 3 {
		t.Errorf("%+v", status)
	}
	last := env.HistoryOf("a", 1).Events
	if end := last[len(last)-1]; end.Type != history.OrchestrationContinuedAsNew || !errors.Is(end.Err(), errFlaky) {
		t.Errorf("the first attempt ended with %v, %v", end, end.Err())
	}
	if err := env.HistoryOf("a", 2).Events[0].Err(); !errors.Is(err, errFlaky) {
		t.Errorf("the second attempt began after %v", err)
	}
}

func TestRunRetry_LastAttemptFails(t *testing.T) {
	env := replaytest.New(t, flakyRun.Bind(flakyBody))
	for most, want := range map[int]uint64{1: 1, 2: 2, 4: 4} {
		id := fmt.Sprint("run-", most)
		_, err := replaytest.Call(env, flakyRun, id, 9, replay.Retry(replay.RetryPolicy{MaxAttempts: most}))
		var ended *replaytest.RunError
		if !errors.As(err, &ended) || ended.State != replaytest.Failed || !errors.Is(err, errFlaky) {
			t.Errorf("%v", err)
		}
		if status, err := env.Get(id); err != nil || status.Execution != want {
			t.Errorf("%+v, %v; want %d executions", status, err, want)
		}
	}
	_, err := replaytest.Call(env, flakyRun, "final", 9, replay.Retry(replay.RetryPolicy{NonRetryableCodes: []string{"test.flaky"}}))
	if status, _ := env.Get("final"); !errors.Is(err, errFlaky) || status.Execution != 1 {
		t.Errorf("a code that is not retried: %+v, %v", status, err)
	}
}

// A parent gets the last outcome only, and its own history has no trace of the failed attempts.
func TestRunRetry_Child(t *testing.T) {
	env := replaytest.New(t, flakyRun.Bind(flakyBody), parentOf.Bind(func(ctx *replay.Context, succeeds int) (string, error) {
		return flakyRun.Call(ctx, succeeds, replay.ChildID(ctx.InstanceID()+"-child"), replay.Retry(replay.RetryPolicy{MaxAttempts: 3}))
	}))
	if got, err := replaytest.Call(env, parentOf, "good", 3); got != "attempt 3 in execution 3" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_, err := replaytest.Call(env, parentOf, "bad", 4)
	var failed *replay.ChildError
	if !errors.As(err, &failed) || failed.Instance != "bad-child" || !errors.Is(err, errFlaky) {
		t.Errorf("%v", err)
	}
	for _, parent := range []string{"good", "bad"} {
		if events := env.History(parent).Events; len(events) != 4 {
			t.Errorf("%s has the history %v", parent, events)
		}
	}
}

// The deadline of a run and a cancellation end an attempt that waits for its time.
func TestRunRetry_CanceledBetweenAttempts(t *testing.T) {
	env := replaytest.New(t, flakyRun.Bind(flakyBody))
	policy := replay.Retry(replay.RetryPolicy{InitialInterval: 50 * time.Second})
	_, err := replaytest.Call(env, flakyRun, "deadline", 9, policy, replaytest.Deadline(env.Now().Add(20*time.Second)))
	if status, _ := env.Get("deadline"); !errors.Is(err, replay.ErrCanceled) || status.Execution != 2 {
		t.Errorf("%+v, %v", status, err)
	}
	run, err := replaytest.StartRun(env, flakyRun, "canceled", 9, policy)
	if err != nil {
		t.Fatal(err)
	}
	env.Advance(20 * time.Second)
	if err := env.Cancel("canceled", "enough"); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(); !errors.Is(err, replay.ErrCanceled) || run.Status().Execution != 2 {
		t.Errorf("%+v, %v", run.Status(), err)
	}
}

func TestSummary_InStatus(t *testing.T) {
	env := replaytest.New(t, flakyRun.Bind(flakyBody), parentOf.Bind(func(ctx *replay.Context, succeeds int) (string, error) {
		return flakyRun.Call(ctx, succeeds, replay.ChildID("child"), replay.Summary("its child"))
	}))
	if _, err := replaytest.Call(env, flakyRun, "a", 2, replay.Retry(replay.RetryPolicy{}), replay.Summary("a flaky one")); err != nil {
		t.Fatal(err)
	}
	if _, err := replaytest.Call(env, parentOf, "b", 1); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"a": "a flaky one", "b": "", "child": "its child"} {
		if status, err := env.Get(id); err != nil || status.Summary != want {
			t.Errorf("%s: %+v, %v", id, status, err)
		}
	}
	var invalid *replay.InvalidError
	if _, err := replaytest.StartRun(env, flakyRun, "c", 1, replay.Summary("\t")); !errors.As(err, &invalid) || invalid.Field != "option Summary" {
		t.Errorf("%v", err)
	}
	if _, err := replaytest.StartRun(env, flakyRun, "c", 1, replay.Retry(replay.RetryPolicy{NonRetryableCodes: []string{""}})); !errors.As(err, &invalid) || invalid.Field != "option Retry" {
		t.Errorf("%v", err)
	}
}
