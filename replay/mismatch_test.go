package replay_test

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A place is a line of a test.
type place struct{ source string }

// next notes the line after the one that calls it.
func (p *place) next() {
	_, file, line, _ := runtime.Caller(1)
	p.source = fmt.Sprintf("replay/%s:%d", path.Base(file), line+1)
}

// expectMismatch replays a history and compares what that ends with.
func expectMismatch(t *testing.T, registry *replay.Registry, history []*journalpb.Event, want replay.Mismatch) {
	t.Helper()
	x := replay.NewExecution("order-17", 3, registry, nil)
	defer x.Drop()
	err := x.Replay(all(history))
	var got *replay.Mismatch
	if !errors.As(err, &got) {
		t.Fatalf("no mismatch but: %v", err)
	}
	want.Instance, want.Execution = "order-17", 3
	if diff := cmp.Diff(want, *got, cmpopts.IgnoreUnexported(replay.Mismatch{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// noted runs a body once up to its first block, for its notes of places.
func noted(t *testing.T, registry *replay.Registry, more ...*journalpb.Event) {
	t.Helper()
	x, _ := live(t, registry, more...)
	x.Drop()
}

func TestScheduledDifferentlyNamesTheCall(t *testing.T) {
	retry := replay.Retry(replay.RetryPolicy{MaxAttempts: 3})
	withRetry := activityScheduled("act", "x")
	retry(withOptions(withRetry))
	calls := []struct {
		name     string
		recorded *journalpb.Event
		call     func(*replay.Context, *place)
		found    string
	}{
		{"another kind", timerCreated(begin), func(ctx *replay.Context, p *place) {
			p.next()
			act.Call(ctx, "x")
		}, `ActivityScheduled name="act" input="x"`},
		{"a timer for an activity", activityScheduled("act", "x"), func(ctx *replay.Context, p *place) {
			p.next()
			ctx.Sleep(time.Second)
		}, "TimerCreated fire_at=2026-01-01T00:00:01Z"},
		{"another name", activityScheduled("debit", 1), func(ctx *replay.Context, p *place) {
			p.next()
			credit.Start(ctx, 1).Await(ctx)
		}, `ActivityScheduled name="credit" input=1`},
		{"another input", activityScheduled("debit", 1), func(ctx *replay.Context, p *place) {
			p.next()
			debit.Call(ctx, 2)
		}, `ActivityScheduled name="debit" input=2`},
		{"other options", withRetry, func(ctx *replay.Context, p *place) {
			p.next()
			act.Call(ctx, "x", replay.Retry(replay.RetryPolicy{MaxAttempts: 4}))
		}, `ActivityScheduled name="act" input="x" retry={initial=0s backoff=0 longest=0s attempts=4 never=[]}`},
		{"options gone", withRetry, func(ctx *replay.Context, p *place) {
			p.next()
			act.Call(ctx, "x")
		}, `ActivityScheduled name="act" input="x"`},
		{"another event", subscribed("tick"), func(ctx *replay.Context, p *place) {
			p.next()
			answer.WaitFor(ctx, time.Second)
		}, `ExternalSubscribed name="answer"`},
		{"another child", childScheduled("other", "i", "x"), func(ctx *replay.Context, p *place) {
			p.next()
			child.Call(ctx, "x", replay.ChildID("i"))
		}, `SubOrchestrationScheduled name="child" instance="i" input="x"`},
		{"another child ID", childScheduled("child", "i", "x"), func(ctx *replay.Context, p *place) {
			p.next()
			child.Call(ctx, "x", replay.ChildID("j"))
		}, `SubOrchestrationScheduled name="child" instance="j" input="x"`},
		{"a child ID that is not derived", childScheduled("child", "elsewhere", "x"), func(ctx *replay.Context, p *place) {
			p.next()
			child.Call(ctx, "x")
		}, `SubOrchestrationScheduled name="child" input="x"`},
		{"another child input", childScheduled("child", "order-17::3.2", "x"), func(ctx *replay.Context, p *place) {
			p.next()
			child.Start(ctx, "y").AwaitFor(ctx, time.Second)
		}, `SubOrchestrationScheduled name="child" input="y"`},
		{"the end", completed("x"), func(ctx *replay.Context, p *place) {
			p.next()
			ctx.Sleep(0)
		}, "TimerCreated fire_at=2026-01-01T00:00:00Z"},
		{"in a coroutine", timerCreated(begin), func(ctx *replay.Context, p *place) {
			replay.Go(ctx, func(ctx *replay.Context) (string, error) {
				p.next()
				return act.Call(ctx, "x")
			}).Await(ctx)
		}, `ActivityScheduled name="act" input="x"`},
	}
	for _, test := range calls {
		t.Run(test.name, func(t *testing.T) {
			var p place
			registry := script(t, func(ctx *replay.Context) (string, error) {
				test.call(ctx, &p)
				return "", nil
			})
			noted(t, registry)
			history := numbered(started("script", nil), test.recorded)
			expectMismatch(t, registry, history, replay.Mismatch{
				Kind: replay.ScheduledDifferently, EventID: 2,
				Expected: replay.Describe(test.recorded), Found: test.found, Source: p.source,
			})
		})
	}
}

// withOptions gives a recorded call an empty set of options to fill.
func withOptions(event *journalpb.Event) *journalpb.ActivityOptions {
	options := new(journalpb.ActivityOptions)
	event.GetActivityScheduled().Options = options
	return options
}

// The deadline of a wait is three calls deep.
func TestScheduledDifferentlyNamesTheWaitOfATimer(t *testing.T) {
	var p place
	registry := script(t, func(ctx *replay.Context) (string, error) {
		p.next()
		return answer.WaitFor(ctx, time.Second)
	})
	noted(t, registry)
	history := numbered(started("script", nil), subscribed("answer"), subscribed("answer"))
	expectMismatch(t, registry, history, replay.Mismatch{
		Kind: replay.ScheduledDifferently, EventID: 3, Source: p.source,
		Expected: `ExternalSubscribed name="answer"`, Found: "TimerCreated fire_at=2026-01-01T00:00:01Z",
	})
}

func TestScheduledDifferentlyWhenAnotherOperationIsGivenUp(t *testing.T) {
	var p place
	registry := bound(t, func(ctx *replay.Context, _ any) (string, error) {
		a, b := act.Start(ctx, "a"), act.Start(ctx, "b")
		_, err := goOn.Wait(ctx)
		p.next()
		b.Cancel(ctx)
		a.Await(ctx)
		return "", err
	})
	history := numbered(started("script", nil), activityScheduled("act", "a"), activityScheduled("act", "b"),
		subscribed("go"), external("go", nil, ""), gaveUp(2))
	noted(t, registry, external("go", nil, ""))
	expectMismatch(t, registry, history, replay.Mismatch{
		Kind: replay.ScheduledDifferently, EventID: 6, Source: p.source,
		Expected: "CancelRequested source_event_id=2", Found: "CancelRequested source_event_id=3",
	})
}

// An end has no call of its own: the line is that of the orchestration.
func TestScheduledDifferentlyWhenTheEndIsAnother(t *testing.T) {
	ends := map[string]struct {
		output string
		err    error
		found  string
	}{
		"output": {"new", nil, `OrchestrationCompleted output="new"`},
		"error":  {"", replay.WithCode("c", errors.New("broken")), `OrchestrationFailed code="c" error="broken"`},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			var p place
			p.next()
			registry := bound(t, func(*replay.Context, any) (string, error) { return end.output, end.err })
			expectMismatch(t, registry, numbered(started("script", nil), completed("old")), replay.Mismatch{
				Kind: replay.ScheduledDifferently, EventID: 2, Source: p.source,
				Expected: `OrchestrationCompleted output="old"`, Found: end.found,
			})
		})
	}
}

// bound is script without a function of its own around the body.
func bound(t *testing.T, body func(*replay.Context, any) (string, error)) *replay.Registry {
	t.Helper()
	return registryOf(t, replay.Orchestration[any, string]("script").Bind(body))
}

func TestScheduledNothingNamesTheCallThatBlocks(t *testing.T) {
	var p place
	registry := script(t, func(ctx *replay.Context) (string, error) {
		wait := goOn.Subscribe(ctx)
		replay.Go(ctx, func(ctx *replay.Context) (any, error) { return wait.Await(ctx) })
		p.next()
		_, err := wait.Await(ctx)
		return "", err
	})
	noted(t, registry)
	for _, recorded := range []*journalpb.Event{activityScheduled("act", "x"), gaveUp(2), completed("x")} {
		history := numbered(started("script", nil), subscribed("go"), recorded)
		expectMismatch(t, registry, history, replay.Mismatch{
			Kind: replay.ScheduledNothing, EventID: 3, Source: p.source,
			Expected: replay.Describe(recorded), Found: "the code blocked, asking for nothing",
		})
	}
}

func TestEndedEarlyNamesTheOrchestration(t *testing.T) {
	var p place
	p.next()
	registry := bound(t, func(ctx *replay.Context, _ any) (string, error) {
		return act.Call(ctx, "x")
	})
	history := numbered(started("script", nil), activityScheduled("act", "x"), activityCompleted(2, "y"), timerCreated(begin))
	expectMismatch(t, registry, history, replay.Mismatch{
		Kind: replay.EndedEarly, EventID: 4, Source: p.source,
		Expected: "TimerCreated fire_at=2026-01-01T00:00:00Z", Found: `OrchestrationCompleted output="y"`,
	})
}

type shop struct{}

func (shop) checkout(*replay.Context, any) (string, error) { return "", nil }

func TestEndedEarlyNamesTheMethod(t *testing.T) {
	registry := bound(t, shop{}.checkout)
	expectMismatch(t, registry, numbered(started("script", nil), subscribed("go")), replay.Mismatch{
		Kind: replay.EndedEarly, EventID: 2, Source: "replay_test.shop.checkout",
		Expected: `ExternalSubscribed name="go"`, Found: `OrchestrationCompleted output=""`,
	})
}

// waiting calls an activity with a limit, and waits.
func waiting(ctx *replay.Context) (string, error) {
	first, second := act.Start(ctx, "a"), ctx.Timer(time.Second)
	if _, err := first.Await(ctx); err != nil {
		return "", err
	}
	second.Cancel(ctx)
	_, err := goOn.Wait(ctx)
	return "", err
}

// waitingHistory is what waiting leaves: 2 is completed, 3 given up, 6 open.
func waitingHistory(more ...*journalpb.Event) []*journalpb.Event {
	return numbered(append([]*journalpb.Event{started("script", nil), activityScheduled("act", "a"), timerCreated(begin),
		activityCompleted(2, "b"), gaveUp(3), subscribed("go")}, more...)...)
}

func TestUnknownSource(t *testing.T) {
	registry := script(t, waiting)
	for _, source := range []uint64{0, 1, 4, 5, 7, 8, 1 << 60} {
		completion := activityCompleted(source, "x")
		expectMismatch(t, registry, waitingHistory(completion), replay.Mismatch{
			Kind: replay.UnknownSource, EventID: 7,
			Expected: fmt.Sprintf("event %d schedules no operation", source), Found: replay.Describe(completion),
		})
	}
}

func TestUnknownSourceBeforeItsSchedule(t *testing.T) {
	history := numbered(started("script", nil), timerFired(3, begin), timerCreated(begin))
	expectMismatch(t, script(t, waiting), history, replay.Mismatch{
		Kind: replay.UnknownSource, EventID: 2,
		Expected: "event 3 schedules no operation",
		Found:    "TimerFired source_event_id=3 fire_at=2026-01-01T00:00:00Z",
	})
}

func TestAlreadyClosed(t *testing.T) {
	registry := script(t, waiting)
	completions := map[string]*journalpb.Event{
		"completed twice":    activityCompleted(2, "again"),
		"completed, failed":  activityFailed(2, errors.New("late")),
		"given up":           timerFired(3, begin),
		"closed, wrong kind": timerFired(2, begin),
	}
	for name, completion := range completions {
		t.Run(name, func(t *testing.T) {
			expectMismatch(t, registry, waitingHistory(completion), replay.Mismatch{
				Kind: replay.AlreadyClosed, EventID: 7,
				Expected: fmt.Sprintf("operation %d is closed already", completion.SourceEventId),
				Found:    replay.Describe(completion),
			})
		})
	}
}

// A subscription is closed by its event, whichever came first.
func TestAlreadyClosedByAnExternalEvent(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := goOn.Wait(ctx); err != nil {
			return "", err
		}
		_, err := act.Call(ctx, "x")
		return "", err
	})
	completion := timerFired(2, begin)
	want := replay.Mismatch{Kind: replay.AlreadyClosed, EventID: 5,
		Expected: "operation 2 is closed already", Found: replay.Describe(completion)}
	expectMismatch(t, registry, numbered(started("script", nil), subscribed("go"), external("go", nil, ""),
		activityScheduled("act", "x"), completion), want)
}

func TestAlreadyClosedByAnExternalEventThatWasBuffered(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := act.Call(ctx, "first"); err != nil {
			return "", err
		}
		if _, err := goOn.Wait(ctx); err != nil {
			return "", err
		}
		_, err := act.Call(ctx, "x")
		return "", err
	})
	completion := timerFired(5, begin)
	expectMismatch(t, registry, numbered(started("script", nil), activityScheduled("act", "first"), external("go", nil, ""),
		activityCompleted(2, ""), subscribed("go"), activityScheduled("act", "x"), completion), replay.Mismatch{
		Kind: replay.AlreadyClosed, EventID: 7,
		Expected: "operation 5 is closed already", Found: replay.Describe(completion)})
}

func TestScheduledDifferentlyWhenTheCodeAsksForMoreThanTheHistoryHas(t *testing.T) {
	var p place
	registry := bound(t, func(ctx *replay.Context, _ any) (string, error) {
		a := act.Start(ctx, "a")
		p.next()
		act.Start(ctx, "b")
		return a.Await(ctx)
	})
	noted(t, registry)
	expectMismatch(t, registry, numbered(started("script", nil), activityScheduled("act", "a"), activityCompleted(2, "A")), replay.Mismatch{
		Kind: replay.ScheduledDifferently, EventID: 3, Source: p.source,
		Expected: `ActivityCompleted source_event_id=2 result="A" attempts=1`, Found: `ActivityScheduled name="act" input="b"`,
	})
}

func TestWrongKind(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		work, limit, kid := act.Start(ctx, "a"), ctx.Timer(0), child.Start(ctx, "c", replay.ChildID("kid"))
		_, err := goOn.Wait(ctx)
		_ = []any{work, limit, kid}
		return "", err
	})
	schedules := []*journalpb.Event{activityScheduled("act", "a"), timerCreated(begin), childScheduled("child", "kid", "c"), subscribed("go")}
	for i, scheduled := range schedules {
		source := uint64(i + 2)
		completions := []*journalpb.Event{activityCompleted(source, 1), activityFailed(source, errors.New("e")),
			timerFired(source, begin), childCompleted(source, 1), childFailed(source, errors.New("e"))}
		for _, completion := range completions {
			if journalpb.Completes(completion.Arm()) == scheduled.Arm() {
				continue
			}
			t.Run(fmt.Sprintf("%s for %s", completion.Type(), scheduled.Type()), func(t *testing.T) {
				history := append([]*journalpb.Event{started("script", nil)}, schedules...)
				expectMismatch(t, registry, numbered(append(history, completion)...), replay.Mismatch{
					Kind: replay.WrongKind, EventID: 6,
					Expected: fmt.Sprintf("operation %d is of %s", source, scheduled.Type()), Found: replay.Describe(completion),
				})
			})
		}
	}
}

func TestCorruptHistories(t *testing.T) {
	gap := numbered(started("script", nil), activityScheduled("act", "a"))
	gap[1].EventId = 3
	repeat := numbered(started("script", nil), activityScheduled("act", "a"))
	repeat[1].EventId = 1
	zero := numbered(started("script", nil))
	zero[0].EventId = 0
	cases := map[string]struct {
		history []*journalpb.Event
		at      uint64
		found   string
	}{
		"gap":                 {gap, 3, "event_id 3 after 1"},
		"repeat":              {repeat, 1, "event_id 1 after 1"},
		"zero":                {zero, 0, "event_id 0 after 0"},
		"first not Started":   {numbered(timerCreated(begin)), 1, "TimerCreated as first event"},
		"first unknown":       {numbered(&journalpb.Event{}), 1, "Unknown as first event"},
		"second Started":      {waitingHistory(started("script", nil)), 7, "a second OrchestrationStarted"},
		"unknown body":        {waitingHistory(&journalpb.Event{}), 7, "an event of a type that this build does not know"},
		"after the end":       {waitingHistory(terminated("x"), external("go", nil, "")), 8, "ExternalEvent after the terminal event"},
		"two terminal events": {waitingHistory(terminated("x"), terminated("y")), 8, "OrchestrationTerminated after the terminal event"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			expectMismatch(t, script(t, waiting), test.history, replay.Mismatch{
				Kind: replay.Corrupt, EventID: test.at, Found: test.found,
			})
		})
	}
}

func TestAnEventAfterTheEndOfTheCodeIsCorrupt(t *testing.T) {
	registry := script(t, func(*replay.Context) (string, error) { return "x", nil })
	expectMismatch(t, registry, numbered(started("script", nil), completed("x"), timerCreated(begin)), replay.Mismatch{
		Kind: replay.Corrupt, EventID: 3, Found: "TimerCreated after the terminal event",
	})
}

func TestMismatchReadsAsOneSentence(t *testing.T) {
	m := &replay.Mismatch{Kind: replay.ScheduledDifferently, Instance: "order-17", Execution: 1, EventID: 4,
		Expected: "A", Found: "B", Source: "shop/checkout.go:12"}
	want := "scheduled differently at event 4 of order-17/1: expected A, found B (shop/checkout.go:12)"
	if m.Error() != want {
		t.Errorf("%q, want %q", m.Error(), want)
	}
}

// What differs is named, and no value is.
func TestAMismatchWithoutPayloadsNamesWhatDiffers(t *testing.T) {
	const secret = "4111-1111-1111"
	registry := bound(t, func(ctx *replay.Context, _ any) (string, error) {
		return replay.Activity[string, string]("charge").Call(ctx, secret+"-asked", replay.Tag("cards"))
	})
	for name, test := range map[string]struct {
		recorded        *journalpb.Event
		expected, found string
	}{
		"another name": {
			activityScheduled("refund", secret), `ActivityScheduled name="refund" input=(16 bytes)`,
			`ActivityScheduled name="charge" input=(22 bytes)`,
		},
		"another kind": {
			timerCreated(begin), "TimerCreated fire_at=" + begin.UTC().Format(time.RFC3339Nano),
			`ActivityScheduled name="charge" input=(22 bytes)`,
		},
	} {
		x := replay.NewExecution("order-17", 3, registry, nil)
		var got *replay.Mismatch
		if err := x.Replay(all(numbered(started("script", nil), test.recorded))); !errors.As(err, &got) {
			t.Fatalf("%s: no mismatch but: %v", name, err)
		}
		x.Drop()
		shown := got.WithoutPayloads()
		if !strings.HasPrefix(shown.Expected, test.expected) || !strings.HasPrefix(shown.Found, test.found) ||
			shown.EventID != 2 || shown.Kind != replay.ScheduledDifferently || shown.Source != got.Source {
			t.Errorf("%s: %v", name, shown)
		}
		if strings.Contains(shown.Error(), secret) || !strings.Contains(got.Error(), secret) {
			t.Errorf("%s: the value is shown by %v, and by %v", name, shown, got)
		}
	}
}

func TestStalledInstanceGoesOnWithCodeThatFits(t *testing.T) {
	fits := script(t, func(ctx *replay.Context) (string, error) {
		a, err := act.Call(ctx, "first")
		if err != nil {
			return "", err
		}
		b, err := act.Call(ctx, "second")
		return a + b, err
	})
	swapped := script(t, func(ctx *replay.Context) (string, error) {
		b, err := act.Call(ctx, "second")
		if err != nil {
			return "", err
		}
		a, err := act.Call(ctx, "first")
		return a + b, err
	})
	in := &instance{registry: fits, cold: true}
	mustTurn(t, in, started("script", nil))
	in.registry = swapped
	before := len(in.history)
	if _, err := in.turn(begin, messagesOf(activityCompleted(2, "a"))); !errors.As(err, new(*replay.Mismatch)) {
		t.Fatalf("no mismatch but: %v", err)
	}
	if len(in.history) != before {
		t.Fatal("a stalled instance has recorded something")
	}
	in.registry = fits
	mustTurn(t, in, activityCompleted(2, "a"))
	mustTurn(t, in, activityCompleted(4, "b"))
	last := in.history[len(in.history)-1]
	if got := replay.Describe(last); got != `OrchestrationCompleted output="ab"` {
		t.Errorf("the end is %s", got)
	}
	checkReplays(t, in)
}

func mustTurn(t testing.TB, in *instance, events ...*journalpb.Event) *replay.Turn {
	t.Helper()
	turn, err := in.turn(begin, messagesOf(events...))
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

func TestRecordedTimeOfTimerWins(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) { return "", ctx.Sleep(time.Second) })
	x := replay.NewExecution("i", 1, registry, nil)
	defer x.Drop()
	history := numbered(started("script", nil), timerCreated(begin.Add(time.Hour)))
	if err := x.Replay(all(history)); err != nil {
		t.Fatal(err)
	}
}

// Stacks and causes of an error change with the build; its code and message
// are what the code promises.
func TestRecordedErrorIsMatchedByCodeAndMessage(t *testing.T) {
	registry := script(t, func(*replay.Context) (string, error) { return "", fmt.Errorf("broken: %w", errors.New("new cause")) })
	history := numbered(started("script", nil), &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: &journalpb.Error{
			Message: "broken: new cause", Cause: &journalpb.Error{Message: "old cause"}, Stack: "old stack"}}}})
	x := replay.NewExecution("i", 1, registry, nil)
	defer x.Drop()
	if err := x.Replay(all(history)); err != nil || !x.Ended() {
		t.Fatalf("ended is %t: %v", x.Ended(), err)
	}
	for _, change := range []func(*journalpb.Error){
		func(e *journalpb.Error) { e.Code = "other" },
		func(e *journalpb.Error) { e.Message = "other" },
	} {
		differs := stored(history[1])
		change(differs.GetOrchestrationFailed().Error)
		y := replay.NewExecution("i", 1, registry, nil)
		if err := y.Replay(all([]*journalpb.Event{history[0], differs})); !errors.As(err, new(*replay.Mismatch)) {
			t.Errorf("%v is taken: %v", differs, err)
		}
		y.Drop()
	}
}

// Kinds of errors that had no code when a history was recorded may have got one.
func TestARecordedErrorWithoutACodeIsMatchedByItsMessage(t *testing.T) {
	registry := registryOf(t, numberChild.Bind(func(*replay.Context, string) (int, error) { return 0, nil }))
	history := numbered(started("child", 7), &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: &journalpb.Error{
			Message: "decode input: json: cannot unmarshal number into Go value of type string"}}}})
	x := replay.NewExecution("i", 1, registry, nil)
	defer x.Drop()
	if err := x.Replay(all(history)); err != nil || !x.Ended() {
		t.Fatalf("ended is %t: %v", x.Ended(), err)
	}
}

func TestWithoutCodeReplayNamesIt(t *testing.T) {
	start := started("gone", nil)
	start.GetOrchestrationStarted().Version = "2"
	x := replay.NewExecution("i", 1, script(t, waiting), nil)
	defer x.Drop()
	err := x.Replay(all(numbered(start)))
	var noCode *replay.NoCodeError
	if !errors.As(err, &noCode) || noCode.Error() != `no code for orchestration "gone", version "2", on this node` {
		t.Errorf("%v", err)
	}
}

func TestReplayReturnsTheErrorOfItsSource(t *testing.T) {
	broken := errors.New("disk on fire")
	x := replay.NewExecution("i", 1, script(t, waiting), nil)
	defer x.Drop()
	err := x.Replay(func(yield func(*journalpb.Event, error) bool) { yield(nil, broken) })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
