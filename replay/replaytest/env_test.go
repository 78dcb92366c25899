package replaytest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var (
	work     = replay.Activity[string, string]("work")
	approved = replay.Event[bool]("approved")
	where    = replay.Query[struct{}, string]("where")
	change   = replay.Update[int, int]("change")
	errBank  = replay.NewError("replaytest.bank", "the bank is closed")
)

func program(name string, body func(*replay.Context, string) (string, error)) (replay.OrchestrationHandle[string, string], replay.Definition) {
	handle := replay.Orchestration[string, string](name)
	return handle, handle.Bind(body)
}

// begin starts an instance that must not exist.
func begin[I, O any](t *testing.T, env *replaytest.Env, handle replay.OrchestrationHandle[I, O], id string, in I) *replaytest.Run[O] {
	t.Helper()
	run, err := replaytest.StartRun(env, handle, id, in)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func upper(_ context.Context, in string) (string, error) { return strings.ToUpper(in), nil }

func fanOut(ctx *replay.Context, in string) (string, error) {
	var futures []*replay.Future[string]
	for _, part := range strings.Split(in, " ") {
		futures = append(futures, work.Start(ctx, part))
	}
	results, err := replay.All(ctx, futures...)
	return strings.Join(results, " "), err
}

func TestStub_ReplacesBoundActivity(t *testing.T) {
	handle, definition := program("fan-out", fanOut)
	env := replaytest.New(t, definition, work.Bind(upper))
	if output, err := replaytest.Call(env, handle, "real", "a b c"); err != nil || output != "A B C" {
		t.Errorf("%q, %v", output, err)
	}
	replaytest.Stub(env, work, replaytest.Returns[string]("-", nil))
	if output, err := replaytest.Call(env, handle, "stubbed", "d e"); err != nil || output != "- -" {
		t.Errorf("%q, %v", output, err)
	}
	if got := replaytest.Calls(env, work); !slices.Equal(got, []string{"a", "b", "c", "d", "e"}) {
		t.Errorf("calls %q", got)
	}
	if got := env.Instances(); !slices.Equal(got, []string{"real", "stubbed"}) {
		t.Errorf("instances %q", got)
	}
}

func TestRetry_BackoffPassesInVirtualTime(t *testing.T) {
	handle, definition := program("retries", func(ctx *replay.Context, in string) (string, error) {
		return work.Call(ctx, in, replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour, MaxAttempts: 5}))
	})
	env := replaytest.New(t, definition)
	stub := replaytest.Stub(env, work, upper).FailFirst(4, errBank)
	before := env.Now()
	if output, err := replaytest.Call(env, handle, "i", "a"); err != nil || output != "A" {
		t.Errorf("%q, %v", output, err)
	}
	if passed := env.Now().Sub(before); passed < 3*time.Hour || passed > 5*time.Hour {
		t.Errorf("four pauses took %v", passed)
	}
	env.ExpectCalls(work, 1)

	stub.FailFirst(5, errBank)
	_, err := replaytest.Call(env, handle, "j", "a")
	var run *replaytest.RunError
	if !errors.As(err, &run) || run.State != replaytest.Failed || !errors.Is(err, errBank) {
		t.Errorf("ended with %v", err)
	}
}

func TestActivity_TimeoutsAndHeartbeatsApply(t *testing.T) {
	handle, definition := program("limits", func(ctx *replay.Context, in string) (string, error) {
		_, err := work.Call(ctx, in, replay.StartToClose(time.Hour), replay.HeartbeatTimeout(time.Minute),
			replay.Retry(replay.RetryPolicy{MaxAttempts: 1}))
		var timeout *replay.TimeoutError
		if !errors.As(err, &timeout) {
			return "", err
		}
		return string(timeout.Kind), nil
	})
	env := replaytest.New(t, definition)
	replaytest.Stub(env, work, func(ctx context.Context, in string) (string, error) {
		for in == "beats" && replay.Heartbeat(ctx, "alive") == nil {
			time.Sleep(50 * time.Second)
		}
		<-ctx.Done()
		return "", ctx.Err()
	})
	for in, want := range map[string]replay.TimeoutKind{"beats": replay.TimeoutStartToClose, "is silent": replay.TimeoutHeartbeat} {
		if output, err := replaytest.Call(env, handle, "it-"+strings.ReplaceAll(in, " ", "-"), in); err != nil || output != string(want) {
			t.Errorf("a body that %s: %q, %v", in, output, err)
		}
	}
}

// approval waits for a decision, answers a query, and accepts updates.
func approval(ctx *replay.Context, in string) (string, error) {
	state, amount := "waiting", 0
	if err := where.Handle(ctx, func(struct{}) (string, error) { return fmt.Sprintf("%s, %d", state, amount), nil }); err != nil {
		return "", err
	}
	validate := func(by int) error {
		if by < 0 {
			return errBank
		}
		return nil
	}
	err := change.Handle(ctx, validate, func(ctx *replay.Context, by int) (int, error) {
		if err := ctx.Sleep(time.Minute); err != nil {
			return 0, err
		}
		amount += by
		return amount, nil
	})
	if err != nil {
		return "", err
	}
	yes, err := approved.WaitFor(ctx, 24*time.Hour)
	if errors.Is(err, replay.ErrTimeout) {
		return "too late", nil
	}
	if err != nil {
		return "", err
	}
	state = "decided"
	return fmt.Sprintf("%t, %d", yes, amount), replay.SetStatus(ctx, state)
}

func TestEnv_EventsQueriesAndUpdates(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	run := begin(t, env, handle, "i", "")
	if answer, err := replaytest.Query(env, "i", where, struct{}{}); err != nil || answer != "waiting, 0" {
		t.Errorf("query: %q, %v", answer, err)
	}
	if stack, err := env.Stack("i"); err != nil || len(stack) != 1 || stack[0].Call != "EventHandle.WaitFor" || len(stack[0].WaitsFor) != 2 {
		t.Errorf("stack: %+v, %v", stack, err)
	}
	if amount, err := replaytest.CallUpdate(env, "i", change, 5); err != nil || amount != 5 {
		t.Errorf("update: %d, %v", amount, err)
	}
	var rejected *replaytest.RejectedError
	if _, err := replaytest.CallUpdate(env, "i", change, -5); !errors.As(err, &rejected) || !errors.Is(err, errBank) {
		t.Errorf("an update that must be rejected: %v", err)
	}
	if answer, err := replaytest.Query(env, "i", where, struct{}{}); err != nil || answer != "waiting, 5" {
		t.Errorf("query after the replays: %q, %v", answer, err)
	}
	var noQuery *replay.NotRegisteredError
	if _, err := replaytest.Query(env, "i", replay.Query[int, int]("what"), 1); !errors.As(err, &noQuery) || noQuery.Kind != "query" {
		t.Errorf("a query without a handler: %v", err)
	}
	var noUpdate *replay.NotRegisteredError
	if _, err := replaytest.CallUpdate(env, "i", replay.Update[int, int]("what"), 1); !errors.As(err, &noUpdate) || *noUpdate != (replay.NotRegisteredError{Kind: "update", Name: "what"}) {
		t.Errorf("an update without a handler: %v", err)
	}
	if err := replaytest.Send(env, "i", approved, true); err != nil {
		t.Error(err)
	}
	if output, err := run.Wait(); err != nil || output != "true, 5" {
		t.Errorf("%q, %v", output, err)
	}
	customStatus := ""
	if err := run.Status().CustomStatus(&customStatus); err != nil || customStatus != "decided" {
		t.Errorf("custom status %q, %v", customStatus, err)
	}
	if err := replaytest.Send(env, "i", approved, true); !errors.Is(err, replaytest.ErrEnded) {
		t.Errorf("an event after the end: %v", err)
	}
	if err := replaytest.Send(env, "j", approved, true); !errors.Is(err, replaytest.ErrNotFound) {
		t.Errorf("an event to a missing instance: %v", err)
	}
}

func TestSendOrStart_StartsMissingInstance(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	run, err := replaytest.SendOrStart(env, handle, "i", "", approved, true)
	if err != nil {
		t.Fatal(err)
	}
	if output, err := run.Wait(); err != nil || output != "true, 0" {
		t.Errorf("%q, %v", output, err)
	}
	if _, err := replaytest.SendOrStart(env, handle, "i", "", approved, true); !errors.Is(err, replaytest.ErrEnded) {
		t.Errorf("an event after the end: %v", err)
	}
	running := begin(t, env, handle, "j", "")
	if _, err := replaytest.SendOrStart(env, handle, "j", "", approved, false); err != nil {
		t.Error(err)
	}
	if output, err := running.Wait(); err != nil || output != "false, 0" {
		t.Errorf("%q, %v", output, err)
	}
}

func TestAt_FiresInTimeOrder(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	var fired []string
	record := func(what string) func() {
		return func() {
			fired = append(fired, fmt.Sprintf("%s after %v", what, env.Now().Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))))
		}
	}
	env.At(2*time.Hour, record("b"))
	env.At(time.Hour, record("a"))
	env.At(2*time.Hour, record("c"))
	run := begin(t, env, handle, "i", "")
	env.Advance(90 * time.Minute)
	if got := run.Status().State; got != replaytest.Running {
		t.Errorf("state %s", got)
	}
	env.Advance(23 * time.Hour)
	if want := []string{"a after 1h0m0s", "b after 2h0m0s", "c after 2h0m0s"}; !slices.Equal(fired, want) {
		t.Errorf("called %q", fired)
	}
	if got := run.Status(); !got.Ended() || got.State != replaytest.Completed {
		t.Errorf("state %s after a day", got.State)
	}
	if output, err := run.Wait(); err != nil || output != "too late" {
		t.Errorf("%q, %v", output, err)
	}
}

func TestEnv_CancelTerminateSuspend(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	for _, c := range []struct {
		id   string
		end  func(id, reason string) error
		want replaytest.State
		is   error
	}{
		{"a", env.Cancel, replaytest.Canceled, replay.ErrCanceled},
		{"b", env.Terminate, replaytest.Terminated, replay.ErrTerminated},
	} {
		run := begin(t, env, handle, c.id, "")
		if err := c.end(c.id, "enough"); err != nil {
			t.Error(err)
		}
		_, err := run.Wait()
		var ended *replaytest.RunError
		if !errors.As(err, &ended) || ended.State != c.want || !errors.Is(err, c.is) || !strings.Contains(err.Error(), "enough") {
			t.Errorf("%s: %v", c.id, err)
		}
	}
	run := begin(t, env, handle, "c", "")
	if err := env.Suspend("c", "wait"); err != nil {
		t.Error(err)
	}
	if err := replaytest.Send(env, "c", approved, true); err != nil {
		t.Error(err)
	}
	if got := run.Status().State; got != replaytest.Suspended {
		t.Errorf("state %s", got)
	}
	if err := env.Resume("c", "go on"); err != nil {
		t.Error(err)
	}
	if output, err := run.Wait(); err != nil || output != "true, 0" {
		t.Errorf("%q, %v", output, err)
	}
}

func TestStubChild_ReplacesChild(t *testing.T) {
	child, childDefinition := program("child", func(ctx *replay.Context, in string) (string, error) {
		return work.Call(ctx, in)
	})
	handle, definition := program("parent", func(ctx *replay.Context, in string) (string, error) {
		return child.Call(ctx, in)
	})
	for name, stub := range map[string]func(*replaytest.Env){
		"A": func(*replaytest.Env) {},
		"-": func(env *replaytest.Env) {
			replaytest.StubChild(env, child, func(*replay.Context, string) (string, error) { return "-", nil })
		},
	} {
		env := replaytest.New(t, definition, childDefinition, work.Bind(upper))
		stub(env)
		if output, err := replaytest.Call(env, handle, "p", "a"); err != nil || output != name {
			t.Errorf("%q, %v", output, err)
		}
		if got := env.Instances(); !slices.Equal(got, []string{"p", "p::1-1.1.2"}) {
			t.Errorf("instances %q", got)
		}
	}
}

func TestStart_ContinueAsNewAndReuse(t *testing.T) {
	handle := replay.Orchestration[int, int]("countdown")
	definition := handle.Bind(func(ctx *replay.Context, n int) (int, error) {
		if n == 0 {
			return int(ctx.Execution()), nil
		}
		if err := ctx.Sleep(time.Hour); err != nil {
			return 0, err
		}
		return 0, handle.ContinueAsNew(ctx, n-1)
	})
	env := replaytest.New(t, definition)
	first := begin(t, env, handle, "i", 3)
	if executions, err := first.Wait(); err != nil || executions != 4 {
		t.Errorf("%d executions, %v", executions, err)
	}
	if _, err := replaytest.StartRun(env, handle, "i", 1); !errors.Is(err, replaytest.ErrInstanceExists) {
		t.Errorf("started a second time: %v", err)
	}
	if execution, err := replaytest.Call(env, handle, "i", 1, replaytest.ReuseWhenEnded()); err != nil || execution != 6 {
		t.Errorf("execution %d, %v", execution, err)
	}
	if got := first.Status(); got.State != replaytest.Completed || got.Execution != 4 {
		t.Errorf("the first run is %s in execution %d", got.State, got.Execution)
	}
	if got := env.HistoryOf("i", 1).Events; got[len(got)-1].Type != history.OrchestrationContinuedAsNew {
		t.Errorf("execution 1 has not continued")
	}
}

func TestCompleteActivity_ByToken(t *testing.T) {
	handle, definition := program("outside", func(ctx *replay.Context, in string) (string, error) {
		return work.Call(ctx, in, replay.StartToClose(90*24*time.Hour))
	})
	env := replaytest.New(t, definition)
	var token string
	replaytest.Stub(env, work, func(ctx context.Context, in string) (string, error) {
		token = replay.ActivityInfo(ctx).Token()
		return "", replay.ErrResultPending
	})
	run := begin(t, env, handle, "i", "a")
	env.Advance(60 * 24 * time.Hour)
	if err := replaytest.FailActivity(env, token, errBank); err != nil {
		t.Error(err)
	}
	if err := replaytest.CompleteActivity(env, token, "late"); !errors.Is(err, replaytest.ErrActivityClosed) {
		t.Errorf("completed an attempt that has failed: %v", err)
	}
	env.Advance(time.Hour)
	if err := replaytest.CompleteActivity(env, token, "done"); err != nil {
		t.Error(err)
	}
	if output, err := run.Wait(); err != nil || output != "done" {
		t.Errorf("%q, %v", output, err)
	}
}

// A signed token is verified, and expires in virtual time; each attempt has its own.
func TestCompleteActivity_BySignedToken(t *testing.T) {
	handle, definition := program("outside", func(ctx *replay.Context, in string) (string, error) {
		return work.Call(ctx, in, replay.StartToClose(90*24*time.Hour))
	})
	env := replaytest.New(t, definition)
	var tokens []string
	var plain, url string
	replaytest.Stub(env, work, func(ctx context.Context, in string) (string, error) {
		attempt := replay.ActivityInfo(ctx)
		token, err := attempt.SignedToken(ctx, 30*24*time.Hour)
		if err == nil {
			url, err = attempt.CompletionURL(ctx, time.Hour)
		}
		if err != nil {
			t.Error(err)
		}
		tokens, plain = append(tokens, token), attempt.Token()
		return "", replay.ErrResultPending
	})
	run := begin(t, env, handle, "i", "a")
	env.Advance(30*24*time.Hour - 1)
	var wrong *replay.TokenError
	if err := replaytest.CompleteActivity(env, tokens[0]+"A", "forged"); !errors.As(err, &wrong) || wrong.Reason == "" {
		t.Errorf("a changed token: %v", err)
	}
	short, found := strings.CutPrefix(url, "https://replaytest.invalid/complete/")
	if err := replaytest.CompleteActivity(env, short, "late"); !found || !errors.Is(err, replaytest.ErrTokenExpired) {
		t.Errorf("after the expiry of %s: %v", url, err)
	}
	if err := replaytest.FailActivity(env, tokens[0], errBank); err != nil {
		t.Errorf("just before the expiry: %v", err)
	}
	env.Advance(time.Hour)
	if err := replaytest.CompleteActivity(env, tokens[0], "late"); len(tokens) != 2 || !errors.Is(err, replaytest.ErrTokenExpired) {
		t.Errorf("the first of %d tokens at its expiry: %v", len(tokens), err)
	}
	env.Advance(30 * 24 * time.Hour)
	if err := replaytest.CompleteActivity(env, tokens[1], "late"); !errors.Is(err, replaytest.ErrTokenExpired) {
		t.Errorf("the second token, expired: %v", err)
	}
	if err := replaytest.CompleteActivity(env, plain, "done"); err != nil {
		t.Errorf("the plain token, which does not expire: %v", err)
	}
	if output, err := run.Wait(); err != nil || output != "done" {
		t.Errorf("%q, %v", output, err)
	}
}

func TestSend_FromActivity(t *testing.T) {
	waits, waitsDefinition := program("waits", approval)
	sends, sendsDefinition := program("sends", func(ctx *replay.Context, to string) (string, error) { return work.Call(ctx, to) })
	env := replaytest.New(t, waitsDefinition, sendsDefinition)
	replaytest.Stub(env, work, func(_ context.Context, to string) (string, error) {
		return "sent", replaytest.Send(env, to, approved, true)
	})
	run := begin(t, env, waits, "receiver", "")
	if output, err := replaytest.Call(env, sends, "sender", "receiver"); err != nil || output != "sent" {
		t.Errorf("%q, %v", output, err)
	}
	if output, err := run.Wait(); err != nil || output != "true, 0" {
		t.Errorf("%q, %v", output, err)
	}
}

// Arrivals at one moment have one order, however the goroutines run.
func TestEnv_SameTestSameHistory(t *testing.T) {
	handle, definition := program("fan-out", fanOut)
	for range 20 {
		env := replaytest.New(t, definition, work.Bind(upper))
		if _, err := replaytest.Call(env, handle, "i", "a b c d e f"); err != nil {
			t.Fatal(err)
		}
		env.ExpectHistory("i", "testdata/fan-out.json")
	}
}

func TestStart_VersionAndStartAt(t *testing.T) {
	handle := replay.Orchestration[string, string]("versioned")
	body := func(ctx *replay.Context, _ string) (string, error) { return ctx.Version() + ctx.Tags()["t"], nil }
	env := replaytest.New(t, handle.Bind(body, replay.Version("1")), handle.Bind(body, replay.Version("2")))
	at := env.Now().Add(48 * time.Hour)
	output, err := replaytest.Call(env, handle, "old", "", replay.Version("1"), replaytest.StartAt(at),
		replaytest.Tags(map[string]string{"t": "!"}))
	if err != nil || output != "1!" || !env.Now().Equal(at) {
		t.Errorf("%q at %v, %v", output, env.Now(), err)
	}
	if output, err := replaytest.Call(env, handle, "new", ""); err != nil || output != "2" {
		t.Errorf("%q, %v", output, err)
	}
}

// The live instance is evicted and loaded again, not only replayed separately.
func TestReplayEvery_EvictsInstances(t *testing.T) {
	evicted := 0
	handle, definition := program("dropped", func(ctx *replay.Context, _ string) (string, error) {
		defer func() { evicted++ }()
		for range 5 {
			if err := ctx.Sleep(time.Second); err != nil {
				return "", err
			}
		}
		return "", nil
	})
	// Six appends: the instance is evicted after five and ends with the sixth. Its history is
	// replayed after each, and 64 times at the end.
	for every, want := range map[int]int{0: 1, 1: 6 + 5 + 64, 4: 1 + 1 + 1 + 64} {
		evicted = 0
		env := replaytest.New(t, definition)
		env.ReplayEvery(every)
		if _, err := replaytest.Call(env, handle, "i", ""); err != nil {
			t.Fatal(err)
		}
		if evicted != want {
			t.Errorf("replaying every %d, the code has run %d times, want %d", every, evicted, want)
		}
	}
}
