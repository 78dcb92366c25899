package replaytest_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// quickRun fails as often as its input says, then executes updates and ends in its first step.
var quickRun = replay.Orchestration[int, int]("run that ends at once")

func quickRunBody(ctx *replay.Context, fails int) (sum int, err error) {
	if ctx.Attempt() <= fails {
		return 0, errFlaky
	}
	err = change.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) {
		sum += n
		return sum, nil
	})
	if err == nil {
		err = replay.AwaitUpdates(ctx)
	}
	return sum, err
}

// A run that ends in its first step executes the update that it was started with, and so does the
// attempt that follows failed ones, after its backoff.
func TestUpdateOrStart_RunEndsInItsFirstStep(t *testing.T) {
	env := replaytest.New(t, quickRun.Bind(quickRunBody))
	retry := replay.Retry(replay.RetryPolicy{MaxAttempts: 5, InitialInterval: time.Minute})
	for fails := range 3 {
		id, began := fmt.Sprint("run-", fails), env.Now()
		for range 2 {
			run, sum, err := replaytest.UpdateOrStart(env, id, quickRun, fails, change, 7, replaytest.RequestID("r"), retry)
			if err != nil || sum != 7 {
				t.Fatalf("%d failures: %d, %v", fails, sum, err)
			}
			if output, err := run.Wait(); err != nil || output != 7 {
				t.Errorf("%d failures: the run: %d, %v", fails, output, err)
			}
		}
		if waited := env.Now().Sub(began); (waited > 0) != (fails > 0) {
			t.Errorf("%d failures: it took %v", fails, waited)
		}
	}
}

// A call does not attach to an instance of another orchestration.
func TestUpdateOrStart_OtherOrchestration(t *testing.T) {
	env := replaytest.New(t, quickRun.Bind(quickRunBody), counterRun.Bind(counterBody))
	if _, err := replaytest.StartRun(env, counterRun, "c", 1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := replaytest.UpdateOrStart(env, "c", quickRun, 0, change, 1); !errors.Is(err, replaytest.ErrInstanceExists) {
		t.Error(err)
	}
}
