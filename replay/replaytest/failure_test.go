package replaytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var (
	work    = replay.Activity[string, string]("work")
	awaited = replay.Event[string]("awaited")
	ask     = replay.Query[string, string]("ask")
	helper  = replay.Orchestration[string, string]("helper")
	program = replay.Orchestration[string, string]("program")
)

type body = func(ctx *replay.Context, in string) (string, error)

func callWork(ctx *replay.Context, in string) (string, error) { return work.Call(ctx, in) }

func echo(_ context.Context, in string) (string, error) { return in, nil }

// callFailure calls an orchestration with echo as its activity, and returns the failure of the
// test.
func callFailure(t *testing.T, b body) string {
	t.Helper()
	return failures(t, func(tb testing.TB, env *Env) {
		Stub(env, work, echo)
		if _, err := Call(env, program, "i", "in"); err != nil {
			tb.Errorf("call: %v", err)
		}
	}, program.Bind(b))
}

func TestBlockedCode_ReportsLine(t *testing.T) {
	var held sync.Mutex
	held.Lock()
	var wg sync.WaitGroup
	wg.Add(1)
	tokens := make(chan string, 1)
	tokens <- "one"
	for name, c := range map[string]struct {
		body body
		want string
	}{
		"sleeps":            {func(ctx *replay.Context, _ string) (string, error) { time.Sleep(time.Hour); return "", nil }, "sleep"},
		"locks":             {func(ctx *replay.Context, _ string) (string, error) { held.Lock(); return "", nil }, "Mutex.Lock"},
		"waits for a group": {func(ctx *replay.Context, _ string) (string, error) { wg.Wait(); return "", nil }, "WaitGroup"},
		"selects on nothing": {func(ctx *replay.Context, _ string) (string, error) {
			select {}
		}, "select"},
		"after a call": {func(ctx *replay.Context, in string) (string, error) {
			_, err := work.Call(ctx, in)
			time.Sleep(time.Second)
			return "", err
		}, "sleep"},
		"only in the replay": {func(ctx *replay.Context, in string) (string, error) {
			return work.Call(ctx, <-tokens)
		}, "chan receive"},
	} {
		t.Run(name, func(t *testing.T) {
			wantFailure(t, callFailure(t, c.body), "orchestration code is blocked", "replaytest/failure_test.go:", c.want, "ctx.Sleep")
		})
	}
}

func TestBlockedCode_InQueryIsReported(t *testing.T) {
	text := failures(t, func(tb testing.TB, env *Env) {
		begin(env, program, "i", "")
		_, _ = Query(env, "i", ask, "")
	}, program.Bind(func(ctx *replay.Context, _ string) (string, error) {
		err := ask.Handle(ctx, func(string) (string, error) { time.Sleep(time.Second); return "", nil })
		if err != nil {
			return "", err
		}
		return awaited.Wait(ctx)
	}))
	wantFailure(t, text, "orchestration code is blocked", "failure_test.go:", "sleep")
}

func TestRealTimeMax_ReportsActivityBlockedOutsideBubble(t *testing.T) {
	outside := make(chan struct{})
	text := failures(t, func(_ testing.TB, env *Env) {
		env.RealTimeMax(time.Second)
		Stub(env, work, func(context.Context, string) (string, error) { <-outside; return "", nil })
		_, _ = Call(env, program, "i", "")
	}, program.Bind(callWork))
	wantFailure(t, text, "the test is blocked outside virtual time", "failure_test.go:", "CompleteActivity")
}

func TestCall_ReportsInstanceWaitingForNothing(t *testing.T) {
	text := callFailure(t, func(ctx *replay.Context, _ string) (string, error) { return awaited.Wait(ctx) })
	wantFailure(t, text, "i has not ended", "nothing more can happen", `ExternalSubscribed name="awaited"`)

	text = failures(t, func(_ testing.TB, env *Env) {
		Stub(env, work, func(ctx context.Context, _ string) (string, error) { <-ctx.Done(); return "", ctx.Err() })
		_, _ = Call(env, program, "i", "in")
	}, program.Bind(callWork))
	wantFailure(t, text, "i has not ended", "nothing more can happen", `ActivityScheduled name="work" input="in"`)
}

func TestCall_ReportsEndlessContinueAsNew(t *testing.T) {
	for name, b := range map[string]body{
		"in time": func(ctx *replay.Context, in string) (string, error) {
			if err := ctx.Sleep(time.Hour); err != nil {
				return "", err
			}
			return "", program.ContinueAsNew(ctx, in)
		},
		"at one moment": func(ctx *replay.Context, in string) (string, error) {
			if _, err := work.Call(ctx, in); err != nil {
				return "", err
			}
			return "", program.ContinueAsNew(ctx, in)
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := failures(t, func(_ testing.TB, env *Env) {
				env.stepsMax = 200
				Stub(env, work, echo)
				_, _ = Call(env, program, "i", "in")
			}, program.Bind(b))
			wantFailure(t, text, " steps", "i (program)")
		})
	}
}

func TestCall_ReportsEndlessRetries(t *testing.T) {
	for last, stub := range map[string]func(context.Context, string) (string, error){
		"out of paper":           Returns[string]("", errors.New("out of paper")),
		"start-to-close timeout": func(ctx context.Context, _ string) (string, error) { <-ctx.Done(); return "", ctx.Err() },
	} {
		text := failures(t, func(_ testing.TB, env *Env) {
			env.stepsMax = 200
			Stub(env, work, stub)
			_, _ = Call(env, program, "i", "in")
		}, program.Bind(func(ctx *replay.Context, in string) (string, error) {
			return work.Call(ctx, in, replay.StartToClose(time.Hour))
		}))
		wantFailure(t, text, "no end after 2", `ActivityScheduled name="work"`, "failed attempts, the last: "+last)
	}
}

func TestCall_ReportsUnboundCode(t *testing.T) {
	text := failures(t, func(_ testing.TB, env *Env) { _, _ = Call(env, program, "i", "") }, program.Bind(callWork))
	wantFailure(t, text, `i calls activity "work" (event 2), which is neither bound nor stubbed`)

	text = failures(t, func(_ testing.TB, env *Env) { _, _ = Call(env, program, "i", "") },
		program.Bind(func(ctx *replay.Context, in string) (string, error) { return helper.Call(ctx, in) }))
	wantFailure(t, text, `i::1-1.1.2 is orchestration "helper"`, "neither bound nor stubbed")

	text = failures(t, func(_ testing.TB, env *Env) { _, _ = Call(env, program, "i", "") })
	wantFailure(t, text, `orchestration "program", version "", is not bound`)
}

func TestEnv_CloseAwaitsSlowActivity(t *testing.T) {
	text := failures(t, func(tb testing.TB, env *Env) {
		Stub(env, work, func(context.Context, string) (string, error) { time.Sleep(10 * time.Hour); return "late", nil })
		if _, err := Call(env, program, "i", ""); err != nil {
			tb.Error(err)
		}
	}, program.Bind(func(ctx *replay.Context, in string) (string, error) {
		_, err := work.Start(ctx, in).AwaitFor(ctx, time.Hour)
		if !errors.Is(err, replay.ErrTimeout) {
			return "", err
		}
		return "in time", nil
	}))
	if text != "" {
		t.Errorf("failed: %s", text)
	}
}

func TestEnv_CloseReportsLeakedGoroutine(t *testing.T) {
	text := failures(t, func(_ testing.TB, env *Env) {
		Stub(env, work, func(context.Context, string) (string, error) { go func() { select {} }(); return "", nil })
		_, _ = Call(env, program, "i", "")
	}, program.Bind(callWork))
	wantFailure(t, text, "goroutines leaked", "failure_test.go:")
}

func TestEnv_CloseEndsRunningActivities(t *testing.T) {
	text := failures(t, func(_ testing.TB, env *Env) {
		Stub(env, work, func(ctx context.Context, in string) (string, error) {
			if in == "waits" {
				<-ctx.Done()
			} else {
				time.Sleep(time.Hour)
			}
			return "", ctx.Err()
		})
		begin(env, program, "a", "waits")
		begin(env, program, "b", "sleeps")
		env.Advance(time.Minute)
	}, program.Bind(callWork))
	if text != "" {
		t.Errorf("failed: %s", text)
	}
}

func TestExpect_ShowsDifference(t *testing.T) {
	golden := filepath.Join(t.TempDir(), "dir", "golden.json")
	write := func(_ testing.TB, env *Env) {
		Stub(env, work, echo)
		_, _ = Call(env, program, "i", "in")
		if err := writeFile(golden, env.History("i")); err != nil {
			t.Fatal(err)
		}
		env.ExpectHistory("i", golden)
		env.ExpectCalls(work, 1)
	}
	if text := failures(t, write, program.Bind(callWork)); text != "" {
		t.Fatalf("failed: %s", text)
	}
	text := failures(t, func(_ testing.TB, env *Env) {
		Stub(env, work, echo)
		_, _ = Call(env, program, "i", "in")
		env.ExpectHistory("i", golden)
		env.ExpectCalls(work, 1)
		env.ExpectHistory("i", golden+".missing")
	}, program.Bind(func(ctx *replay.Context, in string) (string, error) {
		if _, err := work.Call(ctx, "more"); err != nil {
			return "", err
		}
		return work.Call(ctx, in)
	}))
	wantFailure(t, text,
		`+ {"eventId":"2","activityScheduled":{"name":"work","input":{"json":"more"}}}`,
		`- {"eventId":"2","activityScheduled":{"name":"work","input":{"json":"in"}}}`,
		`  {"eventId":"1"`,
		"2 calls of work, want 1:\n    1. \"more\"\n    2. \"in\"",
		"golden.json.missing does not exist: write it with -replaytest.update",
	)
}

func TestReplay_RunsToEndOfHistory(t *testing.T) {
	dir := t.TempDir()
	record := func(_ testing.TB, env *Env) {
		Stub(env, work, echo)
		_, _ = Call(env, program, "done", "in")
		begin(env, program, "halfway", "wait")
		for _, id := range []string{"done", "halfway"} {
			if err := writeFile(filepath.Join(dir, id+".json"), env.History(id)); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := func(ctx *replay.Context, in string) (string, error) {
		out, err := work.Call(ctx, in)
		if in == "wait" && err == nil {
			return awaited.Wait(ctx)
		}
		return out, err
	}
	if text := failures(t, record, program.Bind(before)); text != "" {
		t.Fatalf("failed: %s", text)
	}
	all := filepath.Join(dir, "*.json")
	for name, c := range map[string]struct {
		body body
		want []string
	}{
		"the same": {before, nil},
		"another output": {func(ctx *replay.Context, in string) (string, error) {
			out, err := before(ctx, in)
			return out + "!", err
		}, []string{"done.json", "scheduled differently, at event 4 of done/1", `output="in!"`}},
		"asks for more": {func(ctx *replay.Context, in string) (string, error) {
			if in == "wait" {
				ctx.Timer(time.Hour)
				replay.Go(ctx, func(ctx *replay.Context) (string, error) { return awaited.Wait(ctx) })
			}
			return before(ctx, in)
		}, []string{"halfway.json", "scheduled differently, at event 2 of halfway/1"}},
		"does not wait": {func(ctx *replay.Context, in string) (string, error) { return work.Call(ctx, in) }, []string{"halfway.json", "ended early, at event 4 of halfway/1", "ExternalSubscribed"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := failuresOf(t, func(tb testing.TB) { Replay(tb, all, program.Bind(c.body)) })
			if c.want == nil && text != "" {
				t.Errorf("failed: %s", text)
			}
			wantFailure(t, text, c.want...)
		})
	}
}

// Code that requests an operation after the end of a history did something else when the
// history was recorded.
func TestCheck_ReportsExtraOperation(t *testing.T) {
	var recorded history.History
	if text := failures(t, func(_ testing.TB, env *Env) {
		begin(env, program, "i", "")
		recorded = *env.History("i")
	}, program.Bind(func(ctx *replay.Context, _ string) (string, error) { return awaited.Wait(ctx) })); text != "" {
		t.Fatalf("failed: %s", text)
	}
	registry, err := engine.NewRegistry(program.Bind(func(ctx *replay.Context, in string) (string, error) {
		subscribed := awaited.Subscribe(ctx)
		ctx.Timer(time.Hour)
		return subscribed.Await(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
	var more *ExtraOperationError
	if err := Check(&recorded, registry); !errors.As(err, &more) || more.EventID != 2 || !strings.HasPrefix(more.Found, "TimerCreated") {
		t.Errorf("checked: %v", err)
	}
}

func TestReplay_ReportsInvalidFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty.json": "",
		"none.json":  `{"format":"tenuto.history/1","instance":"i","execution":1,"events":[]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := failuresOf(t, func(tb testing.TB) { Replay(tb, filepath.Join(dir, "*.json"), program.Bind(callWork)) })
	wantFailure(t, text, "empty.json: read history: EOF", "none.json", "is empty")
	text = failuresOf(t, func(tb testing.TB) { Replay(tb, filepath.Join(dir, "*.txt"), program.Bind(callWork)) })
	wantFailure(t, text, "no file matches")
	text = failuresOf(t, func(tb testing.TB) { Replay(tb, "[", program.Bind(callWork)) })
	wantFailure(t, text, `pattern "["`)
}

func TestEnv_RejectsMisuse(t *testing.T) {
	text := failures(t, func(_ testing.TB, env *Env) {
		Stub(env, work, echo)
		begin(env, program, "i", "")
		env.ReplayEvery(2)
	}, program.Bind(callWork))
	wantFailure(t, text, "ReplayEvery must be called before the first start")
	text = failures(t, func(_ testing.TB, env *Env) {
		Stub(env, work, echo)
		begin(env, program, "i", "")
		StubChild(env, helper, callWork)
	}, program.Bind(callWork))
	wantFailure(t, text, "StubChild must come before the first start")
	text = failures(t, func(_ testing.TB, env *Env) { env.History("unknown") }, program.Bind(callWork))
	wantFailure(t, text, `there is no instance "unknown"`)
	text = failuresOf(t, func(tb testing.TB) {
		newEnv(tb, t, new(order), []replay.Definition{program.Bind(callWork), program.Bind(callWork)})
	})
	wantFailure(t, text, "bound twice")
	synctest.Test(t, func(t *testing.T) {
		text := failuresOf(t, func(tb testing.TB) { newEnv(tb, t, new(order), nil) })
		wantFailure(t, text, "it creates its own")
	})
}

func TestDiff_ShowsContext(t *testing.T) {
	a := strings.Split("a b c d e f g h i j k", " ")
	b := strings.Split("a b c d e X g h i j k", " ")
	want := "  ...\n  c\n  d\n  e\n- f\n+ X\n  g\n  h\n  i\n  ..."
	if got := diff(a, b); got != want {
		t.Errorf("diff\n%s\nwant\n%s", got, want)
	}
}

// Log lines after the end of a test must not reach it.
func TestLog_SilentAfterClose(t *testing.T) {
	r := &output{TB: t}
	l := &log{to: r}
	_, _ = l.Write([]byte("a"))
	l.close()
	_, _ = l.Write([]byte("b"))
	if got := r.text.String(); got != "a" {
		t.Errorf("logged %q", got)
	}
}

type output struct {
	testing.TB
	text bytes.Buffer
}

func (o *output) Output() io.Writer { return &o.text }

// Keys, derived IDs and error texts are those of a run in a cluster.
func TestEnv_MatchesNewestProtocol(t *testing.T) {
	wrong := replay.Activity[string, int]("work")
	event := replay.Event[int]("event")
	env := New(t, helper.Bind(func(ctx *replay.Context, _ string) (string, error) { return ctx.InstanceID(), nil }),
		program.Bind(func(ctx *replay.Context, _ string) (string, error) {
			key, err := work.Call(ctx, "")
			if err != nil {
				return "", err
			}
			child, err := helper.Call(ctx, "")
			if err != nil {
				return "", err
			}
			_, err = wrong.Call(ctx, "")
			var result *replay.PayloadError
			if !errors.As(err, &result) {
				return "", err
			}
			_, err = event.Wait(ctx)
			return fmt.Sprintf("%s, %s, event %d, %v", key, child, result.EventID, err), nil
		}),
		work.Bind(func(ctx context.Context, _ string) (string, error) {
			return replay.ActivityInfo(ctx).IdempotencyKey(), nil
		}))
	for _, want := range []string{
		"i/1-1/1/2, i::1-1.1.4, event 6, canceled: enough",
		"i/1-2/2/2, i::1-2.2.4, event 6, canceled: enough",
	} {
		run := begin(env, program, "i", "", ReuseWhenEnded())
		if err := env.Cancel("i", "enough"); err != nil {
			t.Fatal(err)
		}
		if got, err := run.Wait(); got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	t.Run("completed from outside", func(t *testing.T) {
		env := New(t, program.Bind(callWork))
		var token string
		Stub(env, work, func(ctx context.Context, _ string) (string, error) {
			token = replay.ActivityInfo(ctx).Token()
			return "", replay.ErrResultPending
		})
		run := begin(env, program, "i", "")
		if err := CompleteActivity(env, token, "done"); err != nil {
			t.Fatal(err)
		}
		if got, err := run.Wait(); got != "done" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// The status text has changed: a test sees it, a cluster accepts it.
func TestReplay_StrictUnlessCompatible(t *testing.T) {
	code := func(status string) replay.Definition {
		return program.Bind(func(ctx *replay.Context, _ string) (string, error) {
			if err := replay.SetStatus(ctx, status); err != nil {
				return "", err
			}
			return awaited.Wait(ctx)
		})
	}
	pattern := filepath.Join(t.TempDir(), "*.json")
	if text := failures(t, func(_ testing.TB, env *Env) {
		begin(env, program, "i", "")
		var text bytes.Buffer
		if err := history.Write(&text, env.History("i")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(strings.Replace(pattern, "*", "i", 1), text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}, code("half")); text != "" {
		t.Fatalf("failed: %s", text)
	}
	text := failuresOf(t, func(tb testing.TB) { Replay(tb, pattern, code("half of it")) })
	wantFailure(t, text, "scheduled differently", "half of it", "ReplayCompatible")
	if text := failuresOf(t, func(tb testing.TB) { ReplayCompatible(tb, pattern, code("half of it")) }); text != "" {
		t.Errorf("failed: %s", text)
	}
}
