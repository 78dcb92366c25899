package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// continueHistory loads an instance from a history of older code, delivers messages, and returns
// the last event. What is recorded must be replayable.
func continueHistory(t *testing.T, registry *engine.Registry, history []*journalpb.Event, more ...*journalpb.Event) string {
	t.Helper()
	for _, cold := range []bool{false, true} {
		in := &instance{registry: registry, cold: cold, history: history[:len(history):len(history)], declinesPatches: true}
		for _, event := range more {
			mustTurn(t, in, event)
		}
		in.evict()
		checkReplays(t, in)
		if cold {
			return lastEvent(in)
		}
	}
	panic("not reached")
}

func TestPatched_FalseInOldHistory(t *testing.T) {
	registry := programRegistry(t)
	base := func(more ...*journalpb.Event) []*journalpb.Event {
		return withEventIDs(append([]*journalpb.Event{started("patched", "")}, more...)...)
	}
	cases := map[string]struct {
		history []*journalpb.Event
		more    []*journalpb.Event
		want    string
	}{
		"before the first patch": {base(),
			[]*journalpb.Event{activityCompleted(4, "A"), activityCompleted(7, "B")}, "A1213"},
		"after two in one step": {base(activityScheduled("act", "a")),
			[]*journalpb.Event{activityCompleted(2, "A"), activityCompleted(5, "B")}, "A3"},
		"after all": {base(activityScheduled("act", "a"), activityCompleted(2, "A"), activityScheduled("act", "b")),
			[]*journalpb.Event{activityCompleted(4, "B")}, "A"},
		"the first is new, the second not": {base(marker("first"), activityScheduled("act", "a"), activityCompleted(3, "A"), activityScheduled("act", "b")),
			[]*journalpb.Event{activityCompleted(5, "B")}, "A11"},
		"the second is new, the first not": {base(marker("second"), activityScheduled("act", "a"), activityCompleted(3, "A"), activityScheduled("act", "b")),
			[]*journalpb.Event{activityCompleted(5, "B")}, "A2"},
		"all are new": {base(marker("first"), marker("second"), activityScheduled("act", "a"), activityCompleted(4, "A"), marker("third"), activityScheduled("act", "b")),
			[]*journalpb.Event{activityCompleted(7, "B")}, "A1213"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			want := fmt.Sprintf("OrchestrationCompleted output=%q", test.want)
			if got := continueHistory(t, registry, test.history, test.more...); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// Without the marker, coroutines run in the order of code without the patch, and operations
// canceled in that step leave no trace.
func TestPatched_FalseKeepsCoroutineOrder(t *testing.T) {
	registry := programRegistry(t)
	old := withEventIDs(started("patched-inside", ""), activityScheduled("act", "a"), activityScheduled("act", "b"))
	got := continueHistory(t, registry, old, activityCompleted(3, "B"), activityCompleted(2, "A"))
	if got != `OrchestrationCompleted output="A B"` {
		t.Error(got)
	}
	partial := withEventIDs(started("patched-inside", ""), marker("inside-a"), activityScheduled("act", "a+"), activityScheduled("act", "b"))
	got = continueHistory(t, registry, partial, activityCompleted(3, "A"), activityCompleted(4, "B"))
	if got != `OrchestrationCompleted output="A B"` {
		t.Error(got)
	}
}

// The code passed this point after the previous event and saw its time.
func TestPatched_FalseKeepsTime(t *testing.T) {
	for name, ask := range map[string]func(*replay.Context){
		"patched": func(ctx *replay.Context) { replay.Patched(ctx, "p") },
		"retired": func(ctx *replay.Context) { replay.DeprecatePatch(ctx, "p") },
	} {
		t.Run(name, func(t *testing.T) {
			registry := script(t, func(ctx *replay.Context) (string, error) {
				work := act.Start(ctx, "a")
				ask(ctx)
				at := ctx.Now()
				_, err := work.Await(ctx)
				return at.Format(time.TimeOnly), err
			})
			old := withEventIDs(started("script", nil), activityScheduled("act", "a"), activityCompleted(2, ""), completed("00:00:00"))
			old[2].Timestamp = begin.Add(time.Hour).UnixNano()
			old[3].Timestamp = old[2].Timestamp
			x := engine.NewExecution("i", 1, registry, nil)
			defer x.Evict()
			if err := x.Replay(eventSeq(old)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPatched_FalseBeforeRecordedInput(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		wait := goOn.Subscribe(ctx)
		patched := replay.Patched(ctx, "p")
		_, err := wait.Await(ctx)
		return fmt.Sprint(patched), err
	})
	inputs := map[string]*journalpb.Event{
		"event": external("go", nil, ""), "cancel": cancelRequested("", ""), "suspend": suspended("", ""), "terminate": terminated(""),
	}
	for name, event := range inputs {
		t.Run(name, func(t *testing.T) {
			x := engine.NewExecution("i", 1, registry, nil)
			defer x.Evict()
			if err := x.Replay(eventSeq(withEventIDs(started("script", nil), subscribed("go"), event))); err != nil {
				t.Fatal(err)
			}
			turn, err := x.Turn(begin, messagesOf(resumed("", ""), external("go", nil, "")))
			if err != nil {
				t.Fatal(err)
			}
			for _, event := range turn.Events {
				if event.GetSideEffectRecorded() != nil {
					t.Errorf("recorded: %s", engine.Describe(event))
				}
			}
		})
	}
}

func TestDeprecatePatch_AcceptsMarkerRecordsNone(t *testing.T) {
	registry := programRegistry(t)
	histories := map[string][]*journalpb.Event{
		"none":   {activityScheduled("act", "a")},
		"first":  {activityScheduled("act", "a"), marker("first")},
		"second": {activityScheduled("act", "a"), marker("second")},
		"both":   {activityScheduled("act", "a"), marker("first"), marker("second")},
	}
	for name, history := range histories {
		t.Run(name, func(t *testing.T) {
			history = withEventIDs(append([]*journalpb.Event{started("retired", "")}, history...)...)
			got := continueHistory(t, registry, history, activityCompleted(2, ""))
			if got != `OrchestrationCompleted output="00:00:00"` {
				t.Error(got)
			}
		})
	}
}

func TestPatched_RejectsInvalidID(t *testing.T) {
	for _, id := range []string{"", strings.Repeat("x", 129), "\xff"} {
		for _, ask := range []func(*replay.Context, string){
			func(ctx *replay.Context, id string) { replay.Patched(ctx, id) }, replay.DeprecatePatch,
		} {
			x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
				ask(ctx, id)
				return "", nil
			}))
			x.Evict()
			failed := turn.Events[len(turn.Events)-1].GetOrchestrationFailed()
			if len(turn.Events) != 2 || !strings.Contains(failed.GetError().GetMessage(), "name of patch") {
				t.Errorf("%q: %v", id, turn.Events)
			}
		}
	}
}

func TestPatched_AfterCancelAndInOnClose(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		ctx.OnClose(func(ctx *replay.Context, err error) error {
			if !replay.Patched(ctx, "clean-up") {
				return errors.New("not patched in the clean-up")
			}
			return nil
		})
		_, err := goOn.Wait(ctx)
		if !replay.Patched(ctx, "after") {
			return "", errors.New("not patched after the cancellation")
		}
		return "", err
	})
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, cancelRequested("by hand", ""))
		wantLast(t, in, `OrchestrationCanceled reason="by hand"`)
	})
}

// During eviction an undecided patch returns false.
func TestPatched_DuringEvict(t *testing.T) {
	var answers []bool
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		replay.Patched(ctx, "decided")
		defer func() { answers = append(answers, replay.Patched(ctx, "decided"), replay.Patched(ctx, "new")) }()
		return act.Call(ctx, "x")
	}))
	x.Evict()
	if len(answers) != 2 || !answers[0] || answers[1] {
		t.Error(answers)
	}
}
