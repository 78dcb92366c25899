package engine_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A scenario is a body, the messages of each turn, and the expected events after the start.
type scenario struct {
	name  string
	body  func(*replay.Context) (string, error)
	turns [][]*journalpb.Event
	want  []string
}

func turnOf(events ...*journalpb.Event) []*journalpb.Event { return events }

// TestConformance runs small scenarios live, loaded for every turn, and replayed. CONFORMANCE.md
// lists the behaviors that they cover.
func TestConformance(t *testing.T) {
	groups := map[string][]scenario{
		"first turn": firstTurnScenarios(), "sequence": sequenceScenarios(), "message": messageScenarios(), "error": failureScenarios(), "value": valueScenarios(),
		"inbox": inboxScenarios(), "composition": compositionScenarios(), "version": versionScenarios(),
	}
	for group, scenarios := range groups {
		for _, s := range scenarios {
			t.Run(group+"/"+s.name, func(t *testing.T) {
				forEachMode(t, script(t, s.body), func(t *testing.T, in *instance) {
					mustTurn(t, in, started("script", nil))
					for _, messages := range s.turns {
						mustTurn(t, in, messages...)
					}
					var got []string
					for _, event := range in.history[1:] {
						got = append(got, engine.Describe(event))
					}
					if diff := cmp.Diff(s.want, got); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

func firstTurnScenarios() []scenario {
	waitFor := func(open func(*replay.Context)) func(*replay.Context) (string, error) {
		return func(ctx *replay.Context) (string, error) {
			open(ctx)
			_, err := goOn.Wait(ctx)
			return "", err
		}
	}
	return []scenario{
		{name: "returns at once", body: func(*replay.Context) (string, error) { return "x", nil },
			want: []string{`OrchestrationCompleted output="x"`}},
		{name: "fails at once", body: func(*replay.Context) (string, error) { return "", errors.New("broken") },
			want: []string{`OrchestrationFailed error="broken"`}},
		{name: "panics with a formatted value", body: func(*replay.Context) (string, error) { panic(fmt.Errorf("boom %d", 7)) },
			want: []string{`OrchestrationFailed code="tenuto.panic" error="panic: boom 7"`}},
		{name: "one of each kind", body: waitFor(func(ctx *replay.Context) {
			act.Start(ctx, "a")
			ctx.Timer(time.Second)
			child.Start(ctx, "c")
		}), want: []string{`ActivityScheduled name="act" input="a"`, "TimerCreated fire_at=2026-01-01T00:00:01Z",
			`SubOrchestrationScheduled name="child" instance="i::1.4" input="c"`, `ExternalSubscribed name="go"`}},
		{name: "two children have IDs of their own", body: waitFor(func(ctx *replay.Context) {
			child.Start(ctx, "c")
			child.Start(ctx, "c")
		}), want: []string{`SubOrchestrationScheduled name="child" instance="i::1.2" input="c"`,
			`SubOrchestrationScheduled name="child" instance="i::1.3" input="c"`, `ExternalSubscribed name="go"`}},
		{name: "a timer of no length is a timer", body: waitFor(func(ctx *replay.Context) { ctx.Timer(0) }),
			want: []string{"TimerCreated fire_at=2026-01-01T00:00:00Z", `ExternalSubscribed name="go"`}},
		{name: "three that nobody awaits leave no trace", body: func(ctx *replay.Context) (string, error) {
			for range 3 {
				act.Start(ctx, "a")
			}
			return "", nil
		}, want: []string{`OrchestrationCompleted output=""`}},
		{name: "options are recorded", body: func(ctx *replay.Context) (string, error) {
			return act.Call(ctx, "a", replay.Retry(replay.RetryPolicy{MaxAttempts: 2, Backoff: 1.5, NonRetryableCodes: []string{"c"}}))
		}, want: []string{`ActivityScheduled name="act" input="a" retry={initial=0s backoff=1.5 longest=0s attempts=2 never=["c"]}`}},
		{name: "a detached start, then an activity", body: func(ctx *replay.Context) (string, error) {
			if err := child.Chain(ctx, "c"); err != nil {
				return "", err
			}
			return act.Call(ctx, "a")
		}, turns: [][]*journalpb.Event{turnOf(activityCompleted(3, "A"))},
			want: []string{`OrchestrationChained name="child" instance="i::1.2" input="c"`, `ActivityScheduled name="act" input="a"`,
				`ActivityCompleted source_event_id=3 result="A" attempts=1`, `OrchestrationCompleted output="A"`}},
	}
}

func sequenceScenarios() []scenario {
	ten := scenario{name: "ten activities", body: func(ctx *replay.Context) (string, error) {
		all := ""
		for n := range 10 {
			result, err := act.Call(ctx, fmt.Sprint(n))
			if err != nil {
				return "", err
			}
			all += result
		}
		return all, nil
	}}
	for n := range 10 {
		source := uint64(2 + 2*n)
		ten.turns = append(ten.turns, turnOf(activityCompleted(source, fmt.Sprint(n))))
		ten.want = append(ten.want, fmt.Sprintf("ActivityScheduled name=%q input=%q", "act", fmt.Sprint(n)),
			fmt.Sprintf("ActivityCompleted source_event_id=%d result=%q attempts=1", source, fmt.Sprint(n)))
	}
	ten.want = append(ten.want, `OrchestrationCompleted output="0123456789"`)
	return []scenario{ten,
		{name: "an activity, then a timer", body: func(ctx *replay.Context) (string, error) {
			a, err := act.Call(ctx, "a")
			return a, errors.Join(err, ctx.Sleep(time.Second))
		}, turns: [][]*journalpb.Event{turnOf(activityCompleted(2, "A"))},
			want: []string{`ActivityScheduled name="act" input="a"`, `ActivityCompleted source_event_id=2 result="A" attempts=1`,
				"TimerCreated fire_at=2026-01-01T00:00:01Z"}},
		{name: "a timer, then an activity", body: func(ctx *replay.Context) (string, error) {
			if err := ctx.Sleep(time.Second); err != nil {
				return "", err
			}
			return act.Call(ctx, "a")
		}, turns: [][]*journalpb.Event{turnOf(timerFired(2, begin))},
			want: []string{"TimerCreated fire_at=2026-01-01T00:00:01Z", "TimerFired source_event_id=2 fire_at=2026-01-01T00:00:00Z",
				`ActivityScheduled name="act" input="a"`}},
		{name: "a side effect between two activities", body: func(ctx *replay.Context) (string, error) {
			a, err := act.Call(ctx, "a")
			if err != nil {
				return "", err
			}
			n, err := replay.SideEffect(ctx, "n", func() (int, error) { return 7, nil })
			if err != nil {
				return "", err
			}
			return act.Call(ctx, fmt.Sprint(a, n))
		}, turns: [][]*journalpb.Event{turnOf(activityCompleted(2, "A"))},
			want: []string{`ActivityScheduled name="act" input="a"`, `ActivityCompleted source_event_id=2 result="A" attempts=1`,
				`SideEffectRecorded label="n" value=7`, `ActivityScheduled name="act" input="A7"`}},
	}
}

// openOneOfEach leaves an activity, a timer and a child open and waits for two events.
func openOneOfEach(ctx *replay.Context) (string, error) {
	act.Start(ctx, "a")
	ctx.Timer(time.Second)
	child.Start(ctx, "c")
	for range 2 {
		if _, err := goOn.Wait(ctx); err != nil {
			return "", err
		}
	}
	return "", nil
}

// openEvents returns the events that openOneOfEach schedules, and more.
func openEvents(more ...string) []string {
	return append([]string{`ActivityScheduled name="act" input="a"`, "TimerCreated fire_at=2026-01-01T00:00:01Z",
		`SubOrchestrationScheduled name="child" instance="i::1.4" input="c"`, `ExternalSubscribed name="go"`}, more...)
}

func messageScenarios() []scenario {
	done := `ActivityCompleted source_event_id=2 result="A" attempts=1`
	return []scenario{
		{name: "one completion of each kind", body: openOneOfEach,
			turns: [][]*journalpb.Event{turnOf(activityCompleted(2, "A"), timerFired(3, begin), childCompleted(4, "C"))},
			want:  openEvents(done, "TimerFired source_event_id=3 fire_at=2026-01-01T00:00:00Z", `SubOrchestrationCompleted source_event_id=4 result="C"`)},
		{name: "of two in a batch the first counts", body: openOneOfEach,
			turns: [][]*journalpb.Event{turnOf(activityCompleted(2, "A"), activityFailed(2, errors.New("late")), activityCompleted(2, "B"))},
			want:  openEvents(done)},
		{name: "recorded before", body: openOneOfEach,
			turns: [][]*journalpb.Event{turnOf(activityCompleted(2, "A")), turnOf(activityCompleted(2, "A")), turnOf(activityFailed(2, nil))},
			want:  openEvents(done)},
		{name: "of another kind", body: openOneOfEach,
			turns: [][]*journalpb.Event{turnOf(timerFired(2, begin), childCompleted(2, 1), activityCompleted(3, 1), childFailed(3, nil),
				timerFired(4, begin), activityFailed(4, nil), activityCompleted(5, 1))},
			want: openEvents()},
		{name: "of nothing", body: openOneOfEach,
			turns: [][]*journalpb.Event{turnOf(activityCompleted(0, 1), timerFired(1, begin), childFailed(6, nil), activityCompleted(999, 1))},
			want:  openEvents()},
		{name: "equal events are two events", body: openOneOfEach,
			turns: [][]*journalpb.Event{turnOf(external("tick", 1, ""), external("tick", 1, "")), turnOf(external("tick", 1, ""))},
			want:  openEvents(`ExternalEvent name="tick" data=1`, `ExternalEvent name="tick" data=1`, `ExternalEvent name="tick" data=1`)},
		{name: "an event without a subscription", body: openOneOfEach, turns: [][]*journalpb.Event{turnOf(external("nobody", "x", ""))},
			want: openEvents(`ExternalEvent name="nobody" data="x"`)},
		{name: "a second cancellation", body: func(ctx *replay.Context) (string, error) {
			_, err := goOn.Wait(ctx)
			_, undone := act.Call(replay.WithoutCancel(ctx), "undo")
			return "", errors.Join(err, undone)
		}, turns: [][]*journalpb.Event{turnOf(cancelRequested("first", ""), cancelRequested("second", "")), turnOf(cancelRequested("third", ""))},
			want: []string{`ExternalSubscribed name="go"`, `OrchestrationCancelRequested reason="first"`, "CancelRequested source_event_id=2",
				`ActivityScheduled name="act" input="undo"`}},
	}
}

func failureScenarios() []scenario {
	calls := func(ctx *replay.Context) (string, error) {
		_, err := act.Call(ctx, "a")
		if err != nil {
			return "recovered from " + err.Error(), nil
		}
		_, err = child.Call(ctx, "c")
		return "", err
	}
	return []scenario{
		{name: "of an activity is seen by the code", body: calls,
			turns: [][]*journalpb.Event{turnOf(activityFailed(2, errors.New("broken")))},
			want: []string{`ActivityScheduled name="act" input="a"`, `ActivityFailed source_event_id=2 error="broken" attempts=1`,
				`OrchestrationCompleted output="recovered from activity \"act\": broken"`}},
		{name: "of a child keeps its kind", body: func(ctx *replay.Context) (string, error) {
			_, err := child.Call(ctx, "c")
			return fmt.Sprint(errors.Is(err, replay.ErrTerminated), errors.Is(err, replay.ErrCanceled)), nil
		}, turns: [][]*journalpb.Event{turnOf(childFailed(2, replay.ErrTerminated))},
			want: []string{`SubOrchestrationScheduled name="child" instance="i::1.2" input="c"`,
				`SubOrchestrationFailed source_event_id=2 code="tenuto.terminated" error="terminated"`, `OrchestrationCompleted output="true false"`}},
		{name: "panic after a result", body: func(ctx *replay.Context) (string, error) {
			a, _ := act.Call(ctx, "a")
			panic("boom " + a)
		}, turns: [][]*journalpb.Event{turnOf(activityCompleted(2, "A"))},
			want: []string{`ActivityScheduled name="act" input="a"`, `ActivityCompleted source_event_id=2 result="A" attempts=1`,
				`OrchestrationFailed code="tenuto.panic" error="panic: boom A"`}},
		{name: "with an open activity", body: func(ctx *replay.Context) (string, error) {
			act.Start(ctx, "a")
			_, err := tick.Wait(ctx)
			return "", errors.Join(err, errors.New("broken"))
		}, turns: [][]*journalpb.Event{turnOf(external("tick", 1, ""), activityCompleted(2, "late"))},
			want: []string{`ActivityScheduled name="act" input="a"`, `ExternalSubscribed name="tick"`, `ExternalEvent name="tick" data=1`,
				"CancelRequested source_event_id=2", `OrchestrationFailed error="broken"`}},
	}
}

// valueScenarios pass values through calls unchanged.
func valueScenarios() []scenario {
	texts := map[string]string{
		"empty": "", "in other scripts": "Grüße, 世界 🎵", "with control characters": "a\nb\tc\r\nd\x00e",
		"of 10 KB": strings.Repeat("x", 10_000), "of nearly 1 MiB": strings.Repeat("y", 1_000_000),
	}
	var all []scenario
	for name, text := range texts {
		body := func(ctx *replay.Context) (string, error) {
			result, err := act.Call(ctx, text)
			if err != nil || result != text {
				return "", errors.New("the result is another")
			}
			data, err := answer.Wait(ctx)
			if err != nil || data != text {
				return "", errors.New("the data is another")
			}
			return text, nil
		}
		history := []*journalpb.Event{activityScheduled("act", text), activityCompleted(2, text), subscribed("answer"), external("answer", text, ""), completed(text)}
		s := scenario{name: name, body: body, turns: [][]*journalpb.Event{turnOf(activityCompleted(2, text), external("answer", text, ""))}}
		for _, event := range history {
			s.want = append(s.want, engine.Describe(event))
		}
		all = append(all, s)
	}
	name := strings.Repeat("名", 42)
	return append(all, scenario{name: "a name in another script", body: func(ctx *replay.Context) (string, error) {
		return replay.Activity[string, string](name).Call(ctx, "")
	}, turns: [][]*journalpb.Event{turnOf(activityCompleted(2, name))},
		want: []string{engine.Describe(activityScheduled(name, "")), engine.Describe(activityCompleted(2, name)), engine.Describe(completed(name))}})
}

// inboxScenarios leave events unconsumed when the body ends.
func inboxScenarios() []scenario {
	self := replay.Orchestration[any, string]("script")
	again := func(wait func(*replay.Context)) func(*replay.Context) (string, error) {
		return func(ctx *replay.Context) (string, error) {
			wait(ctx)
			_, err := goOn.Wait(ctx)
			return "", errors.Join(err, self.ContinueAsNew(ctx, nil))
		}
	}
	events := turnOf(external("tick", 1, ""), external("tock", 2, ""), external("tick", 3, ""), external("go", nil, ""))
	sent := []string{`ExternalEvent name="tick" data=1`, `ExternalEvent name="tock" data=2`, `ExternalEvent name="tick" data=3`, `ExternalEvent name="go" data=null`}
	ends := func(subscribed []string, carried string, canceled ...string) []string {
		want := append([]string{}, subscribed...)
		want = append(append(want, `ExternalSubscribed name="go"`), sent...)
		return append(append(want, canceled...), "OrchestrationContinuedAsNew input=null"+carried)
	}
	return []scenario{
		{name: "nothing waits", body: again(func(*replay.Context) {}), turns: [][]*journalpb.Event{events}, want: ends(nil, " inbox=3")},
		{name: "one of a name waits", body: again(func(ctx *replay.Context) { tick.Subscribe(ctx) }), turns: [][]*journalpb.Event{events},
			want: ends([]string{`ExternalSubscribed name="tick"`}, " inbox=2")},
		{name: "more wait than come", body: again(func(ctx *replay.Context) {
			for range 3 {
				tick.Subscribe(ctx)
			}
			replay.Event[int]("tock").Subscribe(ctx)
		}), turns: [][]*journalpb.Event{events}, want: ends([]string{`ExternalSubscribed name="tick"`, `ExternalSubscribed name="tick"`,
			`ExternalSubscribed name="tick"`, `ExternalSubscribed name="tock"`}, "", "CancelRequested source_event_id=4")},
		{name: "another name waits", body: again(func(ctx *replay.Context) { answer.Subscribe(ctx) }), turns: [][]*journalpb.Event{events},
			want: ends([]string{`ExternalSubscribed name="answer"`}, " inbox=3", "CancelRequested source_event_id=2")},
		{name: "who waited was withdrawn", body: func(ctx *replay.Context) (string, error) {
			gone := tick.Subscribe(ctx)
			if _, err := answer.Wait(ctx); err != nil {
				return "", err
			}
			gone.Cancel(ctx)
			return "", errors.Join(ctx.Sleep(0), self.ContinueAsNew(ctx, nil))
		}, turns: [][]*journalpb.Event{turnOf(external("answer", "", "")), turnOf(external("tick", 1, ""), timerFired(6, begin))},
			want: []string{`ExternalSubscribed name="tick"`, `ExternalSubscribed name="answer"`, `ExternalEvent name="answer" data=""`,
				"CancelRequested source_event_id=2", "TimerCreated fire_at=2026-01-01T00:00:00Z", `ExternalEvent name="tick" data=1`,
				"TimerFired source_event_id=6 fire_at=2026-01-01T00:00:00Z", "OrchestrationContinuedAsNew input=null inbox=1"}},
	}
}

func compositionScenarios() []scenario {
	return []scenario{
		{name: "an activity, an event and a timer together", body: func(ctx *replay.Context) (string, error) {
			work, word, limit := act.Start(ctx, "a"), answer.Subscribe(ctx), ctx.Timer(time.Second)
			a, first := work.Await(ctx)
			b, second := word.Await(ctx)
			_, third := limit.Await(ctx)
			return a + b, errors.Join(first, second, third)
		}, turns: [][]*journalpb.Event{turnOf(timerFired(4, begin), external("answer", "B", "")), turnOf(activityCompleted(2, "A"))},
			want: []string{`ActivityScheduled name="act" input="a"`, `ExternalSubscribed name="answer"`, "TimerCreated fire_at=2026-01-01T00:00:01Z",
				"TimerFired source_event_id=4 fire_at=2026-01-01T00:00:00Z", `ExternalEvent name="answer" data="B"`,
				`ActivityCompleted source_event_id=2 result="A" attempts=1`, `OrchestrationCompleted output="AB"`}},
		{name: "a coroutine with a child loses", body: func(ctx *replay.Context) (string, error) {
			inner, cancel := replay.WithCancel(ctx)
			slow := replay.Go(inner, func(ctx *replay.Context) (string, error) { return child.Call(ctx, "slow") })
			winner, err := replay.Race(ctx, slow, act.Start(ctx, "fast"))
			cancel()
			return fmt.Sprint(winner), errors.Join(err, ctx.Sleep(0))
		}, turns: [][]*journalpb.Event{turnOf(activityCompleted(2, "")), turnOf(childCompleted(3, "late"))},
			want: []string{`ActivityScheduled name="act" input="fast"`, `SubOrchestrationScheduled name="child" instance="i::1.3" input="slow"`,
				`ActivityCompleted source_event_id=2 result="" attempts=1`, "CancelRequested source_event_id=3", "TimerCreated fire_at=2026-01-01T00:00:00Z"}},
		{name: "results of two types", body: func(ctx *replay.Context) (string, error) {
			n, s := replay.Activity[int, int]("double").Start(ctx, 2), act.Start(ctx, "s")
			winner, err := replay.Next(ctx, n, s)
			if err != nil {
				return "", err
			}
			a, first := n.Await(ctx)
			b, second := s.Await(ctx)
			return fmt.Sprint(winner, a, b), errors.Join(first, second)
		}, turns: [][]*journalpb.Event{turnOf(activityCompleted(3, "S"), activityCompleted(2, 4))},
			want: []string{`ActivityScheduled name="double" input=2`, `ActivityScheduled name="act" input="s"`,
				`ActivityCompleted source_event_id=3 result="S" attempts=1`, "ActivityCompleted source_event_id=2 result=4 attempts=1",
				`OrchestrationCompleted output="1 4S"`}},
		{name: "time does not go back", body: func(ctx *replay.Context) (string, error) {
			before := ctx.Now()
			err := ctx.Sleep(time.Second)
			return fmt.Sprint(!ctx.Now().Before(before)), err
		}, turns: [][]*journalpb.Event{turnOf(timerFired(2, begin))},
			want: []string{"TimerCreated fire_at=2026-01-01T00:00:01Z", "TimerFired source_event_id=2 fire_at=2026-01-01T00:00:00Z",
				`OrchestrationCompleted output="true"`}},
	}
}

func versionScenarios() []scenario {
	return []scenario{
		{name: "a child gets the one that is asked for", body: func(ctx *replay.Context) (string, error) {
			child.Start(ctx, "c")
			return child.Call(ctx, "c", replay.Version("1"))
		}, want: []string{`SubOrchestrationScheduled name="child" instance="i::1.2" input="c"`,
			`SubOrchestrationScheduled name="child" version="1" instance="i::1.3" input="c"`}},
		{name: "continuing under one that is asked for", body: func(ctx *replay.Context) (string, error) {
			return "", replay.Orchestration[any, string]("script").ContinueAsNew(ctx, 1, replay.Version("2"))
		}, want: []string{`OrchestrationContinuedAsNew version="2" input=1`}},
	}
}

// An empty history is valid and schedules nothing.
func TestReplay_EmptyHistory(t *testing.T) {
	x := engine.NewExecution("i", 1, programRegistry(t), nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(nil)); err != nil || x.LastEventID() != 0 || x.Ended() {
		t.Errorf("%d, %t, %v", x.LastEventID(), x.Ended(), err)
	}
}

// The body of an orchestration is called once for each load.
func TestExecution_CallsBodyOncePerLoad(t *testing.T) {
	entered := 0
	registry := script(t, func(ctx *replay.Context) (string, error) { entered++; return act.Call(ctx, "a") })
	x, _ := startScript(t, registry)
	defer x.Evict()
	if _, err := x.Turn(begin, messagesOf(external("x", 1, ""))); err != nil || entered != 1 {
		t.Errorf("body called %d times, %v", entered, err)
	}
}

// TestConformance_NamedTestsExist checks the names in CONFORMANCE.md.
func TestConformance_NamedTestsExist(t *testing.T) {
	table, err := os.ReadFile("CONFORMANCE.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := ""
	files, _ := filepath.Glob("*_test.go")
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources += string(content)
	}
	names := regexp.MustCompile("`(Test\\w+|Benchmark\\w+)(/[^`]*)?`").FindAllStringSubmatch(string(table), -1)
	if len(names) < 100 {
		t.Errorf("only %d names", len(names))
	}
	for _, name := range names {
		if !strings.Contains(sources, "func "+name[1]+"(") {
			t.Errorf("test %s does not exist", name[1])
		}
		checkSubtest(t, name[1], strings.TrimPrefix(name[2], "/"))
	}
}

// checkSubtest checks the name after a slash: a transcript, or a group of scenarios.
func checkSubtest(t *testing.T, test, sub string) {
	switch {
	case sub == "":
	case test == "TestTranscripts":
		if _, err := os.Stat("testdata/" + sub + ".txt"); err != nil {
			t.Error(err)
		}
	case test == "TestConformance":
		source, _ := os.ReadFile("conformance_test.go")
		if !strings.Contains(string(source), `"`+sub+`":`) {
			t.Errorf("scenario group %q does not exist", sub)
		}
	default:
		t.Errorf("%s/%s: unknown kind of subtest", test, sub)
	}
}
