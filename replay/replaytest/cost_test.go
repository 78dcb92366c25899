package replaytest

import (
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// compute takes about 0.1 s of processor time.
func compute() string {
	sum := sha256.Sum256(make([]byte, 50<<20))
	return fmt.Sprintf("%x", sum[:2])
}

// The limit applies to each replay, not to all replays of a run together.
func TestRealTimeMax_AllowsSlowCode(t *testing.T) {
	text := failures(t, func(tb testing.TB, env *Env) {
		env.RealTimeMax(5 * time.Second)
		if _, err := Call(env, program, "i", ""); err != nil {
			tb.Errorf("call: %v", err)
		}
	}, program.Bind(func(*replay.Context, string) (string, error) { return compute(), nil }))
	if text != "" {
		t.Errorf("failed with %s", text)
	}
}

func TestRealTimeMax_ReportsBusyCode(t *testing.T) {
	var stop atomic.Bool
	defer stop.Store(true)
	text := failures(t, func(_ testing.TB, env *Env) {
		env.RealTimeMax(time.Second)
		_, _ = Call(env, program, "i", "")
	}, program.Bind(func(*replay.Context, string) (string, error) {
		for !stop.Load() {
		}
		return "", nil
	}))
	wantFailure(t, text, "orchestration code has been computing for too long", "cost_test.go:", "activities")
}

// A quarter of the default limit: with -race the whole takes half a minute.
func TestEnv_ReportsZeroTimerLoop(t *testing.T) {
	text := failures(t, func(tb testing.TB, env *Env) {
		env.stepsMax = stepsMax / 4
		if _, err := Call(env, program, "i", ""); err != nil {
			tb.Errorf("call: %v", err)
		}
	}, program.Bind(func(ctx *replay.Context, _ string) (string, error) {
		for {
			if err := ctx.Sleep(0); err != nil {
				return "", err
			}
		}
	}))
	wantFailure(t, text, "endless loop without passing time")
}

// Four times as many children must not cost sixteen times as many replayed events.
func TestEnv_ManyChildrenReplayCostIsLinear(t *testing.T) {
	replayed := func(count int) (events int) {
		text := failures(t, func(tb testing.TB, env *Env) {
			env.RealTimeMax(time.Minute)
			if _, err := Call(env, program, "i", ""); err != nil {
				tb.Errorf("call: %v", err)
			}
			events = env.replayedEvents
		}, helper.Bind(func(ctx *replay.Context, _ string) (string, error) { return "", ctx.Sleep(time.Hour) }),
			program.Bind(func(ctx *replay.Context, _ string) (string, error) {
				children := make([]*replay.Future[string], count)
				for i := range children {
					children[i] = helper.Start(ctx, "")
				}
				_, err := replay.All(ctx, children...)
				return "", err
			}))
		if text != "" {
			t.Fatalf("%d children: %s", count, text)
		}
		return events
	}
	if few, more := replayed(100), replayed(400); more > 7*few {
		t.Errorf("%d events were replayed for 100 children, %d for 400", few, more)
	}
}

// Deferred functions also run when an instance is evicted.
func TestBlockedCode_InDeferredFunctionIsReported(t *testing.T) {
	blocked := make(chan struct{})
	defer close(blocked)
	wantFailure(t, callFailure(t, func(ctx *replay.Context, _ string) (string, error) {
		defer func() { <-blocked }()
		return callWork(ctx, "in")
	}), "orchestration code is blocked outside durable calls", "cost_test.go:")
}
