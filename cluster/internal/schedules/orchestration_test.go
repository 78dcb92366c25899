package schedules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var report = replay.Orchestration[time.Duration, string]("report")

// sleeping is the body of report: it takes as long as its input says.
func sleeping(ctx *replay.Context, d time.Duration) (string, error) {
	return "done", ctx.Sleep(d)
}

// controlOf returns how activities control the instances of an environment.
func controlOf(t *testing.T, env **replaytest.Env) Control {
	return Control{
		Parent: func(_ context.Context, id string) (string, error) {
			if _, err := (*env).Get(id); err != nil {
				return "", err
			}
			var started struct {
				Body struct {
					Parent struct{ Instance string }
				} `json:"orchestrationStarted"`
			}
			text, err := (*env).History(id).Events[0].MarshalJSON()
			if err == nil {
				err = json.Unmarshal(text, &started)
			}
			return started.Body.Parent.Instance, err
		},
		Cancel:    func(_ context.Context, id, reason string) error { return (*env).Cancel(id, reason) },
		Terminate: func(_ context.Context, id, reason string) error { return (*env).Terminate(id, reason) },
	}
}

// newEnv returns an environment in which a schedule can start report.
func newEnv(t *testing.T, more ...replay.Definition) *replaytest.Env {
	t.Helper()
	var env *replaytest.Env
	env = replaytest.New(t, append(append(Definitions(controlOf(t, &env)), report.Bind(sleeping)), more...)...)
	return env
}

// create starts a schedule of report.
func create(t *testing.T, env *replaytest.Env, spec Spec, takes time.Duration) *replaytest.Run[Description] {
	t.Helper()
	input, err := json.Marshal(takes)
	if err != nil {
		t.Fatal(err)
	}
	run, err := replaytest.StartRun(env, Orchestration, "s", Input{Spec: spec, Target: Target{report.Name(), input}})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func describe(t *testing.T, env *replaytest.Env) Description {
	t.Helper()
	d, err := replaytest.Query(env, "s", DescribeQuery, env.Now())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// startedOf returns the due times of all runs, as the last part of their IDs.
func startedOf(env *replaytest.Env) (ids []string) {
	for _, id := range env.Instances() {
		if due, ok := strings.CutPrefix(id, "s-2000-"); ok {
			ids = append(ids, due)
		}
	}
	return ids
}

func expectStarted(t *testing.T, env *replaytest.Env, want ...string) {
	t.Helper()
	if got := startedOf(env); !slices.Equal(got, want) {
		t.Errorf("started %v\nwant    %v", got, want)
	}
}

func update[I, O any](t *testing.T, env *replaytest.Env, handle replay.UpdateHandle[I, O], input I) O {
	t.Helper()
	output, err := replaytest.CallUpdate(env, "s", handle, input)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func TestSchedule_StartsARunForEachDueTime(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly"}, Summary: "a report"}, time.Minute)
	env.Advance(2*time.Hour + 30*time.Second)
	expectStarted(t, env, "01-01T01:00:00Z", "01-01T02:00:00Z")
	d := describe(t, env)
	if len(d.Running) != 1 || d.Running[0].InstanceID != "s-2000-01-01T02:00:00Z" || d.Started != 2 {
		t.Errorf("in progress: %+v", d)
	}
	if len(d.Recent) != 2 || d.Recent[0].Outcome != Running || d.Recent[1].Outcome != Completed || d.Recent[1].EndedAt.Sub(d.Recent[1].Due) != time.Minute {
		t.Errorf("recent: %+v", d.Recent)
	}
	if len(d.Next) != 10 || d.Next[0].Format(time.TimeOnly) != "03:00:00" || d.Next[9].Format(time.TimeOnly) != "12:00:00" {
		t.Errorf("next: %v", d.Next)
	}
	status, err := env.Get("s-2000-01-01T01:00:00Z")
	if err != nil || status.Name != report.Name() {
		t.Errorf("the run: %+v, %v", status, err)
	}
}

func TestSchedule_Overlap(t *testing.T) {
	// Runs are due each minute; the first four take 150 s unless they are ended.
	for _, test := range []struct {
		overlap  Overlap
		outcomes string // of the runs begun in 6 minutes, oldest first
		skipped  int
		buffered int
	}{
		{Skip, "1 completed, 4 running", 4, 0},
		{BufferOne, "1 completed, 2 completed, 4 running", 3, 0},
		{BufferAll, "1 completed, 2 completed, 3 running", 0, 3},
		{Cancel, "1 canceled, 2 canceled, 3 canceled, 4 canceled, 5 canceled, 6 running", 0, 0},
		{Terminate, "1 terminated, 2 terminated, 3 terminated, 4 terminated, 5 terminated, 6 running", 0, 0},
		{Allow, "1 completed, 2 completed, 3 completed, 4 running, 5 running, 6 running", 0, 0},
	} {
		t.Run(string(test.overlap), func(t *testing.T) {
			env := newEnv(t)
			create(t, env, Spec{Every: time.Minute, Overlap: test.overlap}, 150*time.Second)
			env.Advance(6*time.Minute + 10*time.Second)
			d := describe(t, env)
			var outcomes []string
			for _, start := range slices.Backward(d.Recent) {
				outcomes = append(outcomes, fmt.Sprintf("%d %s", start.Due.Minute(), start.Outcome))
			}
			if got := strings.Join(outcomes, ", "); got != test.outcomes || d.Skipped != test.skipped || len(d.Buffered) != test.buffered {
				t.Errorf("%s; skipped %d, buffered %v\nwant %s", got, d.Skipped, d.Buffered, test.outcomes)
			}
		})
	}
}

// stubborn ignores the request to cancel for two and a half minutes.
func stubborn(ctx *replay.Context, d time.Duration) (string, error) {
	return "done", replay.WithoutCancel(ctx).Sleep(d)
}

func TestSchedule_CancelWaitsForTheEndAndStartsTheLatest(t *testing.T) {
	var env *replaytest.Env
	env = replaytest.New(t, append(Definitions(controlOf(t, &env)), report.Bind(stubborn))...)
	create(t, env, Spec{Every: time.Minute, Overlap: Cancel}, 150*time.Second)
	env.Advance(3*time.Minute + 20*time.Second)
	expectStarted(t, env, "01-01T00:01:00Z")
	env.Advance(20 * time.Second)
	expectStarted(t, env, "01-01T00:01:00Z", "01-01T00:03:00Z")
	if d := describe(t, env); d.Skipped != 1 {
		t.Errorf("skipped %d; want the start of 00:02", d.Skipped)
	}
}

func TestSchedule_CatchesUpWithinTheWindow(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@daily"}, CatchUp: 36 * time.Hour, Overlap: BufferAll}, time.Minute)
	env.Advance(25 * time.Hour)
	if err := env.Suspend("s", "an outage"); err != nil {
		t.Fatal(err)
	}
	env.Advance(4 * 24 * time.Hour)
	expectStarted(t, env, "01-02T00:00:00Z")
	if err := env.Resume("s", ""); err != nil {
		t.Fatal(err)
	}
	env.Advance(time.Hour)
	// It is 02:00 of the 6th: those of the 3rd and the 4th are older than 36 hours.
	expectStarted(t, env, "01-02T00:00:00Z", "01-05T00:00:00Z", "01-06T00:00:00Z")
	if d := describe(t, env); d.Missed != 2 || d.Skipped != 0 {
		t.Errorf("missed %d, skipped %d", d.Missed, d.Skipped)
	}
}

func TestSchedule_PauseAndResume(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly"}}, time.Minute)
	env.Advance(90 * time.Minute)
	update(t, env, PauseUpdate, "holidays")
	env.Advance(2 * time.Hour)
	if d := describe(t, env); !d.Paused || d.Note != "holidays" || len(d.Next) != 10 || d.Next[0].Hour() != 4 {
		t.Errorf("paused: %+v", d)
	}
	update(t, env, ResumeUpdate, "back")
	env.Advance(time.Hour)
	expectStarted(t, env, "01-01T01:00:00Z", "01-01T04:00:00Z")
	if d := describe(t, env); d.Paused || d.Note != "back" || d.Missed != 0 {
		t.Errorf("resumed: %+v", d)
	}
	_, err := replaytest.CallUpdate(env, "s", PauseUpdate, strings.Repeat("x", 1001))
	if !errors.As(err, new(*Rejection)) || !errors.As(err, new(*replaytest.RejectedError)) {
		t.Errorf("a long note: %v", err)
	}
}

func TestSchedule_TriggerFollowsThePolicy(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@daily"}}, time.Hour)
	update(t, env, PauseUpdate, "")
	first := update(t, env, TriggerUpdate, "")
	if first.InstanceID != "s-2000-01-01T00:00:00Z-1" || first.Outcome != Running || first.Cause != CauseTrigger {
		t.Errorf("first: %+v", first)
	}
	if second := update(t, env, TriggerUpdate, ""); second.Outcome != Skipped {
		t.Errorf("while it runs: %+v", second)
	}
	if third := update(t, env, TriggerUpdate, BufferOne); third.Outcome != Buffered {
		t.Errorf("buffered: %+v", third)
	}
	if fourth := update(t, env, TriggerUpdate, Allow); fourth.Outcome != Running {
		t.Errorf("allowed: %+v", fourth)
	}
	env.Advance(2 * time.Hour)
	expectStarted(t, env, "01-01T00:00:00Z-1", "01-01T00:00:00Z-3", "01-01T00:00:00Z-4")
	if _, err := replaytest.CallUpdate(env, "s", TriggerUpdate, "never"); !errors.As(err, new(*Rejection)) {
		t.Errorf("an unknown policy: %v", err)
	}
}

func TestSchedule_BackfillFillsGapsOnly(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@daily"}}, time.Hour)
	env.Advance(36 * time.Hour)
	update(t, env, PauseUpdate, "")
	env.Advance(3 * 24 * time.Hour)
	update(t, env, ResumeUpdate, "")
	from := env.Now().AddDate(0, 0, -6)
	starts := update(t, env, BackfillUpdate, Range{From: from, Before: env.Now()})
	if len(starts) != 6 || starts[0].Outcome != Running || starts[5].Outcome != Buffered || starts[5].Cause != CauseBackfill {
		t.Errorf("backfill: %+v", starts)
	}
	env.Advance(6*time.Hour + time.Minute)
	// 1999-12-31, and the first, which are before the schedule was created, are due too.
	expectStarted(t, env, "01-01T00:00:00Z", "01-02T00:00:00Z", "01-03T00:00:00Z", "01-04T00:00:00Z", "01-05T00:00:00Z")
	d := describe(t, env)
	exists := 0
	for _, start := range d.Recent {
		if start.Outcome == Exists {
			exists++
		}
	}
	if exists != 1 || d.Started != 7 {
		t.Errorf("%d of %d starts found an instance", exists, d.Started)
	}
	for _, r := range []Range{
		{From: from, Before: from}, {From: from, Before: env.Now().Add(time.Minute)}, {From: from.AddDate(-3, 0, 0), Before: from}, {From: from, Before: env.Now(), Overlap: "?"},
	} {
		if _, err := replaytest.CallUpdate(env, "s", BackfillUpdate, r); !errors.As(err, new(*Rejection)) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestSchedule_UpdateAppliesFromNowOn(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly"}}, time.Minute)
	env.Advance(90 * time.Minute)
	update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Cron: []string{"15 * * * *"}}})
	env.Advance(time.Hour)
	update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Cron: []string{"0 5 * * *"}}, Target: &Target{report.Name(), []byte("0")}})
	env.Advance(3 * time.Hour)
	expectStarted(t, env, "01-01T01:00:00Z", "01-01T02:15:00Z", "01-01T05:00:00Z")
	if d := describe(t, env); string(d.Input) != "0" || d.Spec.Cron[0] != "0 5 * * *" {
		t.Errorf("after the update: %+v", d)
	}
	if _, err := replaytest.CallUpdate(env, "s", ReplaceUpdate, Replacement{}); !errors.As(err, new(*Rejection)) {
		t.Errorf("an update without times: %v", err)
	}
}

func TestSchedule_UpdateKeepsWhatWasDue(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@daily"}, Jitter: 12 * time.Hour}, time.Minute)
	env.Advance(24*time.Hour + time.Second) // the jitter delays the start of the second
	expectStarted(t, env)
	update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Cron: []string{"@daily"}}})
	expectStarted(t, env, "01-02T00:00:00Z")
	env.Advance(24 * time.Hour)
	expectStarted(t, env, "01-02T00:00:00Z", "01-03T00:00:00Z")
}

func TestSchedule_UpdateAfterAnOutageStartsWhatWasMissed(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Every: time.Second, Overlap: Allow, CatchUp: 48 * time.Hour}, 0)
	if err := env.Suspend("s", "an outage"); err != nil {
		t.Fatal(err)
	}
	env.Advance(30 * time.Second)
	if err := env.Resume("s", ""); err != nil {
		t.Fatal(err)
	}
	update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Cron: []string{"@yearly"}}})
	if d := describe(t, env); d.Started != 30 || d.Missed != 0 {
		t.Errorf("started %d, missed %d", d.Started, d.Missed)
	}
}

func TestSchedule_DeleteEndsOnlyTheSchedule(t *testing.T) {
	env := newEnv(t)
	run := create(t, env, Spec{Cron: []string{"@hourly"}}, 30*time.Minute)
	env.Advance(time.Hour + time.Minute)
	update(t, env, DeleteUpdate, struct{}{})
	d, err := run.Wait()
	if err != nil || !d.Ended || d.Started != 1 || len(d.Next) != 0 {
		t.Errorf("after delete: %+v, %v", d, err)
	}
	if d := describe(t, env); !d.Ended || d.Started != 1 {
		t.Errorf("described: %+v", d)
	}
	env.Advance(3 * time.Hour)
	expectStarted(t, env, "01-01T01:00:00Z")
	if status, err := env.Get("s-2000-01-01T01:00:00Z"); err != nil || status.State != replaytest.Completed {
		t.Errorf("the run: %+v, %v", status, err)
	}
}

func TestSchedule_IgnoresRunsOfAnEarlierSchedule(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly"}}, 30*time.Minute)
	env.Advance(time.Hour + time.Minute)
	update(t, env, DeleteUpdate, struct{}{})
	second := Input{Spec: Spec{Cron: []string{"@daily"}}, Target: Target{report.Name(), json.RawMessage(fmt.Sprint(int(time.Hour)))}}
	if _, err := replaytest.StartRun(env, Orchestration, "s", second, replaytest.ReuseWhenEnded()); err != nil {
		t.Fatal(err)
	}
	update(t, env, TriggerUpdate, "")
	env.Advance(40 * time.Minute) // the run of the first schedule ends after 29 minutes
	if d := describe(t, env); d.Started != 1 || len(d.Running) != 1 {
		t.Errorf("the second schedule: %+v", d)
	}
	env.Advance(30 * time.Minute)
	if d := describe(t, env); len(d.Running) != 0 || d.Recent[0].Outcome != Completed {
		t.Errorf("the second schedule: %+v", d)
	}
}

func TestSchedule_CatchesUpInSeveralExecutions(t *testing.T) {
	env := newEnv(t)
	env.ReplayEvery(0)
	create(t, env, Spec{Every: time.Second}, 24*time.Hour)
	env.Advance(2 * time.Second)
	if err := env.Suspend("s", "an outage"); err != nil {
		t.Fatal(err)
	}
	env.Advance(10 * time.Hour)
	if err := env.Resume("s", ""); err != nil {
		t.Fatal(err)
	}
	env.Advance(time.Minute)
	status, err := env.Get("s")
	if err != nil || status.Execution < 2 {
		t.Errorf("execution %d, %v", status.Execution, err)
	}
	if d := describe(t, env); d.Started != 1 || d.Missed != 0 || d.Skipped != 10*60*60+60+1 {
		t.Errorf("started %d, skipped %d, missed %d", d.Started, d.Skipped, d.Missed)
	}
}

// An update starts what was due before it, but not more than one step of the code may take.
func TestSchedule_RefusesAnUpdateWhileItCatchesUp(t *testing.T) {
	late := replay.Orchestration[time.Duration, int]("late")
	env := newEnv(t, late.Bind(func(ctx *replay.Context, by time.Duration) (int, error) {
		s := &schedule{id: "s", spec: Spec{Every: time.Second}, target: Target{report.Name(), []byte("0")}, State: State{Last: ctx.Now().Add(-by)}}
		_, err := s.replace(ctx, Replacement{Spec: Spec{Every: time.Hour}})
		return s.Started + s.Skipped, err
	}))
	if decided, err := replaytest.Call(env, late, "soon", time.Hour); err != nil || decided != 60*60 {
		t.Errorf("after an hour: %d decided, %v", decided, err)
	}
	if _, err := replaytest.Call(env, late, "long", 10*time.Hour); !errors.Is(err, ErrCatchingUp) {
		t.Errorf("after 10 hours: %v", err)
	}
}

func TestSchedule_CancelEndsOnlyTheSchedule(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly"}}, 30*time.Minute)
	env.Advance(time.Hour + time.Minute)
	if err := env.Cancel("s", "enough"); err != nil {
		t.Fatal(err)
	}
	env.Advance(2 * time.Hour)
	expectStarted(t, env, "01-01T01:00:00Z")
	if d := describe(t, env); !d.Ended {
		t.Errorf("after cancel: %+v", d)
	}
	if status, err := env.Get("s-2000-01-01T01:00:00Z"); err != nil || status.State != replaytest.Completed {
		t.Errorf("the run: %+v, %v", status, err)
	}
}

func TestSchedule_ContinuesAsNewAndKeepsRunsAndBuffer(t *testing.T) {
	env := newEnv(t)
	// Each second run is buffered behind the one before.
	create(t, env, Spec{Every: time.Minute, Overlap: BufferOne}, 90*time.Second)
	hours, executions := 9, uint64(4)
	if shorttest.Race {
		hours, executions = 3, 2
	}
	env.Advance(time.Duration(hours) * time.Hour)
	status, err := env.Get("s")
	if err != nil || status.Execution < executions {
		t.Fatalf("execution %d, %v", status.Execution, err)
	}
	if events := len(env.History("s").Events); events > 2500 {
		t.Errorf("%d events in an execution", events)
	}
	d := describe(t, env)
	// One run after another: a start each 90 s.
	if want := hours * 60 * 60 / 90; d.Started < want-1 || d.Started > want || d.Missed != 0 || len(d.Running) != 1 {
		t.Errorf("started %d, missed %d, running %d; want %d starts", d.Started, d.Missed, len(d.Running), want)
	}
	if got := len(startedOf(env)); got != d.Started {
		t.Errorf("%d instances for %d starts", got, d.Started)
	}
}

func TestSchedule_NoMoreDueTimesWaitsForUpdates(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly"}, Until: env.Now().Add(2 * time.Hour)}, 0)
	env.Advance(5 * time.Hour)
	expectStarted(t, env, "01-01T01:00:00Z")
	if d := describe(t, env); len(d.Next) != 0 || d.Ended {
		t.Errorf("after its last due time: %+v", d)
	}
	update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Cron: []string{"@hourly"}}})
	env.Advance(time.Hour)
	expectStarted(t, env, "01-01T01:00:00Z", "01-01T06:00:00Z")
}

// The zone is known where the schedule was created, and not on this node.
func TestSchedule_WithoutItsTimeZoneShowsTheProblemAndTriesAgain(t *testing.T) {
	env := newEnv(t)
	unknown := Input{
		Spec: Spec{Cron: []string{"@hourly"}, TimeZone: "Europe/Atlantis"}, Target: Target{report.Name(), []byte("0")}, State: &State{Last: env.Now()},
	}
	if _, err := replaytest.StartRun(env, Orchestration, "s", unknown); err != nil {
		t.Fatal(err)
	}
	env.Advance(90 * time.Minute)
	if d := describe(t, env); !strings.Contains(d.Problem, "Europe/Atlantis") || d.Started != 0 || len(d.Next) != 0 {
		t.Errorf("without the zone: %+v", d)
	}
	update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Cron: []string{"@hourly"}}})
	env.Advance(time.Hour)
	expectStarted(t, env, "01-01T02:00:00Z")
	if d := describe(t, env); d.Problem != "" {
		t.Errorf("with another zone: %+v", d)
	}
}

func TestSchedule_RejectsInvalidInput(t *testing.T) {
	env := newEnv(t)
	_, err := replaytest.Call(env, Orchestration, "s", Input{Spec: Spec{Cron: []string{"* * * * 8"}}, Target: Target{report.Name(), []byte("0")}})
	var rejected *Rejection
	if !errors.As(err, &rejected) || rejected.Field != "Spec.Cron[0]" {
		t.Errorf("%v", err)
	}
}

func TestSchedule_ReportsHowRunsEnd(t *testing.T) {
	broken := replay.Orchestration[time.Duration, string]("broken")
	env := newEnv(t, broken.Bind(func(*replay.Context, time.Duration) (string, error) { return "", errors.New(strings.Repeat("é", 600)) }))
	create(t, env, Spec{Cron: []string{"@hourly"}, RunID: "report-{time}"}, time.Minute)
	if _, err := replaytest.StartRun(env, report, "report-2000-01-01T01:00:00Z", time.Hour); err != nil {
		t.Fatal(err)
	}
	env.Advance(61 * time.Minute)
	if d := describe(t, env); d.Recent[0].Outcome != Exists || len(d.Running) != 0 {
		t.Errorf("an instance has the ID: %+v", d.Recent)
	}
	update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Cron: []string{"@hourly"}}, Target: &Target{broken.Name(), []byte("0")}})
	env.Advance(time.Hour)
	if start := describe(t, env).Recent[0]; start.Outcome != Failed || len(start.Error) < 900 || len(start.Error) > 1000 || !utf8.ValidString(start.Error) {
		t.Errorf("a failed run: %+v", start)
	}
}

func TestSchedule_NoticesALostFollower(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Every: 30 * time.Minute}, 24*time.Hour)
	env.Advance(35 * time.Minute)
	for _, id := range env.Instances() {
		if strings.HasPrefix(id, "s::") {
			if err := env.Terminate(id, "by mistake"); err != nil {
				t.Fatal(err)
			}
		}
	}
	env.Advance(time.Hour) // skips 01:00; asks at 01:30
	if d := describe(t, env); len(d.Running) != 0 || d.Recent[0].Outcome != Failed || d.Skipped != 2 {
		t.Errorf("before: %+v", d)
	}
	env.Advance(30 * time.Minute)
	expectStarted(t, env, "01-01T00:30:00Z", "01-01T02:00:00Z")
}

// largestStep returns how much a step of the code has recorded at most, in bytes of JSON. A timer
// that fires begins a step.
func largestStep(t *testing.T, env *replaytest.Env) (most int) {
	t.Helper()
	status, err := env.Get("s")
	if err != nil {
		t.Fatal(err)
	}
	step := 0
	for execution := range status.Execution {
		for _, event := range env.HistoryOf("s", execution+1).Events {
			text, err := event.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if step += len(text); event.Type == history.TimerFired {
				step = 0
			}
			most = max(most, step)
		}
	}
	return most
}

// appendMax is what the cluster appends at most in one turn of an instance.
const appendMax = 4_128_768

func TestSchedule_LargeInputsAreChainedInSeveralSteps(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *replaytest.Env){
		"backfill": func(t *testing.T, env *replaytest.Env) {
			if starts := update(t, env, BackfillUpdate, Range{From: env.Now().Add(-100 * time.Minute), Before: env.Now(), Overlap: Allow}); len(starts) != 100 {
				t.Errorf("%d answers", len(starts))
			}
		},
		"update": func(t *testing.T, env *replaytest.Env) {
			update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Cron: []string{"@yearly"}, Overlap: Allow}})
		},
		"outage": func(*testing.T, *replaytest.Env) {},
	} {
		t.Run(name, func(t *testing.T) {
			ignoring := replay.Orchestration[string, int]("ignoring")
			env := newEnv(t, ignoring.Bind(func(_ *replay.Context, input string) (int, error) { return len(input), nil }))
			env.ReplayEvery(0) // there are megabytes of history
			target := Target{ignoring.Name(), []byte(`"` + strings.Repeat("x", 50_000) + `"`)}
			if _, err := replaytest.StartRun(env, Orchestration, "s", Input{Spec: Spec{Every: time.Minute, Overlap: Allow}, Target: target}); err != nil {
				t.Fatal(err)
			}
			if name == "backfill" {
				update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Every: time.Minute, Overlap: Allow, Until: env.Now()}})
				begin(t, env)
			} else {
				if err := env.Suspend("s", "an outage"); err != nil {
					t.Fatal(err)
				}
				env.Advance(100 * time.Minute)
				if err := env.Resume("s", ""); err != nil {
					t.Fatal(err)
				}
				begin(t, env)
			}
			env.Advance(time.Second)
			d := describe(t, env)
			if d.Started != 100 || d.Skipped != 0 || d.Missed != 0 || len(d.Buffered) != 0 || len(d.Running) != 0 {
				t.Errorf("started %d, skipped %d, missed %d, waiting %d, running %d", d.Started, d.Skipped, d.Missed, len(d.Buffered), len(d.Running))
			}
			if most := largestStep(t, env); most > appendMax/2 {
				t.Errorf("a step recorded %d bytes", most)
			}
		})
	}
}

// A user's instance has the ID of a run. The next due time comes before the follower has reported
// that; neither policy may end that instance.
func TestSchedule_StopsNoInstanceThatItHasNotStarted(t *testing.T) {
	for _, overlap := range []Overlap{Cancel, Terminate} {
		t.Run(string(overlap), func(t *testing.T) {
			const id = "s-2000-01-01T00:00:00Z-1"
			twice := replay.Orchestration[Overlap, int]("twice")
			env := newEnv(t, twice.Bind(func(ctx *replay.Context, overlap Overlap) (int, error) {
				s := &schedule{id: "s", spec: Spec{Every: time.Hour, Overlap: overlap}, target: Target{report.Name(), []byte("0")}}
				for range 2 {
					if _, err := s.trigger(ctx, ""); err != nil {
						return 0, err
					}
				}
				return len(s.Buffer), ctx.Sleep(10 * time.Second)
			}))
			if _, err := replaytest.StartRun(env, report, id, time.Hour); err != nil {
				t.Fatal(err)
			}
			if buffered, err := replaytest.Call(env, twice, "s", overlap); err != nil || buffered != 1 {
				t.Errorf("buffered %d, %v", buffered, err)
			}
			if status, err := env.Get(id); err != nil || status.State != replaytest.Running {
				t.Errorf("the instance of the user: %+v, %v", status, err)
			}
		})
	}
}

func TestSchedule_StartOfTheSameDueTimeStopsNothing(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Every: time.Hour, Jitter: 30 * time.Minute, Overlap: Terminate}, 50*time.Minute)
	env.Advance(time.Hour + time.Second)
	again := Range{From: env.Now().Add(-time.Minute), Before: env.Now(), Overlap: Terminate}
	first := update(t, env, BackfillUpdate, again)
	second := update(t, env, BackfillUpdate, again)
	if first[0].Outcome != Running || second[0].Outcome != Exists || second[0].InstanceID != first[0].InstanceID {
		t.Errorf("%+v, %+v", first, second)
	}
	env.Advance(40 * time.Minute) // the delayed start of that due time
	if d := describe(t, env); d.Started != 1 || len(d.Running) != 1 || len(d.Buffered) != 0 {
		t.Errorf("%+v", d)
	}
	expectStarted(t, env, "01-01T01:00:00Z")
	update(t, env, TriggerUpdate, BufferAll)
	buffered := Range{From: env.Now().Add(-2 * time.Hour), Before: env.Now().Add(-50 * time.Minute), Overlap: BufferAll}
	update(t, env, BackfillUpdate, buffered)
	if starts := update(t, env, BackfillUpdate, buffered); starts[0].Outcome != Exists {
		t.Errorf("buffered twice: %+v", starts)
	}
}

func TestSchedule_StoppingStartComesBeforeBufferedOnes(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@yearly"}}, time.Hour)
	update(t, env, TriggerUpdate, "")
	update(t, env, TriggerUpdate, BufferAll)
	update(t, env, TriggerUpdate, Cancel)
	env.Advance(time.Minute)
	expectStarted(t, env, "01-01T00:00:00Z-1", "01-01T00:00:00Z-3")
	env.Advance(time.Hour)
	expectStarted(t, env, "01-01T00:00:00Z-1", "01-01T00:00:00Z-2", "01-01T00:00:00Z-3")
}

func TestSchedule_PauseStartsWhatTheJitterDelays(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@daily"}, Jitter: 12 * time.Hour}, time.Minute)
	env.Advance(24*time.Hour + time.Second)
	expectStarted(t, env)
	update(t, env, PauseUpdate, "")
	expectStarted(t, env, "01-02T00:00:00Z")
	update(t, env, PauseUpdate, "again")
	update(t, env, ResumeUpdate, "")
	env.Advance(24*time.Hour - time.Minute)
	if d := describe(t, env); d.Started != 1 {
		t.Errorf("started %d", d.Started)
	}
}

func TestSchedule_StateFitsAValue(t *testing.T) {
	late := time.Date(2261, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	id := strings.Repeat("i", 80)
	s := &schedule{id: id, spec: Spec{RunID: strings.Repeat("r", 102) + "{time}", Every: time.Hour}}
	for range 20 {
		s.spec.Cron = append(s.spec.Cron, strings.Repeat("0,", 90)+"0 * * * *")
	}
	s.target = Target{strings.Repeat("n", 128), []byte(`"` + strings.Repeat("x", inputMax-2) + `"`)}
	run := tracked{
		Start: Start{InstanceID: strings.Repeat("r", 128), Due: late, StartedAt: late, Cause: CauseBackfill, Outcome: Running},
		Key:   "0123456789abcdef", Verified: late, Stopping: Terminate,
	}
	for len(s.Running) < runningMax && s.hasBytes(trackedBytes) {
		s.Running = append(s.Running, run)
	}
	for s.hasSpace() {
		s.Queue = append(s.Queue, pending{Due: late, Cause: CauseBackfill, Trigger: 1_000_000_000, Overlap: BufferOne})
	}
	run.EndedAt, run.Error, run.Outcome = late, strings.Repeat("\x01", textMax), Terminated
	for range recentMax {
		s.record(run)
	}
	if size := s.size(); size > replay.PayloadMax || size < replay.PayloadMax/2 {
		t.Errorf("%d bytes with %d runs in progress and %d starts that wait", size, len(s.Running), len(s.Queue))
	}
}

// The client knew the zone of a new schedule, and this node does not.
func TestSchedule_BeginsWithoutItsTimeZone(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly"}, TimeZone: "Europe/Atlantis"}, 0)
	env.Advance(90 * time.Minute)
	if d := describe(t, env); !strings.Contains(d.Problem, "Europe/Atlantis") || d.Ended {
		t.Errorf("without the zone: %+v", d)
	}
	_, err := replaytest.Call(env, Orchestration, "t", Input{
		Spec: Spec{Cron: []string{"@hourly"}, TimeZone: "Europe/Atlantis", Jitter: -1}, Target: Target{report.Name(), []byte("0")},
	})
	if rejected := new(Rejection); !errors.As(err, &rejected) || rejected.Field != "Spec.Jitter" {
		t.Errorf("with another fault: %v", err)
	}
}
