package bulk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// A codedError is an error of a call with a code.
type codedError string

// As makes the code "busy instance" that of an instance whose buffer is full.
func (e codedError) As(target any) bool {
	busy, ok := target.(**actors.BusyError)
	if ok && e == "busy instance" {
		*busy = &actors.BusyError{Bound: actors.BoundInstance}
	}
	return ok && e == "busy instance"
}

func (e codedError) Error() string { return "tenuto: it is " + string(e) }

// A fakeCluster has instances that are canceled once for each request ID.
type fakeCluster struct {
	mu       sync.Mutex
	running  []string // sorted
	lists    int
	visits   []visit
	requests map[string]string   // instance by the ID of the request that canceled it
	errors   map[string][]string // codes with which the next calls for an instance end
	lost     map[string]bool     // the answer of the first call is lost: it has the effect, and fails
	takes    time.Duration       // of a call
	newest   time.Time
	query    Query // of the last list
}

// A visit is a call for an instance.
type visit struct {
	at                           time.Time
	instance, principal, request string
	reason                       string
}

func newFake(instances int) *fakeCluster {
	f := &fakeCluster{requests: make(map[string]string), errors: make(map[string][]string), lost: make(map[string]bool)}
	for i := range instances {
		f.running = append(f.running, fmt.Sprintf("i%05d", i))
	}
	return f
}

func (f *fakeCluster) control() Control {
	return Control{
		Internals: func(context.Context) (access.Internals, error) {
			return access.Internals{Call: f.call, Events: f.events}, nil
		},
		List:   f.list,
		Newest: func(context.Context) (time.Time, error) { return f.newest, nil },
		Count:  func(context.Context, Query) (int, bool, error) { return len(f.running), false, nil },
		Code: func(err error) string {
			var coded codedError
			switch {
			case err == nil:
				return ""
			case errors.As(err, &coded):
				code, _, _ := strings.Cut(string(coded), " ")
				return code
			case errors.As(err, new(*replay.InvalidError)):
				return "input"
			}
			return "internal"
		},
	}
}

// firstExecution is that of the run of the job.
const firstExecution = 3

// events passes the first event of an execution of the job.
func (f *fakeCluster) events(_ context.Context, _ string, execution uint64, pass func(*journalpb.Event) error, _ ...replay.Option) (uint64, error) {
	event := &journalpb.Event{EventId: 1}
	if execution == firstExecution {
		event.Origin = &journalpb.Origin{Principal: "client gw for alice"}
	}
	return execution, pass(event)
}

func (f *fakeCluster) list(_ context.Context, query Query, after string, limit int) (found []Target, next string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	f.query = query
	at, known := slices.BinarySearch(f.running, after)
	if known {
		at++
	}
	found = targetsOf(f.running[at:min(at+limit, len(f.running))]...)
	if at+limit < len(f.running) {
		next = found[len(found)-1].ID
	}
	return found, next, nil
}

func targetsOf(ids ...string) (targets []Target) {
	for _, id := range ids {
		targets = append(targets, Target{ID: id, Incarnation: 7, Execution: 2})
	}
	return targets
}

func (f *fakeCluster) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if request.GetGet() != nil {
		return &clusterpb.Response{Result: &clusterpb.Response_Get{Get: &clusterpb.GetResult{Status: &clusterpb.Status{FirstExecution: firstExecution}}}}, nil
	}
	f.mu.Lock()
	id, control := request.Instance, request.GetControl()
	f.visits = append(f.visits, visit{time.Now(), id, request.Principal, control.RequestId, control.Reason})
	takes := f.takes
	f.mu.Unlock()
	if takes > 0 && wait(ctx, takes) != nil {
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if codes := f.errors[id]; len(codes) > 0 {
		if f.errors[id] = codes[1:]; codes[0] != "" {
			return nil, codedError(codes[0])
		}
	}
	if f.requests[control.RequestId] == id {
		return new(clusterpb.Response), nil
	}
	at, found := slices.BinarySearch(f.running, id)
	if !found {
		return nil, codedError("ended")
	}
	f.running = slices.Delete(f.running, at, at+1)
	f.requests[control.RequestId] = id
	if f.lost[id] {
		delete(f.lost, id)
		return nil, codedError("unknown_outcome")
	}
	return new(clusterpb.Response), nil
}

// visited returns the calls so far.
func (f *fakeCluster) visited() []visit {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.visits)
}

// expectVisitsOnce requires that each instance was visited once, in the order of IDs.
func (f *fakeCluster) expectVisitsOnce(t *testing.T, n int) {
	t.Helper()
	visits := f.visited()
	if len(visits) != n {
		t.Errorf("%d visits, want %d", len(visits), n)
	}
	slices.SortFunc(visits, func(a, b visit) int { return strings.Compare(a.instance, b.instance) })
	for i := 1; i < len(visits); i++ {
		if visits[i].instance == visits[i-1].instance {
			t.Errorf("%s was visited twice", visits[i].instance)
		}
	}
}

func newJob(change func(*Job)) Input {
	job := Job{Filter: json.RawMessage(`{"Name":"order"}`), Action: "cancel", Reason: "closed", Concurrency: 1}
	if change != nil {
		change(&job)
	}
	return Input{Job: job.WithDefaults()}
}

// start starts the job "j".
func start(t *testing.T, f *fakeCluster, in Input) (*replaytest.Env, *replaytest.Run[Progress]) {
	t.Helper()
	return startReplayed(t, f, in, 1)
}

// startReplayed starts a job with a long history, which is not replayed after every append.
func startReplayed(t *testing.T, f *fakeCluster, in Input, every int) (*replaytest.Env, *replaytest.Run[Progress]) {
	t.Helper()
	env := replaytest.New(t, Definitions(f.control())...)
	env.ReplayEvery(every)
	run, err := replaytest.StartRun(env, Orchestration, "j", in)
	if err != nil {
		t.Fatal(err)
	}
	return env, run
}

func progressOf(t *testing.T, env *replaytest.Env) Progress {
	t.Helper()
	p, err := replaytest.Query(env, "j", ProgressQuery, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// finish waits for the end of a job.
func finish(t *testing.T, run *replaytest.Run[Progress]) Progress {
	t.Helper()
	p, err := run.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func update(t *testing.T, env *replaytest.Env, handle replay.UpdateHandle[string, struct{}], note string) {
	t.Helper()
	if _, err := replaytest.CallUpdate(env, "j", handle, note); err != nil {
		t.Fatal(err)
	}
}

func expectCounts(t *testing.T, p Progress, phase Phase, done, refused, unknown int) {
	t.Helper()
	if s := p.State; s.Phase != phase || s.Done != done || s.Refused != refused || s.Unknown != unknown {
		t.Errorf("%s: %d done, %d refused, %d unknown; want %s: %d, %d, %d", s.Phase, s.Done, s.Refused, s.Unknown, phase, done, refused, unknown)
	}
}

// In every interval of t seconds, at most Rate·t instances and those of one page are visited.
func TestJob_KeepsRate(t *testing.T) {
	for _, test := range []struct {
		rate      float64
		instances int
		page      int
		takes     time.Duration // in all, at least
	}{
		{100, 1050, 100, 10 * time.Second},
		{2.5, 40, 2, 15 * time.Second},
		{0.5, 5, 1, 8 * time.Second},
		{10_000, 3000, 500, 0},
	} {
		t.Run(fmt.Sprint(test.rate), func(t *testing.T) {
			f := newFake(test.instances)
			_, run := start(t, f, newJob(func(j *Job) { j.Rate = test.rate }))
			expectCounts(t, finish(t, run), Completed, test.instances, 0, 0)
			f.expectVisitsOnce(t, test.instances)
			visits := f.visited()
			for i := range visits {
				for k := i; k < len(visits); k++ {
					n, took := k-i+1, visits[k].at.Sub(visits[i].at)
					if most := test.rate*took.Seconds() + float64(test.page); float64(n) > most+0.01 {
						t.Fatalf("%d visits in %v; at most %v are allowed", n, took, most)
					}
				}
			}
			took := visits[len(visits)-1].at.Sub(visits[0].at)
			if took < test.takes || took > test.takes+time.Second {
				t.Errorf("took %v, want %v", took, test.takes)
			}
		})
	}
}

// After a pause, the rate is not caught up.
func TestJob_PauseStopsVisitsAndResumeContinues(t *testing.T) {
	f := newFake(1000)
	env, run := start(t, f, newJob(nil))
	env.Advance(2500 * time.Millisecond)
	update(t, env, PauseUpdate, "lunch")
	paused := f.visited()
	if len(paused) != 300 {
		t.Errorf("%d visits before the pause, want 300", len(paused))
	}
	p := progressOf(t, env)
	expectCounts(t, p, Paused, 300, 0, 0)
	if p.State.Note != "lunch" || p.State.Matched != 1000 || p.State.Principal != "client gw for alice" {
		t.Errorf("progress: %+v", p.State)
	}
	env.Advance(time.Hour)
	if n := len(f.visited()); n != 300 {
		t.Errorf("%d visits in the pause", n-300)
	}
	f.running = slices.Insert(f.running, 0, "a") // its place was passed
	f.running = append(f.running, "z")           // its was not
	update(t, env, ResumeUpdate, "")
	env.Advance(500 * time.Millisecond)
	if n := len(f.visited()); n != 400 {
		t.Errorf("%d visits after half a second, want a page", n-300)
	}
	expectCounts(t, finish(t, run), Completed, 1001, 0, 0)
	if p := progressOf(t, env); p.Speed < 90 || p.Speed > 110 {
		t.Errorf("speed: %v per second without the pause, want about 100", p.Speed)
	}
	f.expectVisitsOnce(t, 1001)
	if !slices.Equal(f.running, []string{"a"}) {
		t.Errorf("left: %v", f.running)
	}
}

// A pause and a stop return when the page in progress is done: a page takes 1 s, besides calls that
// have begun, although its instances would take longer.
func TestJob_StopReturnsWithinAPage(t *testing.T) {
	for _, handle := range []replay.UpdateHandle[string, struct{}]{PauseUpdate, StopUpdate} {
		t.Run(handle.Name(), func(t *testing.T) {
			f := newFake(100)
			f.takes = 300 * time.Millisecond
			env, run := start(t, f, newJob(nil))
			env.Advance(100 * time.Millisecond)
			begun := env.Now()
			update(t, env, handle, "enough")
			if took := env.Now().Sub(begun); took < 800*time.Millisecond || took > 1300*time.Millisecond {
				t.Errorf("returned after %v", took)
			}
			if n := len(f.visited()); n != 4 {
				t.Errorf("%d visits, want 4", n)
			}
			phase := Paused
			if handle == StopUpdate {
				phase = Stopped
				expectCounts(t, finish(t, run), Stopped, 4, 0, 0)
				if _, err := replaytest.CallUpdate(env, "j", ResumeUpdate, ""); !errors.Is(err, replay.ErrEnded) {
					t.Errorf("a stopped job is resumed: %v", err)
				}
			}
			expectCounts(t, progressOf(t, env), phase, 4, 0, 0)
		})
	}
}

// A job that is paused and resumed while a page is in flight visits the instances of further pages.
func TestJob_PausedAndResumedWithinAPage(t *testing.T) {
	f := newFake(250)
	f.takes = 300 * time.Millisecond
	env, run := start(t, f, newJob(nil))
	env.Advance(100 * time.Millisecond)
	env.At(200*time.Millisecond, func() { update(t, env, ResumeUpdate, "") })
	update(t, env, PauseUpdate, "")
	env.Advance(1500 * time.Millisecond) // the page has ended
	f.takes = 0
	expectCounts(t, finish(t, run), Completed, 250, 0, 0)
	f.expectVisitsOnce(t, 250)
}

// A job continues as new when updates have grown its history, also while it is paused.
func TestJob_PausedContinuesAsNew(t *testing.T) {
	f := newFake(10)
	definitions := Definitions(f.control())
	large := strings.Repeat("x", 1_035_000) // eight results are less than after what a job continues as new
	definitions[3] = pageActivity.Bind(func(_ context.Context, in pageInput) (pageOutput, error) {
		return pageOutput{Visited: len(in.Targets), Refused: len(in.Targets), Refusals: []Refusal{{Message: large}}}, nil
	})
	env := replaytest.New(t, definitions...)
	env.ReplayEvery(20) // there are megabytes of history
	run, err := replaytest.StartRun(env, Orchestration, "j", newJob(func(j *Job) { j.Rate = 1 }))
	if err != nil {
		t.Fatal(err)
	}
	env.Advance(7500 * time.Millisecond)
	update(t, env, PauseUpdate, "")
	expectCounts(t, progressOf(t, env), Paused, 0, 8, 0)
	note := strings.Repeat("x", 3000)
	for calls := 0; ; calls++ {
		status, err := env.Get("j")
		if err != nil || calls > 100 {
			t.Fatalf("%+v, %v after %d pauses", status, err, calls)
		}
		if status.Execution == 2 {
			break
		}
		update(t, env, PauseUpdate, note)
	}
	if p := progressOf(t, env); p.State.Phase != Paused || p.State.Note != note {
		t.Errorf("it is %s", p.State.Phase)
	}
	update(t, env, ResumeUpdate, "")
	expectCounts(t, finish(t, run), Completed, 0, 10, 0)
}

// A forged result of a page does not make the job panic.
func TestJob_InvalidPageFails(t *testing.T) {
	for _, visited := range []int{-1, 0, 11} {
		f := newFake(10)
		definitions := Definitions(f.control())
		definitions[3] = pageActivity.Bind(func(context.Context, pageInput) (pageOutput, error) { return pageOutput{Visited: visited}, nil })
		env := replaytest.New(t, definitions...)
		run, err := replaytest.StartRun(env, Orchestration, "j", newJob(nil))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run.Wait(); err == nil || !strings.Contains(err.Error(), "has visited") {
			t.Errorf("%d visited: %v", visited, err)
		}
	}
}

// What a page has left is visited by the next one without reading it again.
func TestJob_PageEndsAfterASecond(t *testing.T) {
	f := newFake(100)
	f.takes = 50 * time.Millisecond
	_, run := start(t, f, newJob(nil))
	expectCounts(t, finish(t, run), Completed, 100, 0, 0)
	f.expectVisitsOnce(t, 100)
	if f.lists != 1 {
		t.Errorf("%d lists, want 1", f.lists)
	}
}

func TestJob_ContinuesAsNew(t *testing.T) {
	f := newFake(250)
	for i := range f.running {
		if i%10 == 0 {
			f.errors[f.running[i]] = []string{"stalled"}
		}
	}
	env, run := startReplayed(t, f, newJob(func(j *Job) { j.Rate = 1 }), 20)
	p := finish(t, run)
	expectCounts(t, p, Completed, 225, 25, 0)
	f.expectVisitsOnce(t, 250)
	if !slices.Equal(p.State.RefusedIn, []uint64{1, 2, 3}) || p.State.Kept != 25 || p.State.Matched != 250 {
		t.Errorf("state: %+v", p.State)
	}
	for execution := range uint64(3) {
		if n := len(env.HistoryOf("j", execution+1).Events); n < 100 || n > 1000 {
			t.Errorf("execution %d has %d events", execution+1, n)
		}
	}
}

// Instances whose answers are lost, and pages that fail in the middle, are repeated with the same
// request IDs, and counted once.
func TestJob_RepeatedPageActsOnce(t *testing.T) {
	f := newFake(20)
	f.lost["i00003"], f.lost["i00015"] = true, true
	f.errors["i00007"] = []string{"not_leader", "not_leader"}
	f.errors["i00009"] = []string{"unknown_outcome", "unknown_outcome"}
	env, run := start(t, f, newJob(func(j *Job) { j.Concurrency = 3 }))
	expectCounts(t, finish(t, run), Completed, 20, 0, 0)
	ids, calls := make(map[string]string), make(map[string]int)
	for _, v := range f.visited() {
		if known, ok := ids[v.instance]; ok && known != v.request {
			t.Errorf("%s got requests %s and %s", v.instance, known, v.request)
		}
		ids[v.instance] = v.request
		calls[v.instance]++
		if v.principal != "client gw for alice" || v.reason != "closed (bulk job j)" {
			t.Errorf("%+v", v)
		}
	}
	if len(f.requests) != 20 {
		t.Errorf("%d instances were acted on, want 20", len(f.requests))
	}
	if calls["i00002"] != 1 || calls["i00003"] != 2 || calls["i00007"] != 3 || calls["i00009"] < 3 {
		t.Errorf("calls: %v", calls)
	}
	env.ExpectCalls(pageActivity, 1)
}

// An attempt whose report was lost with its node acts on nothing twice, though the instances match
// no longer.
func TestPage_ActsOnceWithoutReport(t *testing.T) {
	f := newFake(10)
	in := pageInput{JobID: "j", Action: "cancel", Concurrency: 2, Keep: 10, Targets: targetsOf(f.running...)}
	page := replay.Orchestration[pageInput, []pageOutput]("page")
	env := replaytest.New(t, append(Definitions(f.control()), page.Bind(func(ctx *replay.Context, in pageInput) (all []pageOutput, err error) {
		out, err := pageActivity.Call(ctx, in)
		if err == nil {
			in.Targets = append(in.Targets[:5:5], targetsOf("missing")...)
			all = append(all, out)
			out, err = pageActivity.Call(ctx, in)
		}
		return append(all, out), err
	}))...)
	outs, err := replaytest.Call(env, page, "p", in)
	if err != nil || len(outs) != 2 || outs[0].Done != 10 || outs[1].Done != 5 || outs[1].Refused != 1 || len(f.requests) != 10 {
		t.Errorf("%+v, %v, %d requests", outs, err, len(f.requests))
	}
}

func TestPage_ListsUnknownWithRefusals(t *testing.T) {
	f := newFake(5)
	f.errors["i00001"] = []string{"internal", "internal", "internal"}
	f.errors["i00003"] = []string{"ended"}
	f.errors["i00004"] = []string{"ended"}
	in := pageInput{JobID: "j", Action: "cancel", Concurrency: 2, Keep: 2, Targets: targetsOf(f.running...)}
	page := replay.Orchestration[pageInput, pageOutput]("page")
	env := replaytest.New(t, append(Definitions(f.control()), page.Bind(func(ctx *replay.Context, in pageInput) (pageOutput, error) {
		return pageActivity.Call(ctx, in)
	}))...)
	out, err := replaytest.Call(env, page, "p", in)
	if err != nil {
		t.Fatal(err)
	}
	if out.Visited != 5 || out.Done != 2 || out.Refused != 2 || out.Unknown != 1 {
		t.Errorf("%+v", out)
	}
	if want := []Refusal{{"i00001", "internal", "it is internal"}, {"i00003", "ended", "it is ended"}}; !slices.Equal(out.Refusals, want) {
		t.Errorf("refusals: %v", out.Refusals)
	}
}

// An instance whose buffer stays full refuses. A busy leader does not: the page is repeated.
func TestJob_FullInstanceRefuses(t *testing.T) {
	f := newFake(3)
	f.errors["i00000"] = []string{"busy"}
	f.errors["i00001"] = []string{"busy instance"}
	_, run := start(t, f, newJob(nil))
	expectCounts(t, finish(t, run), Completed, 2, 1, 0)
}

func TestJob_KeepsFirstRefusals(t *testing.T) {
	f := newFake(RefusalsMax + 700)
	for _, id := range f.running {
		f.errors[id] = []string{"ended"}
	}
	_, run := startReplayed(t, f, newJob(func(j *Job) { j.Rate = RateMax }), 20)
	p := finish(t, run)
	expectCounts(t, p, Completed, 0, RefusalsMax+700, 0)
	if p.State.Kept != RefusalsMax {
		t.Errorf("%d refusals are kept, want %d", p.State.Kept, RefusalsMax)
	}
}

// Instances that exist when the job begins are visited, also if the time of their partition is
// ahead.
func TestJob_VisitsWhatExists(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Second - 1, time.Minute} {
		f := newFake(1)
		env := replaytest.New(t, Definitions(f.control())...)
		f.newest = env.Now().Add(ahead)
		want := env.Now()
		if ahead >= 0 {
			want = env.Now().Add(min(ahead+1, time.Second)) // later ones began after the job
		}
		run, err := replaytest.StartRun(env, Orchestration, "j", newJob(nil))
		if err != nil {
			t.Fatal(err)
		}
		p := finish(t, run)
		if !f.query.CreatedBefore.Equal(want) || !p.State.Started.Equal(env.Now()) {
			t.Errorf("newest %v ahead: created before %v, want %v", ahead, f.query.CreatedBefore, want)
		}
	}
}

// A filter that names jobs does not make a job act on itself.
func TestJob_LeavesItselfAlone(t *testing.T) {
	f := newFake(0)
	f.running = []string{"a", "j", "z"}
	_, run := start(t, f, newJob(nil))
	expectCounts(t, finish(t, run), Completed, 2, 0, 0)
	if !slices.Equal(f.running, []string{"j"}) {
		t.Errorf("left: %v", f.running)
	}
}

func TestJob_CanceledAfterPage(t *testing.T) {
	f := newFake(1000)
	f.takes = 300 * time.Millisecond
	env, run := start(t, f, newJob(nil))
	env.Advance(2500 * time.Millisecond)
	if err := env.Cancel("j", "enough"); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(); !errors.Is(err, replay.ErrCanceled) {
		t.Errorf("%v", err)
	}
	if p := progressOf(t, env); p.State.Done != len(f.visited()) {
		t.Errorf("%d done, %d visited", p.State.Done, len(f.visited()))
	}
}

func TestJob_InvalidFails(t *testing.T) {
	_, run := start(t, newFake(1), newJob(func(j *Job) { j.Action = "delete" }))
	if _, err := run.Wait(); err == nil || !strings.Contains(err.Error(), "delete") {
		t.Errorf("%v", err)
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		change func(*Job)
		field  string // of the error, "" for none
	}{
		{func(*Job) {}, ""},
		{func(j *Job) { j.Action = "Cancel" }, "Job.Action"},
		{func(j *Job) { j.Filter = json.RawMessage(`{"Name":"` + strings.Repeat("x", 64_000) + `"}`) }, "Job.Filter"},
		{func(j *Job) { j.Rate = 0.001 }, "Job.Rate"},
		{func(j *Job) { j.Rate = 10_001 }, "Job.Rate"},
		{func(j *Job) { j.Rate = -1 }, "Job.Rate"},
		{func(j *Job) { j.Concurrency = 65 }, "Job.Concurrency"},
		{func(j *Job) { j.Concurrency = -1 }, "Job.Concurrency"},
		{func(j *Job) { j.Reason = strings.Repeat("x", 3001) }, "Job.Reason"},
		{func(j *Job) { j.Reason = "\xff" }, "Job.Reason"},
		{func(j *Job) { j.Arguments = map[string]string{"event": "e"} }, "Job.Arguments"},
		{func(j *Job) { j.Action = "send" }, "Job.Arguments"},
		{func(j *Job) { j.Action, j.Arguments = "send", map[string]string{"event": ""} }, "argument event"},
		{func(j *Job) { j.Action, j.Arguments = "send", map[string]string{"event": "e", "data": "x"} }, "argument data"},
		{func(j *Job) {
			j.Action, j.Arguments = "send", map[string]string{"event": "e", "data": `"` + strings.Repeat("x", 32_000) + `"`}
		}, "Job.Arguments"},
		{func(j *Job) { j.Action, j.Arguments = "send", map[string]string{"event": "e", "data": `"x"`} }, ""},
		{func(j *Job) { j.Action = "rewind" }, "Job.Arguments"},
		{func(j *Job) { j.Action, j.Arguments = "rewind", map[string]string{"call": ""} }, "argument call"},
		{func(j *Job) { j.Action, j.Arguments = "rewind", map[string]string{"call": "c", "number": "0"} }, "argument number"},
		{func(j *Job) { j.Action, j.Arguments = "rewind", map[string]string{"call": "c", "number": "2"} }, ""},
		{func(j *Job) { j.Action, j.Arguments = "hold", map[string]string{"activity": "charge"} }, ""},
	} {
		err := newJob(test.change).Job.Check()
		var found *replay.InvalidError
		if errors.As(err, &found); (found == nil) != (test.field == "") || found != nil && found.Field != test.field {
			t.Errorf("%v; want an error of %q", err, test.field)
		}
	}
}

func TestRightOf(t *testing.T) {
	if right, err := RightOf(newJob(func(j *Job) { j.Action = "retry-now" })); err != nil || right != "retry now" {
		t.Errorf("%q, %v", right, err)
	}
	forged := newJob(nil)
	forged.State = &State{Principal: "client root"}
	for _, in := range []Input{forged, newJob(func(j *Job) { j.Action = "x" })} {
		if _, err := RightOf(in); err == nil {
			t.Errorf("%+v is accepted", in)
		}
	}
}

// Each request ID names one run of a job and one instance.
func TestRequestID_IsOfJobAndInstance(t *testing.T) {
	seen := make(map[string]bool)
	for _, key := range []string{"j/1", "j/2", "k/1"} {
		for _, id := range []string{"a", "b", "1a"} {
			seen[(&operator{key: key}).requestID(id)] = true
		}
	}
	if len(seen) != 9 {
		t.Errorf("%d IDs, want 9", len(seen))
	}
}
