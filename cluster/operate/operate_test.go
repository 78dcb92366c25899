package operate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const testPartitions = 2

var (
	flaky   = replay.Activity[string, string]("flaky")
	hanging = replay.Activity[string, string]("hanging")
	counted = replay.Activity[string, string]("counted")
	signal  = replay.Event[string]("signal")
	child   = replay.Orchestration[string, string]("child")
	program = replay.Orchestration[string, string]("program")
)

// A service is the code of the nodes of a test.
type service struct {
	healthy  atomic.Bool // flaky activities succeed
	attempts atomic.Int64
	counts   atomic.Int64 // counted activities that have begun; further attempts of one do not count
	begun    sync.Map     // their idempotency keys
}

func (s *service) definitions() []replay.Definition {
	return []replay.Definition{
		program.Bind(programBody), child.Bind(func(ctx *replay.Context, _ string) (string, error) { return signal.Wait(ctx) }),
		flaky.Bind(func(_ context.Context, name string) (string, error) {
			s.attempts.Add(1)
			if !s.healthy.Load() {
				return "", errors.New("the bank is down")
			}
			return name + " done", nil
		}),
		hanging.Bind(func(ctx context.Context, _ string) (string, error) {
			s.attempts.Add(1)
			<-ctx.Done()
			return "", context.Cause(ctx)
		}),
		counted.Bind(func(ctx context.Context, name string) (string, error) {
			if _, again := s.begun.LoadOrStore(replay.ActivityInfo(ctx).IdempotencyKey(), true); !again {
				s.counts.Add(1)
			}
			return name, nil
		}),
	}
}

// programBody schedules one operation of the kind that its input names, and returns its outcome.
func programBody(ctx *replay.Context, kind string) (string, error) {
	longBackoff := replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour})
	switch kind {
	case "flaky":
		return flaky.Call(ctx, kind, longBackoff)
	case "hanging":
		return hanging.Call(ctx, kind, longBackoff)
	case "counted":
		return counted.Call(ctx, kind)
	case "timer":
		return "slept", ctx.Sleep(time.Hour)
	case "soon":
		return "slept", ctx.Sleep(200 * time.Millisecond)
	case "child":
		return child.Call(ctx, "", replay.ChildID(ctx.InstanceID()+"-child"))
	}
	return signal.Wait(ctx)
}

func newCluster(t *testing.T, s *service) *clustertest.Cluster {
	return clustertest.New(t, 3, clustertest.Definitions(s.definitions()...), clustertest.Configure(func(_ int, config *cluster.Config) {
		config.Partitions = testPartitions
	}))
}

// start starts a program and returns its operation when holds says that it is in the right state.
func start(t *testing.T, c *clustertest.Cluster, kind, id string, holds func(*cluster.OpenOperation) bool) (cluster.Run[string], operate.Operation) {
	t.Helper()
	client := c.Client(0)
	run, err := cluster.StartRun(t.Context(), client, program, id, kind)
	if err != nil {
		t.Fatal(err)
	}
	open := awaitOpen(t, c, client, id, holds)
	return *run, operate.Operation{InstanceID: id, Execution: open.Execution, EventID: open.EventID}
}

func awaitOpen(t *testing.T, c *clustertest.Cluster, client *cluster.Client, id string, holds func(*cluster.OpenOperation) bool) (found *cluster.OpenOperation) {
	t.Helper()
	c.Eventually("the operation of "+id+" is in the expected state", func() bool {
		open, err := client.Pending(t.Context(), id)
		if err != nil || len(open) == 0 || !holds(open[0]) {
			return false
		}
		found = open[0]
		return true
	})
	return found
}

func hasState(state string) func(*cluster.OpenOperation) bool {
	return func(o *cluster.OpenOperation) bool { return string(o.State) == state }
}

func isOpen(*cluster.OpenOperation) bool { return true }

func expect(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
}

func expectEnd(t *testing.T, run cluster.Run[string], want string) {
	t.Helper()
	got, err := run.Wait(t.Context())
	if err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// actions returns what the history of an instance shows of principals and reasons.
func actions(t *testing.T, client *cluster.Client, id string) (list []string) {
	t.Helper()
	recorded, err := client.History(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range recorded.Events {
		if event.Principal != "" || event.Reason != "" {
			list = append(list, fmt.Sprintf("%s %s by %q because %q", event.Type, event.Name, event.Principal, event.Reason))
		}
	}
	return list
}

func TestActions_EndOperationsAndAreRecorded(t *testing.T) {
	s := new(service)
	c := newCluster(t, s)
	client := c.Client(1)
	ctx := operate.WithPrincipal(t.Context(), "alice")
	failure := replay.NewError("bank.closed", "closed for good")

	run, op := start(t, c, "flaky", "failed", hasState("backing off"))
	expect(t, "fail", operate.Fail(ctx, client, op, failure, "hopeless"), nil)
	var failed *replay.ActivityError
	if _, err := run.Wait(t.Context()); !errors.Is(err, failure) || !errors.As(err, &failed) || failed.Attempts != 1 {
		t.Errorf("failed: %v", err)
	}
	run, op = start(t, c, "hanging", "completed", hasState("running"))
	expect(t, "complete", operate.Complete(ctx, client, op, "by hand", "paid by phone"), nil)
	expectEnd(t, run, "by hand")
	run, op = start(t, c, "timer", "fired", isOpen)
	expect(t, "fire", operate.FireNow(ctx, client, op, "no need to wait"), nil)
	expectEnd(t, run, "slept")
	run, op = start(t, c, "signal", "subscribed", isOpen)
	expect(t, "complete", operate.Complete(ctx, client, op, "from the operator", "it was lost"), nil)
	expectEnd(t, run, "from the operator")
	run, op = start(t, c, "child", "parent", isOpen)
	c.Eventually("the child runs", func() bool { _, err := client.Get(t.Context(), "parent-child"); return err == nil })
	expect(t, "complete", operate.Complete(ctx, client, op, "without the child", "it hangs"), nil)
	expectEnd(t, run, "without the child")
	if status, err := client.Wait(t.Context(), "parent-child"); err != nil || status.State != cluster.Canceled {
		t.Errorf("the child of a closed operation: %v, %v", status, err)
	}

	for id, want := range map[string]string{
		"failed":     `ActivityFailed  by "node n1 for alice" because "hopeless"`,
		"completed":  `ActivityCompleted  by "node n1 for alice" because "paid by phone"`,
		"fired":      `TimerFired  by "node n1 for alice" because "no need to wait"`,
		"subscribed": `ExternalEvent signal by "node n1 for alice" because "it was lost"`,
		"parent":     `SubOrchestrationCompleted  by "node n1 for alice" because "it hangs"`,
	} {
		if got := actions(t, client, id); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q; want %q", id, got, want)
		}
	}
	var audited []string
	for record, err := range operate.Audit(t.Context(), client, operate.AuditFilter{Principal: "node n1 for alice"}) {
		if err != nil {
			t.Fatal(err)
		}
		audited = append(audited, fmt.Sprintf("%s %s %d", record.InstanceID, record.Event.Type, record.Operation))
	}
	want := []string{"completed ActivityCompleted 2", "failed ActivityFailed 2", "fired TimerFired 2", "parent SubOrchestrationCompleted 2", "subscribed ExternalEvent 0"}
	if !slices.Equal(audited, want) {
		t.Errorf("audited %q; want %q", audited, want)
	}
	// By ID, whatever the order: in that by change, instances move while they are read. What the
	// order requires remains.
	for order, want := range map[string]string{"updated": "[completed failed fired parent subscribed]", "ended": "[completed failed fired parent subscribed]", "timer": "[]"} {
		audited := []string{}
		for record, err := range operate.Audit(t.Context(), client, operate.AuditFilter{
			Principal: "node n1 for alice", Instances: cluster.Filter{Order: order},
		}) {
			if err != nil {
				t.Fatal(err)
			}
			audited = append(audited, record.InstanceID)
		}
		if fmt.Sprint(audited) != want {
			t.Errorf("audited in the order %s: %v; want %s", order, audited, want)
		}
	}
	for record, err := range operate.Audit(t.Context(), client, operate.AuditFilter{Principal: "bob"}) {
		t.Errorf("audited of another principal: %v, %v", record, err)
	}
}

func TestWithReason_IsRecordedWithEveryInput(t *testing.T) {
	s := new(service)
	c := newCluster(t, s)
	client := c.Client(1)
	because := func(reason string) context.Context {
		return operate.WithReason(operate.WithPrincipal(t.Context(), "alice"), reason)
	}
	run, err := cluster.StartRun(because("asked by phone"), client, program, "i", "signal")
	expect(t, "start", err, nil)
	expect(t, "suspend", client.Suspend(because("unused"), "i", "wait a moment"), nil)
	expect(t, "send", cluster.Send(because("it was lost"), client, "i", signal, "again"), nil)
	expect(t, "resume", client.Resume(t.Context(), "i", ""), nil)
	expectEnd(t, *run, "again")
	want := []string{
		`OrchestrationStarted program by "node n1 for alice" because "asked by phone"`,
		`OrchestrationSuspended  by "node n1 for alice" because "wait a moment"`,
		`ExternalEvent signal by "node n1 for alice" because "it was lost"`,
	}
	if got := actions(t, client, "i"); !slices.Equal(got, want) {
		t.Errorf("recorded %q; want %q", got, want)
	}

	var invalid *replay.InvalidError
	if err := cluster.Send(because(strings.Repeat("x", 4097)), client, "i", signal, ""); !errors.As(err, &invalid) || invalid.Field != "reason" {
		t.Errorf("a reason that is too long: %v", err)
	}

	expect(t, "schedule", schedule.Create(t.Context(), client, "nightly", schedule.Spec{Cron: []string{"@yearly"}}, program, "counted"), nil)
	_, err = schedule.Trigger(because("the report was wrong"), client, "nightly", "")
	expect(t, "trigger", err, nil)
	if got := actions(t, client, "nightly"); len(got) != 1 || !strings.HasSuffix(got[0], `by "node n1 for alice" because "the report was wrong"`) {
		t.Errorf("recorded of the schedule: %q", got)
	}
}

func TestRetryNow_SkipsBackoff(t *testing.T) {
	s := new(service)
	c := newCluster(t, s)
	client := c.Client(2)
	run, op := start(t, c, "flaky", "i", hasState("backing off"))
	expect(t, "hold", operate.Hold(t.Context(), client, op, ""), nil)
	expect(t, "retry of a held activity", operate.RetryNow(t.Context(), client, op, ""), operate.ErrHeld)
	expect(t, "release", operate.Release(t.Context(), client, op, ""), nil)
	s.healthy.Store(true)
	expect(t, "retry", operate.RetryNow(t.Context(), client, op, "the bank is up"), nil)
	expectEnd(t, run, "flaky done")
	if got := s.attempts.Load(); got != 2 {
		t.Errorf("%d attempts; want 2", got)
	}
	expect(t, "retry after the end", operate.RetryNow(t.Context(), client, op, ""), cluster.ErrEnded)
}

// startHeld starts a program whose timer is held before it is due soon.
func startHeld(t *testing.T, client *cluster.Client) (*cluster.Run[string], operate.Operation) {
	t.Helper()
	for n := 0; ; n++ { // on a busy machine the timer may fire before
		run, err := cluster.StartRun(t.Context(), client, program, fmt.Sprint("timer-", n), "soon")
		if err != nil {
			t.Fatal(err)
		}
		timer := operate.Operation{InstanceID: run.ID, Execution: 1, EventID: 2}
		if err = operate.Hold(t.Context(), client, timer, "wait"); err == nil {
			return run, timer
		}
		if !errors.Is(err, cluster.ErrEnded) && !errors.Is(err, operate.ErrClosed) {
			t.Fatal(err)
		}
	}
}

func TestHold_KeepsAttemptsAndTimersUntilRelease(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := newCluster(t, s)
	client := c.Client(0)
	leader := c.Leader()
	leadAll(t, c, fmt.Sprint("n", leader)) // the leader of another partition may learn of the pause a moment later
	expect(t, "pause", operate.PauseActivity(t.Context(), client, "counted", "incident"), nil)
	activityRun, activity := start(t, c, "counted", "activity", hasState("paused"))
	expect(t, "hold", operate.Hold(t.Context(), client, activity, "wait"), nil)
	expect(t, "hold again", operate.Hold(t.Context(), client, activity, "wait"), nil)
	timerRun, timer := startHeld(t, client)
	expect(t, "fire a held timer", operate.FireNow(t.Context(), client, timer, ""), operate.ErrHeld)
	expect(t, "resume", operate.ResumeActivity(t.Context(), client, "counted", ""), nil)

	c.Kill(leader)
	client = c.Client((leader + 1) % 3)
	awaitOpen(t, c, client, "activity", func(o *cluster.OpenOperation) bool { return o.Held && o.State == "held" })
	awaitOpen(t, c, client, timerRun.ID, func(o *cluster.OpenOperation) bool { return o.Held && time.Now().After(o.FireAt) })
	// Another timer that is due later has fired: the held one would have fired before.
	if _, err := cluster.Call(t.Context(), client, program, "later", "soon"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"activity", timerRun.ID} {
		if status, err := client.Get(t.Context(), id); err != nil || status.State != cluster.Running {
			t.Errorf("%s: %v, %v; want it held", id, status, err)
		}
	}
	if s.counts.Load() != 0 {
		t.Error("an attempt of a held activity began")
	}
	expect(t, "release", operate.Release(t.Context(), client, activity, ""), nil)
	expect(t, "release", operate.Release(t.Context(), client, timer, ""), nil)
	c.Restart(leader)
	for _, run := range []cluster.Run[string]{activityRun, *timerRun} {
		status, err := client.Wait(t.Context(), run.ID)
		if err != nil || status.State != cluster.Completed {
			t.Errorf("%s: %v, %v", run.ID, status, err)
		}
	}
}

func TestAdjust_ChangesTimeoutsAndRetryPolicy(t *testing.T) {
	s := new(service)
	c := newCluster(t, s)
	client := c.Client(0)
	var timeout *replay.TimeoutError
	run, op := start(t, c, "hanging", "timeout", hasState("running"))
	expect(t, "adjust", operate.Adjust(t.Context(), client, op, "it hangs", replay.ScheduleToClose(time.Millisecond)), nil)
	if _, err := run.Wait(t.Context()); !errors.As(err, &timeout) || timeout.Kind != replay.TimeoutScheduleToClose {
		t.Errorf("a shorter timeout: %v", err)
	}
	run, op = start(t, c, "flaky", "attempts", hasState("backing off"))
	expect(t, "adjust", operate.Adjust(t.Context(), client, op, "", replay.StartToClose(time.Minute)), nil)
	expect(t, "adjust again", operate.Adjust(t.Context(), client, op, "", replay.Retry(replay.RetryPolicy{MaxAttempts: 1})), nil)
	if _, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "the bank is down") {
		t.Errorf("an activity that has used up its attempts: %v", err)
	}
	recorded, err := client.History(t.Context(), "attempts")
	if err != nil {
		t.Fatal(err)
	}
	adjusted := recorded.Events[3] // after the start, the schedule and the first adjustment
	if adjusted.Type != history.OperationControlled || !strings.Contains(adjusted.String(), "attempts=1") || !strings.Contains(adjusted.String(), "start_to_close=1m0s") {
		t.Errorf("the second adjustment does not contain the first: %s", adjusted)
	}
}

func TestActions_RejectWrongOperations(t *testing.T) {
	c := newCluster(t, new(service))
	client := c.Client(0)
	ctx := t.Context()
	_, timer := start(t, c, "timer", "timer", isOpen)
	_, activity := start(t, c, "hanging", "activity", hasState("running"))
	var wrong *operate.KindError
	if err := operate.Complete(ctx, client, timer, "x", ""); !errors.As(err, &wrong) || wrong.Found != "TimerCreated" || len(wrong.Permitted) != 3 {
		t.Errorf("complete a timer: %v", err)
	}
	if err := operate.FireNow(ctx, client, activity, ""); !errors.As(err, &wrong) || wrong.Found != "ActivityScheduled" {
		t.Errorf("fire an activity: %v", err)
	}
	expect(t, "retry of a running activity", operate.RetryNow(ctx, client, activity, ""), operate.ErrNotBackingOff)
	missing, notAnOperation, other, later := timer, timer, timer, timer
	missing.EventID, notAnOperation.EventID, other.InstanceID, later.Execution = 99, 1, "none", 2
	expect(t, "unknown event", operate.FireNow(ctx, client, missing, ""), operate.ErrUnknownOperation)
	expect(t, "not an operation", operate.FireNow(ctx, client, notAnOperation, ""), operate.ErrUnknownOperation)
	expect(t, "unknown instance", operate.FireNow(ctx, client, other, ""), cluster.ErrNotFound)
	expect(t, "unknown execution", operate.FireNow(ctx, client, later, ""), operate.ErrUnknownOperation)
	for what, err := range map[string]error{
		"no options":  operate.Adjust(ctx, client, activity, ""),
		"tag":         operate.Adjust(ctx, client, activity, "", replay.Tag("gpu")),
		"no failure":  operate.Fail(ctx, client, activity, nil, ""),
		"no event":    operate.Hold(ctx, client, operate.Operation{InstanceID: "timer"}, ""),
		"reason":      operate.Hold(ctx, client, timer, strings.Repeat("x", 5000)),
		"principal":   operate.Hold(operate.WithPrincipal(ctx, "a\nb"), client, timer, ""),
		"nil client":  operate.Hold(ctx, nil, timer, ""),
		"no activity": operate.PauseActivity(ctx, client, "", ""),
	} {
		if !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("%s: %v; want an InvalidError", what, err)
		}
	}
}

func TestPauseActivity_SurvivesFailoverAndShowsWho(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := newCluster(t, s)
	leader := c.Leader()
	client := c.Client((leader + 1) % 3)
	ctx := operate.WithPrincipal(t.Context(), "alice")
	leadAll(t, c, fmt.Sprint("n", leader)) // the leader of another partition may learn of the pause a moment later
	expect(t, "pause", operate.PauseActivity(ctx, client, "counted", "the bank is down"), nil)
	expect(t, "pause again", operate.PauseActivity(t.Context(), client, "counted", "other"), nil)
	var runs []cluster.Run[string]
	for i := range 4 { // of both partitions
		run, err := cluster.StartRun(t.Context(), client, program, fmt.Sprint("i", i), "counted")
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, *run)
	}
	// A change of other settings keeps the pause.
	if _, err := client.ChangeSettings(t.Context(), func(settings *cluster.Settings) { settings.Limits.Open = 77 }); err != nil {
		t.Fatal(err)
	}
	c.Kill(leader)
	principal := "node n" + fmt.Sprint((leader+1)%3) + " for alice"
	for _, run := range runs {
		awaitOpen(t, c, client, run.ID, func(o *cluster.OpenOperation) bool {
			return o.State == "paused" && o.PausedBy == principal && o.PausedReason == "the bank is down" && !o.PausedSince.IsZero()
		})
	}
	if pauses, err := operate.Pauses(t.Context(), client); err != nil || len(pauses) != 1 || pauses[0].Activity != "counted" || pauses[0].Principal != principal {
		t.Errorf("%v, %v", pauses, err)
	}
	if s.counts.Load() != 0 {
		t.Error("an attempt of a paused activity began")
	}
	expect(t, "resume", operate.ResumeActivity(ctx, client, "counted", "up again"), nil)
	expect(t, "resume again", operate.ResumeActivity(ctx, client, "counted", "up again"), nil)
	for _, run := range runs {
		expectEnd(t, run, "counted")
	}
}

// Actions that the leader has acknowledged take effect under the next one.
func TestActions_SurviveTheirLeader(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := newCluster(t, s)
	leader := c.Leader()
	client := c.Client((leader + 1) % 3)
	retryRun, retried := start(t, c, "flaky", "retried", hasState("backing off"))
	_, adjusted := start(t, c, "hanging", "adjusted", hasState("running"))
	timerRun, timer := start(t, c, "timer", "timer", isOpen)
	s.healthy.Store(true)
	expect(t, "adjust", operate.Adjust(t.Context(), client, adjusted, "", replay.StartToClose(time.Second), replay.Retry(replay.RetryPolicy{MaxAttempts: 1})), nil)
	expect(t, "fire", operate.FireNow(t.Context(), client, timer, ""), nil)
	expect(t, "retry", operate.RetryNow(t.Context(), client, retried, ""), nil)
	c.Kill(leader)
	for run, want := range map[*cluster.Run[string]]cluster.State{&retryRun: cluster.Completed, &timerRun: cluster.Completed} {
		if status, err := client.Wait(t.Context(), run.ID); err != nil || status.State != want {
			t.Errorf("%s: %v, %v", run.ID, status, err)
		}
	}
	status, err := client.Wait(t.Context(), "adjusted")
	var timeout *replay.TimeoutError
	if err != nil || !errors.As(status.Err, &timeout) || timeout.Kind != replay.TimeoutStartToClose {
		t.Errorf("adjusted: %v, %v", status, err)
	}
}

// The code of a suspended instance gets a completion when it is resumed.
func TestComplete_SuspendedInstance(t *testing.T) {
	c := newCluster(t, new(service))
	client := c.Client(0)
	run, op := start(t, c, "hanging", "i", hasState("running"))
	expect(t, "suspend", client.Suspend(operate.WithPrincipal(t.Context(), "bob"), "i", "incident"), nil)
	expect(t, "complete", operate.Complete(t.Context(), client, op, "x", ""), nil)
	expect(t, "complete again", operate.Complete(t.Context(), client, op, "x", ""), operate.ErrClosed)
	expect(t, "resume", client.Resume(t.Context(), "i", ""), nil)
	expectEnd(t, run, "x")
	if got := actions(t, client, "i"); !slices.Equal(got, []string{`OrchestrationSuspended  by "node n0 for bob" because "incident"`}) {
		t.Errorf("%q", got)
	}
}
