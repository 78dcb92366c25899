package engine_test

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
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A callSite is a line of a test.
type callSite struct{ source string }

// markNext records the line after its caller.
func (c *callSite) markNext() {
	_, file, line, _ := runtime.Caller(1)
	c.source = fmt.Sprintf("engine/%s:%d", path.Base(file), line+1)
}

// expectMismatch replays a history and compares the mismatch.
func expectMismatch(t *testing.T, registry *engine.Registry, history []*journalpb.Event, want replay.Mismatch) {
	t.Helper()
	x := engine.NewExecution("order-17", 3, registry, nil)
	defer x.Evict()
	err := x.Replay(eventSeq(history))
	var got *replay.Mismatch
	if !errors.As(err, &got) {
		t.Fatalf("got %v, want a mismatch", err)
	}
	want.Instance, want.Execution = "order-17", 3
	if diff := cmp.Diff(want, *got, cmpopts.IgnoreUnexported(replay.Mismatch{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// runUntilBlocked runs a body up to its first block, to record its call sites.
func runUntilBlocked(t *testing.T, registry *engine.Registry, more ...*journalpb.Event) {
	t.Helper()
	x, _ := startScript(t, registry, more...)
	x.Evict()
}

func TestScheduledDifferently_NamesCall(t *testing.T) {
	retry := replay.Retry(replay.RetryPolicy{MaxAttempts: 3})
	withRetry := activityScheduled("act", "x")
	proto.Merge(withOptions(withRetry), engine.RecordedOptions(retry))
	calls := []struct {
		name     string
		recorded *journalpb.Event
		call     func(*replay.Context, *callSite)
		found    string
		strict   bool // only the strict comparison finds it
	}{
		{"another kind", timerCreated(begin), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			act.Call(ctx, "x")
		}, `ActivityScheduled name="act" input="x"`, false},
		{"a timer for an activity", activityScheduled("act", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			ctx.Sleep(time.Second)
		}, "TimerCreated fire_at=2026-01-01T00:00:01Z", false},
		{"another name", activityScheduled("debit", 1), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			credit.Start(ctx, 1).Await(ctx)
		}, `ActivityScheduled name="credit" input=1`, false},
		{"another input", activityScheduled("debit", 1), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			debit.Call(ctx, 2)
		}, `ActivityScheduled name="debit" input=2`, false},
		{"other options", withRetry, func(ctx *replay.Context, p *callSite) {
			p.markNext()
			act.Call(ctx, "x", replay.Retry(replay.RetryPolicy{MaxAttempts: 4}))
		}, `ActivityScheduled name="act" input="x" retry={initial=0s backoff=0 longest=0s attempts=4 never=[]}`, true},
		{"options gone", withRetry, func(ctx *replay.Context, p *callSite) {
			p.markNext()
			act.Call(ctx, "x")
		}, `ActivityScheduled name="act" input="x"`, true},
		{"another event", subscribed("tick"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			answer.WaitFor(ctx, time.Second)
		}, `ExternalSubscribed name="answer"`, false},
		{"another child", childScheduled("other", "i", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Call(ctx, "x", replay.ChildID("i"))
		}, `SubOrchestrationScheduled name="child" instance="i" input="x"`, false},
		{"another child ID", childScheduled("child", "i", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Call(ctx, "x", replay.ChildID("j"))
		}, `SubOrchestrationScheduled name="child" instance="j" input="x"`, false},
		{"a child ID that is not derived", childScheduled("child", "elsewhere", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Call(ctx, "x")
		}, `SubOrchestrationScheduled name="child" input="x"`, false},
		{"another child input", childScheduled("child", "order-17::3.2", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Start(ctx, "y").AwaitFor(ctx, time.Second)
		}, `SubOrchestrationScheduled name="child" input="y"`, false},
		{"the end", completed("x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			ctx.Sleep(0)
		}, "TimerCreated fire_at=2026-01-01T00:00:00Z", false},
		{"in a coroutine", timerCreated(begin), func(ctx *replay.Context, p *callSite) {
			replay.Go(ctx, func(ctx *replay.Context) (string, error) {
				p.markNext()
				return act.Call(ctx, "x")
			}).Await(ctx)
		}, `ActivityScheduled name="act" input="x"`, false},
	}
	for _, test := range calls {
		t.Run(test.name, func(t *testing.T) {
			var p callSite
			registry := script(t, func(ctx *replay.Context) (string, error) {
				test.call(ctx, &p)
				return "", nil
			})
			runUntilBlocked(t, registry)
			history := withEventIDs(started("script", nil), test.recorded)
			expectMismatch(t, registry.WithStrict(true), history, replay.Mismatch{
				Kind: replay.ScheduledDifferently, EventID: 2,
				Expected: engine.Describe(test.recorded), Found: test.found, Source: p.source, Strict: test.strict,
			})
		})
	}
}

// withOptions gives a recorded call an empty set of options.
func withOptions(event *journalpb.Event) *journalpb.ActivityOptions {
	options := new(journalpb.ActivityOptions)
	event.GetActivityScheduled().Options = options
	return options
}

// The timer of WaitFor is created three calls deep.
func TestScheduledDifferently_NamesTimerCall(t *testing.T) {
	var p callSite
	registry := script(t, func(ctx *replay.Context) (string, error) {
		p.markNext()
		return answer.WaitFor(ctx, time.Second)
	})
	runUntilBlocked(t, registry)
	history := withEventIDs(started("script", nil), subscribed("answer"), subscribed("answer"))
	expectMismatch(t, registry, history, replay.Mismatch{
		Kind: replay.ScheduledDifferently, EventID: 3, Source: p.source,
		Expected: `ExternalSubscribed name="answer"`, Found: "TimerCreated fire_at=2026-01-01T00:00:01Z",
	})
}

func TestScheduledDifferently_OtherOperationCanceled(t *testing.T) {
	var p callSite
	registry := bindScript(t, func(ctx *replay.Context, _ any) (string, error) {
		a, b := act.Start(ctx, "a"), act.Start(ctx, "b")
		_, err := goOn.Wait(ctx)
		p.markNext()
		b.Cancel(ctx)
		a.Await(ctx)
		return "", err
	})
	history := withEventIDs(started("script", nil), activityScheduled("act", "a"), activityScheduled("act", "b"),
		subscribed("go"), external("go", nil, ""), operationCanceled(2))
	runUntilBlocked(t, registry, external("go", nil, ""))
	expectMismatch(t, registry, history, replay.Mismatch{
		Kind: replay.ScheduledDifferently, EventID: 6, Source: p.source,
		Expected: "CancelRequested source_event_id=2", Found: "CancelRequested source_event_id=3",
	})
}

// A terminal event has no call: the line is that of the orchestration.
func TestScheduledDifferently_OtherResult(t *testing.T) {
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
			var p callSite
			p.markNext()
			registry := bindScript(t, func(*replay.Context, any) (string, error) { return end.output, end.err })
			expectMismatch(t, registry, withEventIDs(started("script", nil), completed("old")), replay.Mismatch{
				Kind: replay.ScheduledDifferently, EventID: 2, Source: p.source,
				Expected: `OrchestrationCompleted output="old"`, Found: end.found,
			})
		})
	}
}

// bindScript is script without a wrapper around the body.
func bindScript(t *testing.T, body func(*replay.Context, any) (string, error)) *engine.Registry {
	t.Helper()
	return registryOf(t, replay.Orchestration[any, string]("script").Bind(body))
}

func TestScheduledNothing_NamesBlockingCall(t *testing.T) {
	var p callSite
	registry := script(t, func(ctx *replay.Context) (string, error) {
		wait := goOn.Subscribe(ctx)
		replay.Go(ctx, func(ctx *replay.Context) (any, error) { return wait.Await(ctx) })
		p.markNext()
		_, err := wait.Await(ctx)
		return "", err
	})
	runUntilBlocked(t, registry)
	for _, recorded := range []*journalpb.Event{activityScheduled("act", "x"), operationCanceled(2), completed("x")} {
		history := withEventIDs(started("script", nil), subscribed("go"), recorded)
		expectMismatch(t, registry, history, replay.Mismatch{
			Kind: replay.ScheduledNothing, EventID: 3, Source: p.source,
			Expected: engine.Describe(recorded), Found: "the code blocked and scheduled nothing",
		})
	}
}

func TestEndedEarly_NamesOrchestration(t *testing.T) {
	var p callSite
	p.markNext()
	registry := bindScript(t, func(ctx *replay.Context, _ any) (string, error) {
		return act.Call(ctx, "x")
	})
	history := withEventIDs(started("script", nil), activityScheduled("act", "x"), activityCompleted(2, "y"), timerCreated(begin))
	expectMismatch(t, registry, history, replay.Mismatch{
		Kind: replay.EndedEarly, EventID: 4, Source: p.source,
		Expected: "TimerCreated fire_at=2026-01-01T00:00:00Z", Found: `OrchestrationCompleted output="y"`,
	})
}

type shop struct{}

func (shop) checkout(*replay.Context, any) (string, error) { return "", nil }

func TestEndedEarly_NamesMethod(t *testing.T) {
	registry := bindScript(t, shop{}.checkout)
	expectMismatch(t, registry, withEventIDs(started("script", nil), subscribed("go")), replay.Mismatch{
		Kind: replay.EndedEarly, EventID: 2, Source: "engine_test.shop.checkout",
		Expected: `ExternalSubscribed name="go"`, Found: `OrchestrationCompleted output=""`,
	})
}

// waiting calls an activity with a timeout, and waits.
func waiting(ctx *replay.Context) (string, error) {
	first, second := act.Start(ctx, "a"), ctx.Timer(time.Second)
	if _, err := first.Await(ctx); err != nil {
		return "", err
	}
	second.Cancel(ctx)
	_, err := goOn.Wait(ctx)
	return "", err
}

// waitingHistory is the history of waiting: 2 is completed, 3 canceled, 6 open.
func waitingHistory(more ...*journalpb.Event) []*journalpb.Event {
	return withEventIDs(append([]*journalpb.Event{started("script", nil), activityScheduled("act", "a"), timerCreated(begin),
		activityCompleted(2, "b"), operationCanceled(3), subscribed("go")}, more...)...)
}

func TestUnknownSource(t *testing.T) {
	registry := script(t, waiting)
	for _, source := range []uint64{0, 1, 4, 5, 7, 8, 1 << 60} {
		completion := activityCompleted(source, "x")
		expectMismatch(t, registry, waitingHistory(completion), replay.Mismatch{
			Kind: replay.UnknownSource, EventID: 7,
			Expected: fmt.Sprintf("event %d schedules no operation", source), Found: engine.Describe(completion),
		})
	}
}

func TestUnknownSource_BeforeScheduled(t *testing.T) {
	history := withEventIDs(started("script", nil), timerFired(3, begin), timerCreated(begin))
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
		"canceled":           timerFired(3, begin),
		"closed, wrong kind": timerFired(2, begin),
	}
	for name, completion := range completions {
		t.Run(name, func(t *testing.T) {
			expectMismatch(t, registry, waitingHistory(completion), replay.Mismatch{
				Kind: replay.AlreadyClosed, EventID: 7,
				Expected: fmt.Sprintf("operation %d is already closed", completion.SourceEventId),
				Found:    engine.Describe(completion),
			})
		})
	}
}

// A subscription is closed by its event, in either order.
func TestAlreadyClosed_ByExternalEvent(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := goOn.Wait(ctx); err != nil {
			return "", err
		}
		_, err := act.Call(ctx, "x")
		return "", err
	})
	completion := timerFired(2, begin)
	want := replay.Mismatch{Kind: replay.AlreadyClosed, EventID: 5,
		Expected: "operation 2 is already closed", Found: engine.Describe(completion)}
	expectMismatch(t, registry, withEventIDs(started("script", nil), subscribed("go"), external("go", nil, ""),
		activityScheduled("act", "x"), completion), want)
}

func TestAlreadyClosed_ByBufferedExternalEvent(t *testing.T) {
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
	expectMismatch(t, registry, withEventIDs(started("script", nil), activityScheduled("act", "first"), external("go", nil, ""),
		activityCompleted(2, ""), subscribed("go"), activityScheduled("act", "x"), completion), replay.Mismatch{
		Kind: replay.AlreadyClosed, EventID: 7,
		Expected: "operation 5 is already closed", Found: engine.Describe(completion)})
}

func TestScheduledDifferently_CodeSchedulesMore(t *testing.T) {
	var p callSite
	registry := bindScript(t, func(ctx *replay.Context, _ any) (string, error) {
		a := act.Start(ctx, "a")
		p.markNext()
		act.Start(ctx, "b")
		return a.Await(ctx)
	})
	runUntilBlocked(t, registry)
	expectMismatch(t, registry, withEventIDs(started("script", nil), activityScheduled("act", "a"), activityCompleted(2, "A")), replay.Mismatch{
		Kind: replay.ScheduledDifferently, EventID: 3, Source: p.source,
		Expected: `ActivityCompleted source_event_id=2 result="A" attempts=1`, Found: `ActivityScheduled name="act" input="b"`,
	})
}

func TestWrongEventType(t *testing.T) {
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
			if journalpb.SchedulingType(completion.TypeNumber()) == scheduled.TypeNumber() {
				continue
			}
			t.Run(fmt.Sprintf("%s for %s", completion.Type(), scheduled.Type()), func(t *testing.T) {
				history := append([]*journalpb.Event{started("script", nil)}, schedules...)
				expectMismatch(t, registry, withEventIDs(append(history, completion)...), replay.Mismatch{
					Kind: replay.WrongEventType, EventID: 6,
					Expected: fmt.Sprintf("operation %d is of %s", source, scheduled.Type()), Found: engine.Describe(completion),
				})
			})
		}
	}
}

func TestCorrupt_Histories(t *testing.T) {
	gap := withEventIDs(started("script", nil), activityScheduled("act", "a"))
	gap[1].EventId = 3
	repeat := withEventIDs(started("script", nil), activityScheduled("act", "a"))
	repeat[1].EventId = 1
	zero := withEventIDs(started("script", nil))
	zero[0].EventId = 0
	cases := map[string]struct {
		history []*journalpb.Event
		at      uint64
		found   string
	}{
		"gap":                 {gap, 3, "event_id 3 after 1"},
		"repeat":              {repeat, 1, "event_id 1 after 1"},
		"zero":                {zero, 0, "event_id 0 after 0"},
		"first not Started":   {withEventIDs(timerCreated(begin)), 1, "TimerCreated as first event"},
		"first unknown":       {withEventIDs(&journalpb.Event{}), 1, "Unknown as first event"},
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

func TestEndedEarly_EventAfterCodeEnded(t *testing.T) {
	registry := script(t, func(*replay.Context) (string, error) { return "x", nil })
	expectMismatch(t, registry, withEventIDs(started("script", nil), completed("x"), timerCreated(begin)), replay.Mismatch{
		Kind: replay.Corrupt, EventID: 3, Found: "TimerCreated after the terminal event",
	})
}

func TestMismatch_ErrorText(t *testing.T) {
	m := &replay.Mismatch{Kind: replay.ScheduledDifferently, Instance: "order-17", Execution: 1, EventID: 4,
		Expected: "A", Found: "B", Source: "shop/checkout.go:12"}
	want := "scheduled differently at event 4 of order-17/1: expected A, found B (shop/checkout.go:12)"
	if m.Error() != want {
		t.Errorf("%q, want %q", m.Error(), want)
	}
}

// The difference is named without values.
func TestMismatch_WithoutPayloads(t *testing.T) {
	const secret = "4111-1111-1111"
	registry := bindScript(t, func(ctx *replay.Context, _ any) (string, error) {
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
		x := engine.NewExecution("order-17", 3, registry, nil)
		var got *replay.Mismatch
		if err := x.Replay(eventSeq(withEventIDs(started("script", nil), test.recorded))); !errors.As(err, &got) {
			t.Fatalf("%s: got %v, want a mismatch", name, err)
		}
		x.Evict()
		redacted := got.WithoutPayloads()
		if !strings.HasPrefix(redacted.Expected, test.expected) || !strings.HasPrefix(redacted.Found, test.found) ||
			redacted.EventID != 2 || redacted.Kind != replay.ScheduledDifferently || redacted.Source != got.Source {
			t.Errorf("%s: %v", name, redacted)
		}
		if strings.Contains(redacted.Error(), secret) || !strings.Contains(got.Error(), secret) {
			t.Errorf("%s: a payload is shown by %v or %v", name, redacted, got)
		}
	}
}

func TestReplay_StalledInstanceContinuesWithMatchingCode(t *testing.T) {
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
		t.Fatalf("got %v, want a mismatch", err)
	}
	if len(in.history) != before {
		t.Fatal("a stalled instance recorded an event")
	}
	in.registry = fits
	mustTurn(t, in, activityCompleted(2, "a"))
	mustTurn(t, in, activityCompleted(4, "b"))
	last := in.history[len(in.history)-1]
	if got := engine.Describe(last); got != `OrchestrationCompleted output="ab"` {
		t.Errorf("last event is %s", got)
	}
	checkReplays(t, in)
}

func mustTurn(t testing.TB, in *instance, events ...*journalpb.Event) *engine.Turn {
	t.Helper()
	turn, err := in.turn(begin, messagesOf(events...))
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

func TestTimer_RecordedTimeWins(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) { return "", ctx.Sleep(time.Second) })
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	history := withEventIDs(started("script", nil), timerCreated(begin.Add(time.Hour)))
	if err := x.Replay(eventSeq(history)); err != nil {
		t.Fatal(err)
	}
}

// Stacks and causes of an error may change with the build; code and message must match.
func TestReplay_MatchesErrorByCodeAndMessage(t *testing.T) {
	registry := script(t, func(*replay.Context) (string, error) { return "", fmt.Errorf("broken: %w", errors.New("new cause")) })
	history := withEventIDs(started("script", nil), &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: &journalpb.Error{
			Message: "broken: new cause", Cause: &journalpb.Error{Message: "old cause"}, Stack: "old stack"}}}})
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(history)); err != nil || !x.Ended() {
		t.Fatalf("ended is %t: %v", x.Ended(), err)
	}
	for _, change := range []func(*journalpb.Error){
		func(e *journalpb.Error) { e.Code = "other" },
		func(e *journalpb.Error) { e.Message = "other" },
	} {
		differs := journalCopy(history[1])
		change(differs.GetOrchestrationFailed().Error)
		y := engine.NewExecution("i", 1, registry, nil)
		if err := y.Replay(eventSeq([]*journalpb.Event{history[0], differs})); !errors.As(err, new(*replay.Mismatch)) {
			t.Errorf("error %v accepted: %v", differs, err)
		}
		y.Evict()
	}
}

// Error types may have got codes since a history was recorded.
func TestReplay_MatchesErrorWithoutCodeByMessage(t *testing.T) {
	registry := registryOf(t, numberChild.Bind(func(*replay.Context, string) (int, error) { return 0, nil }))
	history := withEventIDs(started("child", 7), &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: &journalpb.Error{
			Message: "decode input: json: cannot unmarshal number into Go value of type string"}}}})
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(history)); err != nil || !x.Ended() {
		t.Fatalf("ended is %t: %v", x.Ended(), err)
	}
}

func TestReplay_NotRegisteredError(t *testing.T) {
	start := started("gone", nil)
	start.GetOrchestrationStarted().Version = "2"
	x := engine.NewExecution("i", 1, script(t, waiting), nil)
	defer x.Evict()
	err := x.Replay(eventSeq(withEventIDs(start)))
	var noCode *replay.NotRegisteredError
	if !errors.As(err, &noCode) || noCode.Error() != `no code for orchestration "gone", version "2", on this node` {
		t.Errorf("%v", err)
	}
}

func TestReplay_ReturnsReadError(t *testing.T) {
	broken := errors.New("disk on fire")
	x := engine.NewExecution("i", 1, script(t, waiting), nil)
	defer x.Evict()
	err := x.Replay(func(yield func(*journalpb.Event, error) bool) { yield(nil, broken) })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
