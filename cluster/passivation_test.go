package cluster

import (
	"errors"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// deferred collects what a deferred call has returned, each time.
type deferred struct {
	mu   sync.Mutex
	errs []error
}

func (d *deferred) add(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errs = append(d.errs, err)
}

func (d *deferred) all() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.errs[:len(d.errs):len(d.errs)]
}

// A deferred durable call does nothing while its instance is dropped from memory,
// as often as that happens, and counts when the code really returns.
func TestADeferredDurableCallWhileAnInstanceIsDroppedFromMemoryRecordsNothing(t *testing.T) {
	noGoroutinesLeft(t)
	met := new(deferred)
	leaves := replay.Orchestration[int, string]("leaves")
	node := startNode(t, Config{Dir: t.TempDir(), ResidentMax: 1, Definitions: append(definitions(),
		leaves.Bind(func(ctx *replay.Context, n int) (string, error) {
			defer func() {
				_, err := double.Call(ctx, n)
				met.add(err)
				_, err = ctx.Timer(0).Await(ctx)
				met.add(err)
				met.add(replay.SetStatus(ctx, "left"))
			}()
			return word.Wait(ctx)
		}))})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), leaves, "l", 1); err != nil {
		t.Fatal(err)
	}
	const each = 3
	drops := 0
	dropped := func(drop func()) {
		t.Helper()
		drop()
		drops++
		eventually(t, "the deferred calls were made", func() bool { return len(met.all()) == each*drops })
		for _, err := range met.all() {
			if !errors.Is(err, replay.ErrDehydrating) {
				t.Errorf("a deferred call, while it is dropped: %v", err)
			}
		}
		history, err := node.Client().History(ctx, "l")
		if err != nil || len(history.Events) != 2 || history.Events[1].Arm() != journalpb.ArmExternalSubscribed {
			t.Errorf("%v, %v; want nothing recorded", history, err)
		}
		if open := awaitOpen(t, node.Client(), "l"); open.Name != "word" {
			t.Errorf("it waits for %+v", open)
		}
	}
	crowd := func(id string) func() {
		return func() { // others take the place in memory
			rests(t, node)
			for _, n := range []string{"-1", "-2"} {
				if _, err := StartRun(ctx, node.Client(), waiter, id+n, ""); err != nil {
					t.Fatal(err)
				}
				rests(t, node)
			}
		}
	}
	dropped(crowd("a"))
	dropped(func() {
		if _, err := CallUpdate(ctx, node.Client(), "l", replay.Update[int, int]("none"), 1); !errors.As(err, new(*replay.NoUpdateError)) {
			t.Fatal(err) // it is in memory again, to say that it has no such handler
		}
		crowd("b")()
	})
	dropped(func() {
		if _, err := CallUpdate(ctx, node.Client(), "l", replay.Update[int, int]("none"), 1); !errors.As(err, new(*replay.NoUpdateError)) {
			t.Fatal(err)
		}
		node = restart(t, node)
	})
	if err := Send(ctx, node.Client(), "l", word, "on"); err != nil {
		t.Fatal(err)
	}
	if got := outcome(t, node.Client(), "l"); got != "completed on" {
		t.Error(got)
	}
	for _, err := range met.all()[each*drops:] {
		if err != nil && !errors.Is(err, replay.ErrDehydrating) {
			t.Errorf("a deferred call, at the real end: %v", err)
		}
	}
	for arm, want := range map[int]int{journalpb.ArmActivityScheduled: 1, journalpb.ArmActivityCompleted: 1, journalpb.ArmTimerFired: 1, journalpb.ArmStatusSet: 1} {
		if n := countEvents(t, node.Client(), "l", 0, ofArm(arm)); n != want {
			t.Errorf("%d %s at the real end; want %d", n, journalpb.ArmName(arm), want)
		}
	}
}
