package api

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/replay"
)

// Attempts of an open activity are in the answer of pending, those of an ended one in the timeline
// and in the history.
func TestTimeline_ShowsAttempts(t *testing.T) {
	release := make(chan struct{})
	retried := replay.Orchestration[string, string]("retried")
	c := clustertest.New(t, 1, clustertest.Definitions(
		unlucky.Bind(func(ctx context.Context, _ string) (string, error) {
			if replay.ActivityInfo(ctx).Number < 3 {
				return "", replay.WithCode("luck", errors.New("out of luck"))
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return "lucky", nil
		}),
		retried.Bind(func(ctx *replay.Context, in string) (string, error) {
			return unlucky.Call(ctx, in, replay.Retry(replay.RetryPolicy{InitialInterval: time.Millisecond}))
		})))
	run, err := cluster.StartRun(t.Context(), c.Client(0), retried, "r", "x")
	if err != nil {
		t.Fatal(err)
	}
	a := newAPI(c.Client(0))
	var open pendingAnswer
	c.Eventually("the third attempt runs", func() bool {
		open = fetch[pendingAnswer](t, a, "GET", "/instances/r/pending", "", http.StatusOK)
		return len(open.Operations) == 1 && len(open.Operations[0].Attempts) == 3
	})
	checkAttempts(t, open.Operations[0].Attempts, true)
	close(release)
	if _, err := run.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	row := fetch[timelineAnswer](t, a, "GET", "/instances/r/timeline", "", http.StatusOK).Rows[0]
	if row.AttemptCount != 3 {
		t.Errorf("%d attempts", row.AttemptCount)
	}
	checkAttempts(t, row.Attempts, false)
	checkAttempts(t, fetch[historyAnswer](t, a, "GET", "/instances/r/history", "", http.StatusOK).Events[2].Attempts, false)
}

func checkAttempts(t *testing.T, attempts []attemptView, lastRuns bool) {
	t.Helper()
	if len(attempts) != 3 {
		t.Fatalf("%d attempts are known", len(attempts))
	}
	for i, v := range attempts {
		last := i == 2
		if v.Number != i+1 || v.From == nil || (v.To == nil) != (last && lastRuns) || v.To != nil && v.To.Before(*v.From) || (v.Error == nil) != last {
			t.Errorf("attempt %d is %+v", i+1, v)
		}
		if i > 0 && v.From.Before(*attempts[i-1].To) {
			t.Errorf("attempt %d began before the end of the one before it", i+1)
		}
		if v.Error != nil && (v.Error.Code != "luck" || v.Error.Message != "out of luck") {
			t.Errorf("attempt %d failed with %+v", i+1, v.Error)
		}
	}
}
