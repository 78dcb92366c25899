package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

// A schedule that has missed due times needs attention for a day; one with a problem while it
// lasts.
func TestScheduleChecker_Missed(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	var c scheduleChecker
	check := func(at time.Time, d *schedule.Description, want string) {
		t.Helper()
		c.update(at, []described[schedule.Description]{
			{Status: &cluster.Status{InstanceID: "s"}, value: d}, {Status: &cluster.Status{InstanceID: "stalled"}},
		})
		title := ""
		if len(c.found) > 0 {
			title = c.found[0].Title
		}
		if len(c.found) > 1 || title != want {
			t.Errorf("%+v; want %q", c.found, want)
		}
	}
	const missed = "Schedule s has missed due times"
	check(now, &schedule.Description{}, "")
	check(now, &schedule.Description{Missed: 1}, missed)
	check(now.Add(23*time.Hour), &schedule.Description{Missed: 1}, missed)
	check(now.Add(24*time.Hour), &schedule.Description{Missed: 1}, "")
	check(now.Add(25*time.Hour), &schedule.Description{Missed: 2}, missed)
	check(now.Add(60*time.Hour), &schedule.Description{Missed: 2, Problem: "no such zone"}, "The due times of schedule s cannot be computed")
}

var unlucky = replay.Activity[string, string]("unlucky")

// The overview shows instances that fail again and again, and the one that waits for the longest
// time.
func TestOverview_Attention(t *testing.T) {
	fails := replay.Orchestration[string, string]("fails")
	c := clustertest.New(t, 1, clustertest.Definitions(append(welcomeDefinitions(),
		unlucky.Bind(func(context.Context, string) (string, error) { return "", errors.New("out of luck") }),
		fails.Bind(func(ctx *replay.Context, in string) (string, error) {
			return unlucky.Call(ctx, in, replay.Retry(replay.RetryPolicy{MaxAttempts: 100, InitialInterval: time.Millisecond, MaxInterval: time.Hour, Backoff: 100}))
		}))...))
	client := c.Client(0)
	for i := range 3 {
		if _, err := cluster.StartRun(t.Context(), client, welcome, fmt.Sprint("w", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if _, err := cluster.StartRun(t.Context(), client, fails, fmt.Sprint("f", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	a := newAPI(client)
	var overview overviewAnswer
	c.Eventually("two instances fail", func() bool {
		overview = fetch[overviewAnswer](t, a, "GET", "/overview", "", http.StatusOK)
		return slices.ContainsFunc(overview.Attention, func(v attentionView) bool {
			return v.Kind == "failing" && v.Count == 2 && v.Filter == "failing>=3 order=created"
		})
	})
	if !slices.ContainsFunc(overview.Attention, func(v attentionView) bool {
		return v.Kind == "oldest_waiting" && v.InstanceID == "w0" && v.Since != nil
	}) {
		t.Errorf("%+v", overview.Attention)
	}
}
