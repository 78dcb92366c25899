package replay_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// goesOn brings an instance back from a history that older code left, delivers
// messages, and returns the last event. What is recorded must be replayable.
func goesOn(t *testing.T, registry *replay.Registry, history []*journalpb.Event, more ...*journalpb.Event) string {
	t.Helper()
	for _, cold := range []bool{false, true} {
		in := &instance{registry: registry, cold: cold, history: history[:len(history):len(history)], declines: true}
		for _, event := range more {
			mustTurn(t, in, event)
		}
		in.drop()
		checkReplays(t, in)
		if cold {
			return last(in)
		}
	}
	panic("not reached")
}

func TestPatchedIsDeclinedWhereAnOldHistoryHasPassed(t *testing.T) {
	registry := programRegistry(t)
	begun := func(more ...*journalpb.Event) []*journalpb.Event {
		return numbered(append([]*journalpb.Event{started("patched", "")}, more...)...)
	}
	cases := map[string]struct {
		history []*journalpb.Event
		more    []*journalpb.Event
		want    string
	}{
		"before the first patch": {begun(),
			[]*journalpb.Event{activityCompleted(4, "A"), activityCompleted(7, "B")}, "A1213"},
		"after two in one step": {begun(activityScheduled("act", "a")),
			[]*journalpb.Event{activityCompleted(2, "A"), activityCompleted(5, "B")}, "A3"},
		"after all": {begun(activityScheduled("act", "a"), activityCompleted(2, "A"), activityScheduled("act", "b")),
			[]*journalpb.Event{activityCompleted(4, "B")}, "A"},
		"the first is new, the second not": {begun(marker("first"), activityScheduled("act", "a"), activityCompleted(3, "A"), activityScheduled("act", "b")),
			[]*journalpb.Event{activityCompleted(5, "B")}, "A11"},
		"the second is new, the first not": {begun(marker("second"), activityScheduled("act", "a"), activityCompleted(3, "A"), activityScheduled("act", "b")),
			[]*journalpb.Event{activityCompleted(5, "B")}, "A2"},
		"all are new": {begun(marker("first"), marker("second"), activityScheduled("act", "a"), activityCompleted(4, "A"), marker("third"), activityScheduled("act", "b")),
			[]*journalpb.Event{activityCompleted(7, "B")}, "A1213"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			want := fmt.Sprintf("OrchestrationCompleted output=%q", test.want)
			if got := goesOn(t, registry, test.history, test.more...); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// Where the marker is missing, the coroutines go on in the order in which they
// would have without the question; what was given up in that step leaves no
// trace.
func TestPatchedInsideCoroutinesKeepsTheirOrderWhereItIsDeclined(t *testing.T) {
	registry := programRegistry(t)
	old := numbered(started("patched-inside", ""), activityScheduled("act", "a"), activityScheduled("act", "b"))
	got := goesOn(t, registry, old, activityCompleted(3, "B"), activityCompleted(2, "A"))
	if got != `OrchestrationCompleted output="A B"` {
		t.Error(got)
	}
	half := numbered(started("patched-inside", ""), marker("inside-a"), activityScheduled("act", "a+"), activityScheduled("act", "b"))
	got = goesOn(t, registry, half, activityCompleted(3, "A"), activityCompleted(4, "B"))
	if got != `OrchestrationCompleted output="A B"` {
		t.Error(got)
	}
}

// The code passed the place when the event before was consumed, and saw that
// event's time.
func TestADeclinedPatchSeesTheTimeAtWhichTheCodePassed(t *testing.T) {
	for name, ask := range map[string]func(*replay.Context){
		"patched": func(ctx *replay.Context) { replay.Patched(ctx, "p") },
		"retired": func(ctx *replay.Context) { replay.Retired(ctx, "p") },
	} {
		t.Run(name, func(t *testing.T) {
			registry := script(t, func(ctx *replay.Context) (string, error) {
				work := act.Start(ctx, "a")
				ask(ctx)
				at := ctx.Now()
				_, err := work.Await(ctx)
				return at.Format(time.TimeOnly), err
			})
			old := numbered(started("script", nil), activityScheduled("act", "a"), activityCompleted(2, ""), completed("00:00:00"))
			old[2].Timestamp = begin.Add(time.Hour).UnixNano()
			old[3].Timestamp = old[2].Timestamp
			x := replay.NewExecution("i", 1, registry, nil)
			defer x.Drop()
			if err := x.Replay(all(old)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnInputDeclinesAPatch(t *testing.T) {
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
			x := replay.NewExecution("i", 1, registry, nil)
			defer x.Drop()
			if err := x.Replay(all(numbered(started("script", nil), subscribed("go"), event))); err != nil {
				t.Fatal(err)
			}
			turn, err := x.Turn(begin, messagesOf(resumed("", ""), external("go", nil, "")))
			if err != nil {
				t.Fatal(err)
			}
			for _, event := range turn.Events {
				if event.GetSideEffectRecorded() != nil {
					t.Errorf("recorded: %s", replay.Describe(event))
				}
			}
		})
	}
}

func TestRetiredTakesAMarkerAndMakesNone(t *testing.T) {
	registry := programRegistry(t)
	histories := map[string][]*journalpb.Event{
		"none":   {activityScheduled("act", "a")},
		"first":  {activityScheduled("act", "a"), marker("first")},
		"second": {activityScheduled("act", "a"), marker("second")},
		"both":   {activityScheduled("act", "a"), marker("first"), marker("second")},
	}
	for name, history := range histories {
		t.Run(name, func(t *testing.T) {
			history = numbered(append([]*journalpb.Event{started("retired", "")}, history...)...)
			got := goesOn(t, registry, history, activityCompleted(2, ""))
			if got != `OrchestrationCompleted output="00:00:00"` {
				t.Error(got)
			}
		})
	}
}

func TestPatchedRefusesAnIDThatNoHistoryMayKeep(t *testing.T) {
	for _, id := range []string{"", strings.Repeat("x", 129), "\xff"} {
		for _, ask := range []func(*replay.Context, string){
			func(ctx *replay.Context, id string) { replay.Patched(ctx, id) }, replay.Retired,
		} {
			x, turn := live(t, script(t, func(ctx *replay.Context) (string, error) {
				ask(ctx, id)
				return "", nil
			}))
			x.Drop()
			failed := turn.Events[len(turn.Events)-1].GetOrchestrationFailed()
			if len(turn.Events) != 2 || !strings.Contains(failed.GetError().GetMessage(), "name of patch") {
				t.Errorf("%q: %v", id, turn.Events)
			}
		}
	}
}

func TestPatchedAfterCancellationAndInCleanUpStillDecides(t *testing.T) {
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
	eachWay(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, cancelRequested("by hand", ""))
		wantLast(t, in, `OrchestrationCancelled reason="by hand"`)
	})
}

// While an instance is dropped, a question that was not decided gets no.
func TestPatchedDuringADropDecidesNothing(t *testing.T) {
	var answers []bool
	x, _ := live(t, script(t, func(ctx *replay.Context) (string, error) {
		replay.Patched(ctx, "decided")
		defer func() { answers = append(answers, replay.Patched(ctx, "decided"), replay.Patched(ctx, "new")) }()
		return act.Call(ctx, "x")
	}))
	x.Drop()
	if len(answers) != 2 || !answers[0] || answers[1] {
		t.Error(answers)
	}
}
