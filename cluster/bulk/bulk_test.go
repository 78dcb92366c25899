package bulk_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var (
	word    = replay.Event[string]("word")
	waiting = replay.Orchestration[string, string]("waiting")
	paying  = replay.Orchestration[string, string]("paying")
	pay     = replay.Activity[string, string]("pay")
	longPay = replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour}
)

// A bank refuses payments while it is closed.
type bank struct{ open atomic.Bool }

func (b *bank) definitions() clustertest.Option {
	return clustertest.Definitions(
		waiting.Bind(func(ctx *replay.Context, _ string) (string, error) { return word.Wait(ctx) }, replay.Receives(word)),
		paying.Bind(func(ctx *replay.Context, order string) (string, error) {
			return pay.Call(ctx, order, replay.Retry(longPay))
		}),
		pay.Bind(func(_ context.Context, order string) (string, error) {
			if !b.open.Load() {
				return "", errors.New("the bank is closed")
			}
			return "paid " + order, nil
		}),
	)
}

// newCluster starts a cluster whose members all speak the newest protocol.
func newCluster(t *testing.T, options ...clustertest.Option) *clustertest.Cluster {
	t.Helper()
	c := clustertest.New(t, 3, options...)
	c.Eventually("the newest protocol", func() bool { return c.Node(0).Health().Protocol >= 4 })
	return c
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func startAll(ctx context.Context, t *testing.T, client *cluster.Client, handle replay.OrchestrationHandle[string, string], ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := cluster.StartRun(ctx, client, handle, id, id)
		must(t, err)
	}
}

// finish waits for the end of a job and returns its progress.
func finish(ctx context.Context, t *testing.T, client *cluster.Client, id string) *bulk.Progress {
	t.Helper()
	_, err := client.Wait(ctx, id)
	must(t, err)
	p, err := bulk.Get(ctx, client, id)
	must(t, err)
	return p
}

// do runs a job to its end.
func do(ctx context.Context, t *testing.T, client *cluster.Client, job bulk.Job) *bulk.Progress {
	t.Helper()
	id, err := bulk.Start(ctx, client, job)
	must(t, err)
	return finish(ctx, t, client, id)
}

func expectCounts(t *testing.T, p *bulk.Progress, matched, done, refused int) {
	t.Helper()
	if p.State != bulk.Completed || p.Matched != matched || p.Done != done || p.Refused != refused || p.Unknown != 0 || p.Remaining != 0 {
		t.Errorf("%s: %s, %d matched, %d done, %d refused, %d unknown, %d remaining; want %d, %d, %d",
			p.Job.Action, p.State, p.Matched, p.Done, p.Refused, p.Unknown, p.Remaining, matched, done, refused)
	}
}

func stateOf(ctx context.Context, t *testing.T, client *cluster.Client, id string) cluster.State {
	t.Helper()
	status, err := client.Get(ctx, id)
	must(t, err)
	return status.State
}

// lastAction returns the type, principal and reason of the last event with both.
func lastAction(ctx context.Context, t *testing.T, client *cluster.Client, id string) string {
	t.Helper()
	recorded, err := client.History(ctx, id)
	must(t, err)
	for _, event := range slices.Backward(recorded.Events) {
		if event.Reason != "" && event.Principal != "" {
			return fmt.Sprintf("%s by %s: %s", event.Type, event.Principal, event.Reason)
		}
	}
	return "none"
}

func partitions(n int) clustertest.Option {
	return clustertest.Configure(func(_ int, config *cluster.Config) { config.Partitions = n })
}

// Every action, over three partitions, by a client that acts for a user.
func TestActions_OnLiveCluster(t *testing.T) {
	t.Parallel()
	var b bank
	c := newCluster(t, b.definitions(), partitions(3))
	ctx := operate.WithPrincipal(testContext(t), "alice")
	client, err := cluster.Dial(ctx, cluster.DialConfig{Addresses: c.Addresses()})
	must(t, err)
	defer client.Close()
	startAll(ctx, t, client, waiting, "w1", "w2", "w3", "w4", "w5", "w6")
	startAll(ctx, t, client, paying, "p1", "p2", "p3")
	c.Eventually("payments back off", func() bool {
		n, err := client.Count(ctx, cluster.Filter{FailingAttempts: 1})
		return err == nil && n == 3
	})
	of := func(text string) cluster.Filter {
		f, err := filter.Parse(text, time.Now())
		must(t, err)
		return f
	}
	tested, jobs := make(map[string]bool), 0
	run := func(action, text string, arguments map[string]string, matched, done, refused int) *bulk.Progress {
		t.Helper()
		tested[action] = true
		jobs++
		p := do(ctx, t, client, bulk.Job{ID: fmt.Sprintf("job-%d", jobs), Filter: of(text), Action: action, Arguments: arguments, Reason: "why"})
		expectCounts(t, p, matched, done, refused)
		if p.Principal != "local for alice" {
			t.Errorf("%s: started by %q", action, p.Principal)
		}
		return p
	}
	expectAction := func(id string, want string, p *bulk.Progress) {
		t.Helper()
		want += " by local for alice: why (bulk job " + p.Job.ID + ")"
		if got := lastAction(ctx, t, client, id); got != want {
			t.Errorf("%s: %s\nwant %s", id, got, want)
		}
	}

	p := run(bulk.Suspend, "name=waiting", nil, 6, 6, 0)
	expectAction("w3", "OrchestrationSuspended", p)
	p = run(bulk.ResumeInstances, "state=suspended", nil, 6, 6, 0)
	expectAction("w3", "OrchestrationResumed", p)
	hello, err := bulk.Event(word, "hello")
	must(t, err)
	p = run(bulk.Send, "id=w1*", hello, 1, 1, 0)
	expectAction("w1", "ExternalEvent", p)
	c.Eventually("w1 ends", func() bool { return stateOf(ctx, t, client, "w1") == cluster.Completed })
	p = run(bulk.Cancel, "id=w2*", nil, 1, 1, 0)
	expectAction("w2", "OrchestrationCancelRequested", p)
	p = run(bulk.Terminate, "id=w*", nil, 6, 4, 2)
	expectAction("w3", "OrchestrationTerminated", p)
	page, err := bulk.Refusals(ctx, client, p.Job.ID, "", 1)
	must(t, err)
	if len(page.Refusals) != 1 || page.Refusals[0].InstanceID != "w1" || page.Refusals[0].Code != "ended" || page.Next == "" {
		t.Errorf("first refusal: %+v", page)
	}
	page, err = bulk.Refusals(ctx, client, p.Job.ID, page.Next, 1)
	must(t, err)
	if len(page.Refusals) != 1 || page.Refusals[0].InstanceID != "w2" || page.Next != "" {
		t.Errorf("second refusal: %+v", page)
	}

	p = run(bulk.Hold, "name=paying", map[string]string{"activity": "pay"}, 3, 3, 0)
	expectAction("p1", "OperationControlled", p)
	b.open.Store(true)
	run(bulk.RetryNow, "id=p1*", nil, 1, 0, 1) // it is held
	run(bulk.Release, "failing>=1", nil, 3, 3, 0)
	p = run(bulk.RetryNow, "failing>=1", nil, 3, 3, 0)
	expectAction("p2", "OperationControlled", p)
	c.Eventually("payments are made", func() bool { return stateOf(ctx, t, client, "p3") == cluster.Completed })
	run(bulk.RetryNow, "name=paying", nil, 3, 0, 3)
	for _, id := range []string{"p1", "p2"} {
		_, err := client.Wait(ctx, id)
		must(t, err)
	}
	p = run(bulk.Rerun, "id=p1*", nil, 1, 1, 0)
	expectAction("p1", "HistoryCopied", p)
	_, err = client.Wait(ctx, "p1")
	must(t, err)
	p = run(bulk.Rewind, "name=paying", map[string]string{"call": "pay", "number": "1"}, 3, 3, 0)
	expectAction("p2", "HistoryCopied", p)
	run(bulk.Rewind, "name=paying", map[string]string{"call": "pay", "number": "2"}, 3, 0, 3)
	startAll(ctx, t, client, waiting, "w7")
	run(bulk.Purge, "id=w* created<1h", nil, 7, 6, 1)
	if n, err := client.Count(ctx, cluster.Filter{IDPrefix: "w"}); err != nil || n != 1 {
		t.Errorf("%d instances are left, %v", n, err)
	}
	for _, action := range bulk.Actions() {
		if !tested[action.Name] {
			t.Errorf("the action %q is not tested", action.Name)
		}
	}
	listed, err := bulk.List(ctx, client, cluster.Filter{}, "", 0)
	must(t, err)
	if len(listed.Jobs) != jobs || slices.ContainsFunc(listed.Jobs, func(l bulk.Listed) bool {
		return l.Progress == nil || l.Progress.State != bulk.Completed || l.State != cluster.Completed
	}) {
		t.Errorf("jobs: %+v", listed.Jobs)
	}
}

func TestDryRun_ActsOnNothing(t *testing.T) {
	t.Parallel()
	var b bank
	c := newCluster(t, b.definitions(), clustertest.InMemory())
	ctx, client := testContext(t), c.Client(1)
	for i := range 30 {
		startAll(ctx, t, client, waiting, fmt.Sprintf("w%02d", i))
	}
	must(t, schedule.Create(ctx, client, "a-schedule", schedule.Spec{Every: time.Hour}, waiting, ""))
	must(t, client.Suspend(ctx, "w00", ""))
	before, err := client.List(ctx, cluster.Filter{}, "", 0)
	must(t, err)
	preview, err := bulk.DryRun(ctx, client, bulk.Job{Action: bulk.Terminate})
	must(t, err)
	if preview.Count != 30 || preview.Estimated || preview.States[cluster.Running] != 29 || preview.States[cluster.Suspended] != 1 ||
		len(preview.Sample) != 20 || preview.Sample[0] != (bulk.Instance{ID: "w00", Name: "waiting", State: cluster.Suspended}) {
		t.Errorf("%+v", preview)
	}
	preview, err = bulk.DryRun(ctx, client, bulk.Job{Action: bulk.Terminate, Filter: cluster.Filter{Name: "tenuto.schedule"}})
	must(t, err)
	if preview.Count != 1 || len(preview.Sample) != 1 || preview.Sample[0].ID != "a-schedule" {
		t.Errorf("schedules: %+v", preview)
	}
	after, err := client.List(ctx, cluster.Filter{}, "", 0)
	must(t, err)
	for i, status := range after.Instances {
		if status.InstanceID != before.Instances[i].InstanceID || status.LastEventID != before.Instances[i].LastEventID {
			t.Errorf("%s has changed", status.InstanceID)
		}
	}
	// The job itself leaves the schedule alone, and visits it if the filter names it.
	expectCounts(t, do(ctx, t, client, bulk.Job{Action: bulk.Terminate}), 30, 30, 0)
	if state := stateOf(ctx, t, client, "a-schedule"); state != cluster.Running {
		t.Errorf("the schedule is %s", state)
	}
	expectCounts(t, do(ctx, t, client, bulk.Job{Action: bulk.Terminate, Filter: cluster.Filter{Name: "tenuto.schedule"}}), 1, 1, 0)
}

func TestPauseResumeStop_OnLiveCluster(t *testing.T) {
	t.Parallel()
	var b bank
	c := newCluster(t, b.definitions(), clustertest.InMemory())
	ctx, client := testContext(t), c.Client((c.Leader()+1)%3) // which forwards its calls
	for i := range 60 {
		startAll(ctx, t, client, waiting, fmt.Sprintf("w%02d", i))
	}
	id, err := bulk.Start(ctx, client, bulk.Job{Action: bulk.Terminate, Rate: 4, Reason: "r"})
	must(t, err)
	must(t, bulk.Pause(ctx, client, id, "lunch"))
	paused, err := bulk.Get(ctx, client, id)
	must(t, err)
	running := func() int {
		n, err := client.Count(ctx, cluster.Filter{Name: "waiting", States: []cluster.State{cluster.Running}})
		must(t, err)
		return n
	}
	left := running()
	if paused.State != bulk.Paused || paused.Note != "lunch" || left != 60-paused.Done || paused.Done > 40 || paused.Job.Rate != 4 || paused.Job.Reason != "r" {
		t.Errorf("%+v, %d running", paused, left)
	}
	must(t, bulk.Resume(ctx, client, id, "back"))
	c.Eventually("the job goes on", func() bool { return running() < left })
	must(t, bulk.Stop(ctx, client, id, "enough"))
	left = running()
	p := finish(ctx, t, client, id)
	if recorded := mustHistory(ctx, t, client, id); recorded[0].Reason != "r" || !slices.ContainsFunc(recorded, func(e history.Event) bool { return e.Reason == "lunch" }) {
		t.Errorf("the history does not show why: %v", recorded)
	}
	if p.State != bulk.Stopped || p.Note != "enough" || p.Done != 60-left || p.Remaining != 0 || left == 0 {
		t.Errorf("%+v, %d running", p, left)
	}
	if err := bulk.Resume(ctx, client, id, ""); !errors.Is(err, cluster.ErrEnded) {
		t.Errorf("a stopped job: %v", err)
	}
	if _, err := bulk.Get(ctx, client, "w00"); !errors.As(err, new(*replay.NotRegisteredError)) {
		t.Errorf("an instance that is no job: %v", err)
	}
	if _, err := bulk.Get(ctx, client, "missing"); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("a missing job: %v", err)
	}
	// The end of a terminated job is shown, although it was not told.
	id, err = bulk.Start(ctx, client, bulk.Job{Action: bulk.Cancel, Rate: 0.01})
	must(t, err)
	must(t, client.Terminate(ctx, id, "now"))
	if p := finish(ctx, t, client, id); p.State != bulk.Stopped || p.Err == nil {
		t.Errorf("terminated: %+v", p)
	}
}

func TestStart_RejectsInvalidJobs(t *testing.T) {
	t.Parallel()
	var b bank
	c := newCluster(t, b.definitions(), clustertest.InMemory())
	ctx, client := testContext(t), c.Client(0)
	for _, job := range []bulk.Job{
		{},
		{Action: "delete"},
		{Action: bulk.Cancel, Filter: cluster.Filter{Order: "created"}},
		{Action: bulk.Cancel, Filter: cluster.Filter{Descending: true}},
		{Action: bulk.Cancel, Filter: cluster.Filter{States: []cluster.State{"x"}}},
		{Action: bulk.Cancel, Rate: -1},
		{Action: bulk.Send},
		{Action: bulk.Cancel, ID: "a b"},
		{Action: bulk.Cancel, Reason: strings.Repeat("x", 4000)},
	} {
		if _, err := bulk.Start(ctx, client, job); !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("%+v: %v", job, err)
		}
	}
	if _, err := bulk.DryRun(ctx, client, bulk.Job{Action: "delete"}); !errors.As(err, new(*replay.InvalidError)) {
		t.Errorf("a dry run: %v", err)
	}
	if _, err := bulk.Refusals(ctx, client, "j", "x", 0); !errors.As(err, new(*replay.InvalidError)) {
		t.Errorf("a place: %v", err)
	}
	same := bulk.Job{ID: "j", Action: bulk.Cancel}
	for range 2 {
		_, err := bulk.Start(ctx, client, same, cluster.RequestID("r"))
		must(t, err)
	}
	if _, err := bulk.Start(ctx, client, same); !errors.Is(err, cluster.ErrInstanceExists) {
		t.Errorf("a taken ID: %v", err)
	}
}

// An instance that records nothing at present refuses, so that the job does not wait for it; a
// termination does not need its code.
func TestStalledInstance_Refuses(t *testing.T) {
	t.Parallel()
	var b bank
	var lost atomic.Bool
	stuck := replay.Orchestration[string, string]("stuck")
	c := newCluster(t, b.definitions(), clustertest.Configure(func(_ int, config *cluster.Config) {
		if !lost.Load() {
			config.Definitions = append(slices.Clip(config.Definitions), stuck.Bind(func(ctx *replay.Context, _ string) (string, error) {
				return word.Wait(ctx)
			}))
		}
	}))
	ctx := testContext(t)
	startAll(ctx, t, c.Client(0), stuck, "s1", "s2")
	lost.Store(true)
	for i := range 3 {
		c.Kill(i)
	}
	for i := range 3 {
		c.Restart(i)
	}
	c.Leader()
	client := c.Client(0)
	hello, err := bulk.Event(word, "hello")
	must(t, err)
	for _, job := range []bulk.Job{{Action: bulk.Cancel}, {Action: bulk.Suspend}, {Action: bulk.Send, Arguments: hello}} {
		job.Filter.Name = "stuck"
		p := do(ctx, t, client, job)
		expectCounts(t, p, 2, 0, 2)
		page, err := bulk.Refusals(ctx, client, p.Job.ID, "", 0)
		must(t, err)
		if len(page.Refusals) != 2 || page.Refusals[1].InstanceID != "s2" || page.Refusals[1].Code != "stalled" || page.Refusals[1].Message == "" {
			t.Errorf("%s: %+v", job.Action, page)
		}
	}
	expectCounts(t, do(ctx, t, client, bulk.Job{Action: bulk.Terminate, Filter: cluster.Filter{Name: "stuck"}}), 2, 2, 0)
}

// A hold keeps activities and timers of the code, but not the timer of the run's deadline.
func TestHold_KeepsDeadline(t *testing.T) {
	t.Parallel()
	var b bank
	sleeping := replay.Orchestration[string, string]("sleeping")
	c := newCluster(t, b.definitions(), clustertest.InMemory(), clustertest.Definitions(
		sleeping.Bind(func(ctx *replay.Context, _ string) (string, error) { return "", ctx.Sleep(time.Hour) }),
	))
	ctx, client := testContext(t), c.Client(0)
	for _, handle := range []replay.OrchestrationHandle[string, string]{waiting, sleeping} {
		_, err := cluster.StartRun(ctx, client, handle, handle.Name(), "", cluster.Deadline(time.Now().Add(2*time.Hour)))
		must(t, err)
	}
	p := do(ctx, t, client, bulk.Job{Action: bulk.Hold})
	expectCounts(t, p, 2, 1, 1)
	page, err := bulk.Refusals(ctx, client, p.Job.ID, "", 0)
	must(t, err)
	if len(page.Refusals) != 1 || page.Refusals[0].InstanceID != "waiting" || page.Refusals[0].Code != "no_operation" {
		t.Errorf("%+v", page)
	}
	open, err := client.Pending(ctx, "sleeping")
	must(t, err)
	held := 0
	for _, one := range open {
		if one.Held {
			held++
		}
	}
	if held != 1 {
		t.Errorf("%d operations are held, want 1: %+v", held, open)
	}
	// With the name of an activity, timers are left alone.
	expectCounts(t, do(ctx, t, client, bulk.Job{Action: bulk.Release, Arguments: map[string]string{"activity": "pay"}}), 2, 0, 2)
	expectCounts(t, do(ctx, t, client, bulk.Job{Action: bulk.Release}), 2, 1, 1)
}

// A filter is recorded and comes back.
func TestGet_ReturnsJob(t *testing.T) {
	t.Parallel()
	var b bank
	c := newCluster(t, b.definitions(), clustertest.InMemory())
	ctx, client := testContext(t), c.Client(0)
	f, err := filter.Parse(`state=failed,canceled name=x version=2 id=a* tag.k="v w" attr.a=b parent=p error=e created<1h updated>=2026-01-02 waiting=activity:n since>1d failing>=3 failing.error=z`, time.Now())
	must(t, err)
	job := bulk.Job{ID: "j", Filter: f, Action: bulk.Hold, Arguments: map[string]string{"activity": "n"}, Reason: "r", Rate: 0.5, Concurrency: 3}
	p := do(ctx, t, client, job)
	got, _ := json.Marshal(p.Job)
	want, _ := json.Marshal(job)
	if string(got) != string(want) {
		t.Errorf("%s\nwant %s", got, want)
	}
	status, err := client.Get(ctx, "j")
	must(t, err)
	if !strings.HasPrefix(status.Summary, "hold state=failed,canceled name=x") {
		t.Errorf("summary: %q", status.Summary)
	}
	for _, event := range mustHistory(ctx, t, client, "j") {
		if event.Type == history.OrchestrationFailed {
			t.Errorf("%v", event)
		}
	}
}

func mustHistory(ctx context.Context, t *testing.T, client *cluster.Client, id string) []history.Event {
	t.Helper()
	recorded, err := client.History(ctx, id)
	must(t, err)
	return recorded.Events
}

// counter counts by key.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[key]++
}

// repeated returns how often keys were counted again.
func (c *counter) repeated() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.n {
		n += times - 1
	}
	return n
}

func (c *counter) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.n)
}
