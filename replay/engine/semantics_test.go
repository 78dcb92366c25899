package engine_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// forEachMode runs a test with a resident instance and one that is loaded for every turn, each
// without and with encrypted payloads, and replays the histories.
func forEachMode(t *testing.T, registry *engine.Registry, test func(t *testing.T, in *instance)) {
	encrypted := withEncryption(t, registry)
	for name, in := range map[string]*instance{
		"resident": {registry: registry}, "cold": {registry: registry, cold: true},
		"encrypted": {registry: encrypted}, "encrypted and cold": {registry: encrypted, cold: true},
	} {
		t.Run(name, func(t *testing.T) {
			in.logger = slog.New(slog.DiscardHandler)
			defer in.evict()
			test(t, in)
			checkReplays(t, in)
		})
	}
}

// lastEvent describes the last event of a history.
func lastEvent(in *instance) string { return engine.Describe(in.history[len(in.history)-1]) }

func wantLast(t *testing.T, in *instance, want string) {
	t.Helper()
	if got := lastEvent(in); got != want {
		t.Errorf("the last event is %s, want %s", got, want)
	}
}

// countEvents returns the number of events of a type in a history.
func countEvents(in *instance, eventType int) int {
	n := 0
	for _, event := range in.history {
		if event.TypeNumber() == eventType {
			n++
		}
	}
	return n
}

func programRegistry(t testing.TB) *engine.Registry { return registryOf(t, programs()...) }

func TestActivity_SameInputDistinctResults(t *testing.T) {
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("twice", "x"))
		mustTurn(t, in, activityCompleted(2, "R1"))
		mustTurn(t, in, timerFired(4, begin))
		mustTurn(t, in, activityCompleted(6, "R2"))
		wantLast(t, in, `OrchestrationCompleted output="R1,R2"`)
	})
}

func TestActivity_ParallelCompletedOutOfOrder(t *testing.T) {
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("parallel", ""))
		mustTurn(t, in, activityCompleted(3, "b"))
		mustTurn(t, in, activityCompleted(2, "a"))
		wantLast(t, in, `OrchestrationCompleted output="ab"`)
	})
}

func TestWaitFor_TimeoutLeavesEventToNextWait(t *testing.T) {
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("second-wait", ""))
		mustTurn(t, in, timerFired(3, begin), external("answer", "x", ""))
		wantLast(t, in, `OrchestrationCompleted output="late: x"`)
	})
}

func TestEvents_BufferedDrainedInOneTurn(t *testing.T) {
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("drain", ""))
		for n := 1; n <= 150; n++ {
			mustTurn(t, in, external("tick", n, ""))
		}
		turn := mustTurn(t, in, external("go", nil, ""))
		wantLast(t, in, `OrchestrationCompleted output="150 in order"`)
		if len(turn.Events) != 152 {
			t.Errorf("%d events in the last turn", len(turn.Events))
		}
	})
}

// gatherNames are the events that gather waits for.
var gatherNames = []string{"tick", "tock", "tick"}

// gather waits for one event an execution, and continues as new until it has them all.
func gather(ctx *replay.Context, all []string) ([]string, error) {
	if len(all) == 0 {
		if _, err := goOn.Wait(ctx); err != nil {
			return nil, err
		}
		return nil, replay.Orchestration[[]string, []string]("gather").ContinueAsNew(ctx, []string{"begin"})
	}
	for n := range 25 {
		text, err := replay.Event[string](gatherNames[n%len(gatherNames)]).Wait(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, nil
}

func TestEvents_CarriedOverInOrder(t *testing.T) {
	registry := registryOf(t, replay.Orchestration[[]string, []string]("gather").Bind(gather))
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("gather", nil))
		var want []string
		for n := range 25 {
			want = append(want, fmt.Sprint(n))
			mustTurn(t, in, external(gatherNames[n%len(gatherNames)], want[n], fmt.Sprint("r", n)))
		}
		mustTurn(t, in, external("go", nil, ""))
		checkReplays(t, in)
		var carried []string
		for _, event := range in.successor.GetOrchestrationStarted().GetInbox() {
			carried = append(carried, strings.Trim(string(event.Data.Data), `"`))
		}
		if diff := cmp.Diff(want, carried); diff != "" {
			t.Errorf("carried (-want +got):\n%s", diff)
		}
		next := in.next()
		turn := mustTurn(t, next, external("tick", "again", "r7"))
		if turn.Dispositions[0] != engine.Dropped {
			t.Error("a carried-over event was consumed twice")
		}
		output := next.history[len(next.history)-1].GetOrchestrationCompleted().GetOutput().GetData()
		if string(output) != `["begin","`+strings.Join(want, `","`)+`"]` {
			t.Errorf("consumed: %s", output)
		}
		next.evict()
		checkReplays(t, next)
	})
}

func TestChild_AwaitedAcrossContinueAsNew(t *testing.T) {
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("countdown", 20))
		first := in
		for left := 20; left >= 0; left-- {
			id := fmt.Sprintf("i::%d.2", in.execution())
			if got := in.history[1].GetSubOrchestrationScheduled().GetInstance(); got != id {
				t.Errorf("the child is %q, want %q", got, id)
			}
			mustTurn(t, in, childCompleted(2, "x"))
			if left > 0 {
				checkReplays(t, in)
				in = in.next()
				mustTurn(t, in)
			}
		}
		wantLast(t, in, `OrchestrationCompleted output="lift-off"`)
		if in.execution() != 21 || len(first.history) != 4 {
			t.Errorf("execution %d ended it, the first has %d events", in.execution(), len(first.history))
		}
		in.evict()
		checkReplays(t, in)
	})
}

// Operations scheduled in the last step of an execution are canceled in that step; a chained start
// is not an operation.
func TestChild_StartedInContinueAsNewStep(t *testing.T) {
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("restless", ""))
		mustTurn(t, in, external("go", nil, ""))
		if n := countEvents(in, journalpb.TypeSubOrchestrationScheduled); n != 1 {
			t.Errorf("%d children", n)
		}
		if n := countEvents(in, journalpb.TypeOrchestrationChained); n != 1 {
			t.Errorf("%d chained", n)
		}
		if n := countEvents(in, journalpb.TypeCancelRequested); n != 4 {
			t.Errorf("%d operations canceled", n)
		}
		if !in.ended || in.successor == nil {
			t.Error("the execution does not continue as new")
		}
	})
}

func TestTurn_DropsDuplicateCompletion(t *testing.T) {
	wantDropped(t, engine.Message{Event: activityCompleted(2, "again")})
}

func TestTurn_DropsFailureAfterSuccess(t *testing.T) {
	wantDropped(t, engine.Message{Event: activityFailed(2, errors.New("late"))})
}

func TestTurn_DropsCompletionOfEarlierExecution(t *testing.T) {
	wantDropped(t, engine.Message{Execution: 1, Event: activityCompleted(4, "x")})
}

func TestTurn_DropsCompletionOfLaterExecution(t *testing.T) {
	wantDropped(t, engine.Message{Execution: 3, Event: activityCompleted(4, "x")})
}

func TestTurn_DropsSecondStart(t *testing.T) {
	wantDropped(t, engine.Message{Event: withVersion(started("script", nil), "2")})
}

// wantDropped delivers a message to execution 2 of an instance whose activity 2 is completed and
// whose activity 4 is open.
func wantDropped(t *testing.T, message engine.Message) {
	t.Helper()
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := act.Call(ctx, "a"); err != nil {
			return "", err
		}
		return act.Call(ctx, "b")
	})
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		in.number = 2
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, activityCompleted(2, "a"))
		turn, err := in.turn(begin, []engine.Message{message})
		if err != nil || len(turn.Events) != 0 || turn.Dispositions[0] != engine.Dropped {
			t.Fatalf("%v, %v", turn, err)
		}
		mustTurn(t, in, activityCompleted(4, "b"))
		wantLast(t, in, `OrchestrationCompleted output="b"`)
	})
}

func TestTurn_NothingAfterTerminalEvent(t *testing.T) {
	for _, mode := range []string{"", "error", "panic", "exit", "cancel", "terminate", "again"} {
		t.Run(mode, func(t *testing.T) {
			forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
				mustTurn(t, in, started("closes", mode))
				last := external("go", nil, "")
				switch mode {
				case "cancel":
					last = cancelRequested("", "")
				case "terminate":
					last = terminated("")
				}
				mustTurn(t, in, last, external("tick", 1, ""), last)
				length := len(in.history)
				for _, late := range []*journalpb.Event{last, external("tick", 1, ""), cancelRequested("", ""), terminated(""),
					suspended("", ""), resumed("", ""), timerFired(3, begin), started("closes", "")} {
					mustTurn(t, in, late)
				}
				if !in.ended || len(in.history) != length || !journalpb.IsTerminal(in.history[length-1].TypeNumber()) {
					t.Errorf("%d events after %d: %s", len(in.history), length, engine.Describe(in.history[len(in.history)-1]))
				}
			})
		})
	}
}

func TestEvict_DeferredDurableCallIsNoOp(t *testing.T) {
	var errs []error
	registry := script(t, func(ctx *replay.Context) (string, error) {
		defer func() {
			_, err := act.Call(ctx, "deferred")
			errs = append(errs, err)
		}()
		return act.Call(ctx, "work")
	})
	in := &instance{registry: registry, cold: true}
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in)
	for _, err := range errs {
		if !errors.Is(err, replay.ErrEvicting) {
			t.Errorf("%v", err)
		}
	}
	if len(errs) != 2 || len(in.history) != 2 {
		t.Errorf("%d calls, %d events", len(errs), len(in.history))
	}
	mustTurn(t, in, activityCompleted(2, "x"))
	if n := countEvents(in, journalpb.TypeActivityScheduled); n != 2 {
		t.Errorf("%d activities: the deferred call must count at the end of the instance", n)
	}
}

// A crash between a turn and its commit loses the turn. The next owner gets the same messages and
// reaches the same result.
func TestSaga_CompensatesOnceInReverseOrder(t *testing.T) {
	in := &instance{registry: programRegistry(t), cold: true}
	turnTwice := func(messages ...*journalpb.Event) {
		t.Helper()
		lost := &instance{registry: in.registry, cold: true, history: in.history[:len(in.history):len(in.history)]}
		mustTurn(t, lost, messages...)
		mustTurn(t, in, messages...)
		if got, want := lastEvent(lost), lastEvent(in); got != want {
			t.Errorf("first %s, then %s", got, want)
		}
	}
	mustTurn(t, in, started("journey", ""))
	turnTwice(activityCompleted(2, ""))
	turnTwice(activityCompleted(4, ""))
	turnTwice(cancelRequested("by hand", "r"))
	turnTwice(activityCompleted(9, ""), activityCompleted(9, ""))
	turnTwice(activityCompleted(11, ""))
	var calls []string
	for _, event := range in.history {
		if scheduled := event.GetActivityScheduled(); scheduled != nil {
			calls = append(calls, string(scheduled.Input.Data))
		}
	}
	want := []string{`"book flight"`, `"book hotel"`, `"book car"`, `"give back hotel"`, `"give back flight"`}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	wantLast(t, in, `OrchestrationCanceled reason="by hand"`)
	checkReplays(t, in)
}

// errors.Is finds timeouts and cancellations, live and after a reload.
func TestTimeoutAndCancel_KnownAfterReplay(t *testing.T) {
	var seen []string
	registry := script(t, func(ctx *replay.Context) (string, error) {
		_, err := answer.WaitFor(ctx, time.Second)
		timeout := errors.Is(err, replay.ErrTimeout)
		work := act.Start(ctx, "x")
		work.Cancel(ctx)
		_, err = work.Await(ctx)
		_, failed := child.Call(ctx, "x")
		_, cancelErr := goOn.Wait(ctx)
		seen = append(seen, fmt.Sprint(timeout, errors.Is(err, replay.ErrCanceled), errors.Is(failed, replay.ErrTerminated),
			errors.Is(cancelErr, replay.ErrCanceled), errors.Is(cancelErr, replay.ErrTimeout)))
		return "", cancelErr
	})
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, timerFired(3, begin))
		mustTurn(t, in, childFailed(6, replay.ErrTerminated))
		mustTurn(t, in, cancelRequested("by hand", ""))
		wantLast(t, in, `OrchestrationCanceled reason="by hand"`)
	})
	for _, got := range seen {
		if got != "true true true true false" {
			t.Error(got)
		}
	}
}

// A child keeps its parent across continue-as-new, and the parent gets one result: that of the
// child's last execution.
func TestChild_ContinuesAsNewThenCompletes(t *testing.T) {
	parent := script(t, func(ctx *replay.Context) (string, error) { return child.Call(ctx, "2") })
	registry := registryOf(t, child.Bind(func(ctx *replay.Context, left string) (string, error) {
		if _, err := goOn.Wait(ctx); err != nil || left == "0" {
			return "lift-off", err
		}
		return "", child.ContinueAsNew(ctx, fmt.Sprint(left[0]-'1'))
	}))
	forEachMode(t, parent, func(t *testing.T, p *instance) {
		mustTurn(t, p, started("script", nil))
		requested := p.history[1].GetSubOrchestrationScheduled()
		start := started(requested.Name, nil)
		start.GetOrchestrationStarted().Input = requested.Input
		start.GetOrchestrationStarted().Parent = &journalpb.OperationRef{Instance: "i", Execution: 1, EventId: 2}
		c := &instance{registry: registry.WithPayloadConverter(p.registry.PayloadConverter()), cold: p.cold}
		mustTurn(t, c, start)
		for range 2 {
			mustTurn(t, c, external("go", nil, ""))
			checkReplays(t, c)
			c = c.next()
			mustTurn(t, c)
			if diff := cmp.Diff(start.GetOrchestrationStarted().Parent, c.history[0].GetOrchestrationStarted().GetParent(), protocmp.Transform()); diff != "" {
				t.Errorf("the parent of execution %d (-want +got):\n%s", c.execution(), diff)
			}
		}
		mustTurn(t, c, external("go", nil, ""))
		checkReplays(t, c)
		c.evict()
		result := &journalpb.Event{SourceEventId: 2, Body: &journalpb.Event_SubOrchestrationCompleted{
			SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: c.history[len(c.history)-1].GetOrchestrationCompleted().GetOutput()},
		}}
		mustTurn(t, p, result, result)
		wantLast(t, p, `OrchestrationCompleted output="lift-off"`)
	})
}

// errors.Is and errors.As find registered sentinels and types in errors of activities, children and
// side effects, live and after a reload.
func TestRegisteredErrors_KnownAfterReplay(t *testing.T) {
	failure := func() error { return errors.Join(fmt.Errorf("query: %w", errForeign), &limitError{7, "apples"}) }
	var seen []string
	inspect := func(err error) {
		var limit *limitError
		found := errors.As(err, &limit)
		seen = append(seen, fmt.Sprint(errors.Is(err, errForeign), found && *limit == limitError{7, "apples"}, errors.Is(err, errOutOfStock)))
	}
	registry := script(t, func(ctx *replay.Context) (string, error) {
		_, err := act.Call(ctx, "x")
		inspect(err)
		_, err = child.Call(ctx, "x")
		inspect(err)
		_, err = replay.SideEffect(ctx, "fails", func() (string, error) { return "", failure() })
		inspect(err)
		_, waitErr := goOn.Wait(ctx)
		return "", errors.Join(err, waitErr)
	})
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, activityFailed(2, failure()))
		mustTurn(t, in, childFailed(4, failure()))
		mustTurn(t, in, external("go", nil, ""))
		inspect(engine.DecodeError(in.history[len(in.history)-1].GetOrchestrationFailed().GetError()))
	})
	for _, got := range seen {
		if got != "true true false" {
			t.Error(got)
		}
	}
	if len(seen) < 4*4 {
		t.Errorf("only %d queries", len(seen))
	}
}
