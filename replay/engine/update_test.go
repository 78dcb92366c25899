package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var transfer = replay.Update[int, string]("transfer")

// transferEvent is an accepted update.
func transferEvent(n any, requestID string) *journalpb.Event {
	return external(engine.UpdatePrefix+"transfer", n, requestID)
}

// handleTransfers runs updates with an activity until an event arrives.
func handleTransfers(ctx *replay.Context) (string, error) {
	sum := 0
	err := transfer.Handle(ctx, func(n int) error {
		if n > 100-sum {
			return fmt.Errorf("%d is too much: %d are there", n, sum)
		}
		return nil
	}, func(ctx *replay.Context, n int) (string, error) {
		result, err := act.Call(ctx, fmt.Sprint(n))
		if err != nil {
			return "", err
		}
		sum += n
		return result, nil
	})
	if err != nil {
		return "", err
	}
	_, err = goOn.Wait(ctx)
	return fmt.Sprint(sum), err
}

// handleAfterTick registers its handler after a wait.
func handleAfterTick(ctx *replay.Context) (string, error) {
	if _, err := tick.Wait(ctx); err != nil {
		return "", err
	}
	return handleTransfers(ctx)
}

// handleThenAwait waits for running updates before it returns.
func handleThenAwait(ctx *replay.Context) (string, error) {
	sum, err := handleTransfers(ctx)
	if err != nil {
		return "", err
	}
	return sum, replay.AwaitUpdates(ctx)
}

func updateScenarios() []scenario {
	const (
		subscribed   = `ExternalSubscribed name="go"`
		goes         = `ExternalEvent name="go" data=null`
		one          = `ExternalEvent name="tenuto.update/transfer" data=1`
		two          = `ExternalEvent name="tenuto.update/transfer" data=2`
		oneScheduled = `ActivityScheduled name="act" input="1"`
		twoScheduled = `ActivityScheduled name="act" input="2"`
		oneDone      = `SideEffectRecorded label="tenuto.update/r1" value="A"`
	)
	return []scenario{
		{name: "carried out in a coroutine", body: handleTransfers, turns: [][]*journalpb.Event{
			turnOf(transferEvent(1, "r1")), turnOf(activityCompleted(4, "A")), turnOf(external("go", nil, "")),
		}, want: []string{subscribed, one, oneScheduled, `ActivityCompleted source_event_id=4 result="A" attempts=1`, oneDone, goes,
			`OrchestrationCompleted output="1"`}},
		{name: "two at once, the second done first", body: handleTransfers, turns: [][]*journalpb.Event{
			turnOf(transferEvent(1, "r1"), transferEvent(2, "r2")), turnOf(activityCompleted(6, "B")), turnOf(activityCompleted(4, "A")),
		}, want: []string{subscribed, one, oneScheduled, two, twoScheduled,
			`ActivityCompleted source_event_id=6 result="B" attempts=1`, `SideEffectRecorded label="tenuto.update/r2" value="B"`,
			`ActivityCompleted source_event_id=4 result="A" attempts=1`, oneDone}},
		{name: "once for one request", body: handleTransfers, turns: [][]*journalpb.Event{
			turnOf(transferEvent(1, "r1"), transferEvent(1, "r1")), turnOf(transferEvent(1, "r1")),
		}, want: []string{subscribed, one, oneScheduled}},
		{name: "its failure is its result", body: handleTransfers, turns: [][]*journalpb.Event{
			turnOf(transferEvent(1, "r1")), turnOf(activityFailed(4, errors.New("broken"))), turnOf(external("go", nil, "")),
		}, want: []string{subscribed, one, oneScheduled, `ActivityFailed source_event_id=4 error="broken" attempts=1`,
			`SideEffectRecorded label="tenuto.update/r1" code="tenuto.activity" error="activity \"act\": broken"`, goes,
			`OrchestrationCompleted output="0"`}},
		{name: "an input that does not decode is a failure", body: handleTransfers, turns: [][]*journalpb.Event{turnOf(transferEvent("x", "r1"))},
			want: []string{subscribed, `ExternalEvent name="tenuto.update/transfer" data="x"`,
				`SideEffectRecorded label="tenuto.update/r1" code="tenuto.payload" error="decode input: json: cannot unmarshal string into Go value of type int"`}},
		{name: "waits for its handler", body: handleAfterTick, turns: [][]*journalpb.Event{
			turnOf(transferEvent(1, "r1")), turnOf(transferEvent(2, "r2")), turnOf(external("tick", 1, "")),
		}, want: []string{`ExternalSubscribed name="tick"`, one, two, `ExternalEvent name="tick" data=1`, subscribed, oneScheduled, twoScheduled}},
		{name: "canceled at the end", body: handleTransfers, turns: [][]*journalpb.Event{
			turnOf(transferEvent(1, "r1")), turnOf(external("go", nil, "")), turnOf(activityCompleted(4, "A")),
		}, want: []string{subscribed, one, oneScheduled, goes, "CancelRequested source_event_id=4", `OrchestrationCompleted output="0"`}},
		{name: "waited for before the end", body: handleThenAwait, turns: [][]*journalpb.Event{
			turnOf(transferEvent(1, "r1")), turnOf(external("go", nil, "")), turnOf(activityCompleted(4, "A")),
		}, want: []string{subscribed, one, oneScheduled, goes, `ActivityCompleted source_event_id=4 result="A" attempts=1`, oneDone,
			`OrchestrationCompleted output="0"`}},
		{name: "canceled with the instance", body: handleThenAwait, turns: [][]*journalpb.Event{
			turnOf(transferEvent(1, "r1")), turnOf(cancelRequested("enough", "")),
		}, want: []string{subscribed, one, oneScheduled, `OrchestrationCancelRequested reason="enough"`, "CancelRequested source_event_id=2",
			"CancelRequested source_event_id=4", `OrchestrationCanceled reason="enough"`}},
		{name: "carried out when the instance is resumed", body: handleTransfers, turns: [][]*journalpb.Event{
			turnOf(suspended("s", "")), turnOf(transferEvent(1, "r1")), turnOf(resumed("r", "")),
		}, want: []string{subscribed, `OrchestrationSuspended reason="s"`, one, `OrchestrationResumed reason="r"`, oneScheduled}},
		{name: "its panic fails the instance", body: func(ctx *replay.Context) (string, error) {
			return "", errors.Join(transfer.Handle(ctx, nil, func(*replay.Context, int) (string, error) { panic("boom") }), ctx.Sleep(1))
		}, turns: [][]*journalpb.Event{turnOf(transferEvent(1, "r1"))},
			want: []string{"TimerCreated fire_at=2026-01-01T00:00:00.000000001Z", one, "CancelRequested source_event_id=2",
				`OrchestrationFailed code="tenuto.panic" error="panic: boom"`}},
		{name: "cannot continue as new", body: func(ctx *replay.Context) (string, error) {
			return "", errors.Join(transfer.Handle(ctx, nil, func(ctx *replay.Context, _ int) (string, error) {
				return "", replay.Orchestration[any, string]("script").ContinueAsNew(ctx, nil)
			}), ctx.Sleep(1))
		}, turns: [][]*journalpb.Event{turnOf(transferEvent(1, "r1"))},
			want: []string{"TimerCreated fire_at=2026-01-01T00:00:00.000000001Z", one,
				`SideEffectRecorded label="tenuto.update/r1" error="tenuto: update \"transfer\" asks to continue as new, which is for the body of the orchestration"`}},
		{name: "nothing in the clean-up", body: func(ctx *replay.Context) (string, error) {
			ctx.OnClose(func(ctx *replay.Context, _ error) error {
				return errors.Join(ctx.Sleep(1), replay.AwaitUpdates(ctx))
			})
			return handleTransfers(ctx)
		}, turns: [][]*journalpb.Event{turnOf(transferEvent(1, "r1")), turnOf(external("go", nil, "")), turnOf(transferEvent(2, "r2")), turnOf(timerFired(7, begin))},
			want: []string{subscribed, one, oneScheduled, goes, "CancelRequested source_event_id=4",
				"TimerCreated fire_at=2026-01-01T00:00:00.000000001Z", two, "TimerFired source_event_id=7 fire_at=2026-01-01T00:00:00Z",
				`OrchestrationCompleted output="0"`}},
		{name: "none begins in the clean-up, even if it has waited for its handler", body: func(ctx *replay.Context) (string, error) {
			ctx.OnClose(func(ctx *replay.Context, _ error) error {
				_, err := handleTransfers(ctx)
				return err
			})
			_, err := tick.Wait(ctx)
			return "", err
		}, turns: [][]*journalpb.Event{turnOf(transferEvent(1, "r1")), turnOf(external("tick", 1, "")), turnOf(external("go", nil, ""))},
			want: []string{`ExternalSubscribed name="tick"`, one, `ExternalEvent name="tick" data=1`, subscribed, goes, `OrchestrationCompleted output=""`}},
	}
}

func TestUpdates(t *testing.T) {
	for _, s := range updateScenarios() {
		t.Run(s.name, func(t *testing.T) {
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

// An update that has not started is carried over; a running one is canceled.
func TestUpdate_UnstartedCarriedOver(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if ctx.Execution() == 2 {
			return handleTransfers(ctx)
		}
		_, err := tick.Wait(ctx)
		return "", errors.Join(err, replay.Orchestration[any, string]("script").ContinueAsNew(ctx, nil))
	})
	for name, cold := range map[string]bool{"resident": false, "cold": true} {
		t.Run(name, func(t *testing.T) {
			in := &instance{registry: registry, cold: cold}
			mustTurn(t, in, started("script", nil))
			mustTurn(t, in, transferEvent(1, "r1"))
			mustTurn(t, in, external("tick", 1, ""))
			in = in.next()
			defer in.evict()
			mustTurn(t, in, transferEvent(1, "r1"))
			if got := lastEvent(in); got != `ActivityScheduled name="act" input="1"` || countEvents(in, journalpb.TypeExternalEvent) != 0 {
				t.Errorf("%s\n%v", got, in.history)
			}
			checkReplays(t, in)
		})
	}
}

func TestUpdate_ResultsCountForContinueAsNew(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		err := transfer.Handle(ctx, nil, func(*replay.Context, int) (string, error) { return strings.Repeat("x", 1<<20-2), nil })
		_, waitErr := goOn.Wait(ctx)
		return fmt.Sprint(ctx.ShouldContinueAsNew()), errors.Join(err, waitErr)
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		for i := range 8 {
			mustTurn(t, in, transferEvent(i, fmt.Sprint(i)))
		}
		mustTurn(t, in, external("go", nil, ""))
		wantLast(t, in, `OrchestrationCompleted output="true"`)
	})
}

func TestUpdate_HandledIsNotCountedAsBuffered(t *testing.T) {
	x, _ := startScript(t, script(t, handleAfterTick), transferEvent(1, "a"), transferEvent(2, "b"))
	defer x.Evict()
	if size := x.Size(); size.Buffered != 2 || size.BufferedBytes == 0 {
		t.Errorf("before: %+v", size)
	}
	if _, err := x.Turn(begin, messagesOf(external("tick", 1, ""))); err != nil {
		t.Fatal(err)
	}
	if size := x.Size(); size.Buffered != 0 || size.BufferedBytes != 0 {
		t.Errorf("after: %+v", size)
	}
}

func TestUpdate_ValidatedByQuery(t *testing.T) {
	in := &instance{registry: script(t, handleAfterTick)}
	defer in.evict()
	validate := func(n any) string {
		_, err := in.resident.Query(engine.UpdatePrefix+"transfer", payloadOf(n))
		return fmt.Sprint(err)
	}
	none := `the instance does not answer query "tenuto.update/transfer"`
	mustTurn(t, in, started("script", nil))
	if got := validate(1); got != none {
		t.Errorf("before the handler is registered: %s", got)
	}
	mustTurn(t, in, external("tick", 1, ""))
	length := len(in.history)
	for n, want := range map[any]string{1: "<nil>", 101: "101 is too much: 0 are there", "x": `decode input of update "transfer" as int: sent "x": json: cannot unmarshal string into Go value of type int`} {
		if got := validate(n); got != want {
			t.Errorf("%v: %s; want %s", n, got, want)
		}
	}
	mustTurn(t, in, external("go", nil, ""))
	if got := validate(1); got != none {
		t.Errorf("after the end: %s", got)
	}
	if length+2 != len(in.history) {
		t.Errorf("%d events, then %d", length, len(in.history))
	}
}

func TestUpdate_NamesReserved(t *testing.T) {
	const name = engine.UpdatePrefix + "transfer"
	invalidCalls := map[string]func(ctx *replay.Context) error{
		"event": func(ctx *replay.Context) error {
			_, err := replay.Event[int](name).Wait(ctx)
			return err
		},
		"query": func(ctx *replay.Context) error { return replay.Query[int, int](name).Handle(ctx, nil) },
		"side effect": func(ctx *replay.Context) error {
			_, err := replay.SideEffect(ctx, name, func() (int, error) { return 1, nil })
			return err
		},
		"update": func(ctx *replay.Context) error { return replay.Update[int, int](name).Handle(ctx, nil, nil) },
		"has a nil handler": func(ctx *replay.Context) error {
			return replay.Update[int, int]("u").Handle(ctx, nil, nil)
		},
		"has 0 bytes": func(ctx *replay.Context) error {
			return replay.Update[int, int]("").Handle(ctx, nil, nil)
		},
	}
	for what, invalidCall := range invalidCalls {
		x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) { return "", invalidCall(ctx) }))
		if got := engine.Describe(turn.Events[1]); len(turn.Events) != 2 || !strings.Contains(got, what) || !strings.Contains(got, "OrchestrationFailed") {
			t.Errorf("%s: %s", what, got)
		}
		x.Evict()
	}
}

func TestUpdate_DuringEvictIsNoOp(t *testing.T) {
	before := runtime.NumGoroutine()
	var handled, awaited error
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		defer func() {
			handled = transfer.Handle(ctx, nil, func(*replay.Context, int) (string, error) { return "", nil })
			awaited = replay.AwaitUpdates(ctx)
		}()
		return handleTransfers(ctx)
	}), transferEvent(1, "r1"))
	x.Evict()
	if !errors.Is(handled, replay.ErrEvicting) || !errors.Is(awaited, replay.ErrEvicting) {
		t.Errorf("%v, %v", handled, awaited)
	}
	for runtime.NumGoroutine() > before {
		runtime.Gosched()
	}
}

func TestUpdate_ChangedHandlerStalls(t *testing.T) {
	in := &instance{registry: script(t, handleTransfers)}
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in, transferEvent(1, "r1"))
	mustTurn(t, in, activityCompleted(4, "A"))
	in.evict()
	x := engine.NewExecution("i", 1, script(t, func(ctx *replay.Context) (string, error) {
		err := transfer.Handle(ctx, nil, func(*replay.Context, int) (string, error) { return "", nil })
		_, waitErr := goOn.Wait(ctx)
		return "", errors.Join(err, waitErr)
	}), nil)
	defer x.Evict()
	var m *replay.Mismatch
	if err := x.Replay(eventSeq(in.history)); !errors.As(err, &m) || m.EventID != 4 || m.Kind != replay.ScheduledDifferently {
		t.Errorf("%v", err)
	}
}
