package cluster

import (
	"errors"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// deferredErrors collects the errors of a deferred call.
type deferredErrors struct {
	mu   sync.Mutex
	errs []error
}

func (d *deferredErrors) add(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errs = append(d.errs, err)
}

func (d *deferredErrors) all() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.errs[:len(d.errs):len(d.errs)]
}

// A deferred durable call does nothing each time its instance is evicted, and takes effect when the
// code really returns.
func TestEviction_DeferredCallRecordsNothing(t *testing.T) {
	checkGoroutineLeaks(t)
	found := new(deferredErrors)
	leaves := replay.Orchestration[int, string]("leaves")
	node := startNode(t, Config{Dir: t.TempDir(), ResidentMax: 1, Definitions: append(definitions(),
		leaves.Bind(func(ctx *replay.Context, n int) (string, error) {
			defer func() {
				_, err := double.Call(ctx, n)
				found.add(err)
				_, err = ctx.Timer(0).Await(ctx)
				found.add(err)
				found.add(replay.SetStatus(ctx, "left"))
			}()
			return word.Wait(ctx)
		}))})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), leaves, "l", 1); err != nil {
		t.Fatal(err)
	}
	const each = 3
	evictions := 0
	checkEvicted := func(evict func()) {
		t.Helper()
		evict()
		evictions++
		eventually(t, "the deferred calls were made", func() bool { return len(found.all()) == each*evictions })
		for _, err := range found.all() {
			if !errors.Is(err, replay.ErrEvicting) {
				t.Errorf("a deferred call during eviction: %v", err)
			}
		}
		history, err := node.Client().History(ctx, "l")
		if err != nil || len(history.Events) != 2 || history.Events[1].Type != "ExternalSubscribed" {
			t.Errorf("%v, %v; want nothing recorded", history, err)
		}
		if open := awaitOpenOperation(t, node.Client(), "l"); open.Name != "word" {
			t.Errorf("it waits for %+v", open)
		}
	}
	overfill := func(id string) func() {
		return func() { // others take the memory slot
			awaitIdle(t, node)
			for _, n := range []string{"-1", "-2"} {
				if _, err := StartRun(ctx, node.Client(), waiter, id+n, ""); err != nil {
					t.Fatal(err)
				}
				awaitIdle(t, node)
			}
		}
	}
	checkEvicted(overfill("a"))
	checkEvicted(func() {
		if _, err := CallUpdate(ctx, node.Client(), "l", replay.Update[int, int]("none"), 1); !isNotRegistered(err, "update") {
			t.Fatal(err) // it is in memory again, to say that it has no such handler
		}
		overfill("b")()
	})
	checkEvicted(func() {
		if _, err := CallUpdate(ctx, node.Client(), "l", replay.Update[int, int]("none"), 1); !isNotRegistered(err, "update") {
			t.Fatal(err)
		}
		node = restart(t, node)
	})
	if err := Send(ctx, node.Client(), "l", word, "on"); err != nil {
		t.Fatal(err)
	}
	if got := awaitOutcome(t, node.Client(), "l"); got != "completed on" {
		t.Error(got)
	}
	for _, err := range found.all()[each*evictions:] {
		if err != nil && !errors.Is(err, replay.ErrEvicting) {
			t.Errorf("a deferred call, at the real end: %v", err)
		}
	}
	for eventType, want := range map[history.EventType]int{"ActivityScheduled": 1, "ActivityCompleted": 1, "TimerFired": 1, "StatusSet": 1} {
		if n := countEvents(t, node.Client(), "l", 0, hasEventType(eventType)); n != want {
			t.Errorf("%d %s at the real end; want %d", n, eventType, want)
		}
	}
}
