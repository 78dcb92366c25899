package replaytest_test

import (
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var counterRun = replay.Orchestration[int, int]("counter of updates")

// counterBody adds updates to its input until a decision comes. It rejects 0.
func counterBody(ctx *replay.Context, sum int) (int, error) {
	validate := func(n int) error {
		if n == 0 {
			return errFlaky
		}
		return nil
	}
	err := change.Handle(ctx, validate, func(_ *replay.Context, n int) (int, error) {
		sum += n
		return sum, nil
	})
	if err == nil {
		_, err = approved.Wait(ctx)
	}
	return sum, err
}

func TestUpdateOrStart_RepeatedOnce(t *testing.T) {
	env := replaytest.New(t, counterRun.Bind(counterBody))
	call := func(request string, n, want int, attached bool) *replaytest.Run[int] {
		t.Helper()
		run, sum, err := replaytest.UpdateOrStart(env, "c", counterRun, 1, change, n, replaytest.RequestID(request), replaytest.ReuseWhenEnded())
		if err != nil || sum != want || run.Attached != attached {
			t.Fatalf("%s: %+v, %d, %v; want %d, attached %t", request, run, sum, err, want, attached)
		}
		return run
	}
	for range 2 {
		call("begins", 10, 11, false)
		call("attaches", 100, 111, true)
	}
	if err := replaytest.Send(env, "c", approved, true); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		call("begins", 10, 11, false)
		call("attaches", 100, 111, true)
	}
	if status, err := env.Get("c"); err != nil || status.Execution != 1 || status.State != replaytest.Completed {
		t.Errorf("%+v, %v", status, err)
	}
	for range 2 {
		call("next", 1000, 1001, false)
		first := call("begins", 10, 11, false)
		if sum, err := first.Wait(); err != nil || sum != 111 {
			t.Errorf("the first run: %d, %v", sum, err)
		}
	}
	if status, err := env.Get("c"); err != nil || status.Execution != 2 || status.State != replaytest.Running {
		t.Errorf("%+v, %v", status, err)
	}
}

func TestUpdateOrStart_Failures(t *testing.T) {
	env := replaytest.New(t, counterRun.Bind(counterBody), flakyRun.Bind(flakyBody))
	var rejected *replaytest.RejectedError
	if run, _, err := replaytest.UpdateOrStart(env, "c", counterRun, 1, change, 0); !errors.As(err, &rejected) || !errors.Is(err, errFlaky) || run == nil {
		t.Errorf("%+v, %v", run, err)
	}
	var none *replay.NotRegisteredError
	if run, _, err := replaytest.UpdateOrStart(env, "a", flakyRun, 1, change, 1); !errors.As(err, &none) || none.Kind != "update" || run == nil {
		t.Errorf("%+v, %v", run, err)
	}
	for _, id := range []string{"c", "a"} {
		if status, err := env.Get(id); err != nil || status.State != replaytest.Running {
			t.Errorf("%s: %+v, %v", id, status, err)
		}
	}
	if _, _, err := replaytest.UpdateOrStart(env, "new", counterRun, 1, change, 1, replaytest.RequestID("r")); err != nil {
		t.Fatal(err)
	}
	if run, _, err := replaytest.UpdateOrStart(env, "new", counterRun, 2, change, 1, replaytest.RequestID("r")); !errors.Is(err, replaytest.ErrRequestIDReused) || run != nil {
		t.Errorf("%+v, %v", run, err)
	}
	if err := replaytest.Send(env, "new", approved, true); err != nil {
		t.Fatal(err)
	}
	if run, _, err := replaytest.UpdateOrStart(env, "new", counterRun, 1, change, 1); !errors.Is(err, replaytest.ErrEnded) || run == nil {
		t.Errorf("an ended run: %+v, %v", run, err)
	}
}
