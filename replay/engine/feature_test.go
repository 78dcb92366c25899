package engine_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func TestSideEffect_CalledOnceAcrossReplays(t *testing.T) {
	calls := 0
	in := &instance{cold: true, registry: script(t, func(ctx *replay.Context) (string, error) {
		n, err := replay.SideEffect(ctx, "n", func() (int, error) { calls++; return calls, nil })
		if err != nil {
			return "", err
		}
		_, failed := replay.SideEffect(ctx, "e", func() (int, error) { calls++; return 0, fmt.Errorf("error %d", calls) })
		_, err = goOn.Wait(ctx)
		return fmt.Sprint(n, failed), err
	})}
	mustTurn(t, in, started("script", nil))
	for range 3 {
		mustTurn(t, in)
	}
	mustTurn(t, in, external("go", nil, ""))
	wantLast(t, in, `OrchestrationCompleted output="1 error 2"`)
	checkReplays(t, in)
	if calls != 2 {
		t.Errorf("%d calls", calls)
	}
}

func TestSideEffect_ReturnsDecodedCopy(t *testing.T) {
	type value struct{ Kept, evicted int }
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		v, err := replay.SideEffect(ctx, "v", func() (value, error) { return value{1, 2}, nil })
		return fmt.Sprint(v), err
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		wantLast(t, in, `OrchestrationCompleted output="{1 0}"`)
	})
}

// A side effect is never called if another coroutine ends the instance first, and its record is
// empty.
func TestSideEffect_InEndedScope(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		inner, cancel := replay.WithCancel(ctx)
		cancel()
		_, err := replay.SideEffect(inner, "x", func() (int, error) { panic("called") })
		lost := replay.Go(ctx, func(ctx *replay.Context) (int, error) {
			return replay.SideEffect(ctx, "y", func() (int, error) { panic("called") })
		})
		replay.Go(ctx, func(ctx *replay.Context) (int, error) { panic("end") })
		_, _ = lost.Await(ctx)
		return "not reached", err
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		wantLast(t, in, `OrchestrationFailed code="tenuto.panic" error="panic: end"`)
		if n := countEvents(in, journalpb.TypeSideEffectRecorded); n != 0 {
			t.Errorf("%d side effects", n)
		}
	})
}

func TestRandom_SeededByExecution(t *testing.T) {
	draw := func(instance string, execution uint64, at time.Time) string {
		x := engine.NewExecution(instance, execution, script(t, func(ctx *replay.Context) (string, error) {
			first, second := ctx.UUID(), ctx.UUID()
			if first == second || !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(first) {
				t.Errorf("%s and %s", first, second)
			}
			return fmt.Sprint(first, ctx.Random().Uint64()), nil
		}), nil)
		defer x.Evict()
		turn, err := x.Turn(at, messagesOf(started("script", nil)))
		if err != nil {
			t.Fatal(err)
		}
		return engine.Describe(turn.Events[1])
	}
	first := draw("i", 1, begin)
	if draw("i", 1, begin) != first {
		t.Error("random numbers of the same execution differ")
	}
	for _, other := range []string{draw("j", 1, begin), draw("i", 2, begin), draw("i", 1, begin.Add(1))} {
		if other == first {
			t.Error("random numbers of another execution are equal")
		}
	}
}

// --- versions ---

func TestVersion_Order(t *testing.T) {
	ascending := []string{"", "0", "1", "1.0", "1.9", "1.10", "1.10.1", "1.a", "1.b", "2", "10", "01a", "1x", "v10", "v2", "v2.1"}
	flow := func(*replay.Context, string) (string, error) { return "", nil }
	for i, low := range ascending {
		for _, high := range ascending[i+1:] {
			for _, order := range [][]string{{low, high}, {high, low}} {
				registry := registryOf(t, child.Bind(flow, replay.Version(order[0])), child.Bind(flow, replay.Version(order[1])))
				if got := registry.Newest("child"); got != high {
					t.Errorf("newest of %q and %q is %q", order[0], order[1], got)
				}
			}
		}
	}
}

func TestNewest_IndependentOfRegistrationOrder(t *testing.T) {
	flow := func(*replay.Context, string) (string, error) { return "", nil }
	versions := []string{"9", "10", "1x", "01", "1", ""}
	for range 50 {
		versions = append(versions[1:], versions[0])
		if len(versions) > 2 {
			slices.Reverse(versions[:3])
		}
		var definitions []replay.Definition
		for _, v := range versions {
			definitions = append(definitions, child.Bind(flow, replay.Version(v)))
		}
		if got := registryOf(t, definitions...).Newest("child"); got != "1x" {
			t.Fatalf("newest of %q is %q", versions, got)
		}
	}
}

func TestPinned_UsedForNewInstances(t *testing.T) {
	flow := func(*replay.Context, string) (string, error) { return "", nil }
	old, pinned, newer := child.Bind(flow, replay.Version("1")), child.Bind(flow, replay.Version("2"), replay.Pinned()), child.Bind(flow, replay.Version("3"))
	for _, definitions := range [][]replay.Definition{{old, pinned, newer}, {newer, pinned, old}, {pinned, newer, old}} {
		registry := registryOf(t, definitions...)
		if got := registry.Newest("child"); got != "2" {
			t.Errorf("%q", got)
		}
		if !registry.HasOrchestration("child", "3") || registry.HasOrchestration("child", "") {
			t.Error("HasOrchestration is wrong for a version")
		}
	}
	if got := registryOf(t, old).Newest("other"); got != "" {
		t.Errorf("Newest of an unknown orchestration is %q", got)
	}
	for want, definitions := range map[string][]replay.Definition{
		`orchestration "child" has two pinned versions, "2" and "3"`: {pinned, child.Bind(flow, replay.Version("3"), replay.Pinned())},
		`version "1" of orchestration "child" is bound twice`:        {old, newer, old},
		"has 129 bytes": {child.Bind(flow, replay.Version(strings.Repeat("1", 129)))},
		"is not UTF-8":  {child.Bind(flow, replay.Version("\xff"))},
	} {
		if _, err := engine.NewRegistry(definitions...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestVersion_FixedAtStart(t *testing.T) {
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, withVersion(started("upgrade", "stay"), "1"))
		mustTurn(t, in, external("go", nil, ""))
		wantLast(t, in, `OrchestrationContinuedAsNew version="1" input="up"`)
	})
	x := engine.NewExecution("i", 1, programRegistry(t), nil)
	defer x.Evict()
	_, err := x.Turn(begin, messagesOf(withVersion(started("upgrade", ""), "3")))
	var noCode *replay.NotRegisteredError
	if !errors.As(err, &noCode) || noCode.Version != "3" {
		t.Errorf("%v", err)
	}
}

func TestContext_VersionAndTags(t *testing.T) {
	start := withVersion(started("script", nil), "7")
	start.GetOrchestrationStarted().Tags = map[string]string{"tenant": "a"}
	registry := registryOf(t, replay.Orchestration[any, string]("script").Bind(func(ctx *replay.Context, _ any) (string, error) {
		return ctx.Version() + ctx.Tags()["tenant"] + ctx.Tags()["none"], nil
	}, replay.Version("7")))
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, journalCopy(start))
		wantLast(t, in, `OrchestrationCompleted output="7a"`)
	})
}

// --- the end ---

func TestOnClose_NotCalledOnEvict(t *testing.T) {
	called := 0
	registry := script(t, func(ctx *replay.Context) (string, error) {
		count := func(*replay.Context, error) error { called++; return nil }
		ctx.OnClose(count)
		defer ctx.OnClose(count)
		_, err := goOn.Wait(ctx)
		return "", err
	})
	in := &instance{registry: registry, cold: true}
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in)
	if called != 0 {
		t.Errorf("called %d times before the end", called)
	}
	mustTurn(t, in, external("go", nil, ""))
	if called != 2 {
		t.Errorf("called %d times", called)
	}
}

// An instance that is evicted during its clean-up continues there.
func TestEvict_DuringOnClose(t *testing.T) {
	var log []string
	registry := script(t, func(ctx *replay.Context) (string, error) {
		ctx.OnClose(func(ctx *replay.Context, _ error) error {
			defer func() {
				_, err := act.Call(ctx, "deferred")
				log = append(log, fmt.Sprint(errors.Is(err, replay.ErrEvicting)))
			}()
			_, err := act.Call(ctx, "clean up")
			return err
		})
		return "done", nil
	})
	in := &instance{registry: registry, cold: true}
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in)
	if diff := cmp.Diff([]string{"true", "true"}, log); diff != "" || in.ended {
		t.Errorf("ended %t (-want +got):\n%s", in.ended, diff)
	}
	mustTurn(t, in, activityCompleted(2, ""))
	mustTurn(t, in, activityCompleted(4, ""))
	wantLast(t, in, `OrchestrationCompleted output="done"`)
	checkReplays(t, in)
}

// Only the body of an orchestration may continue as new.
func TestOnClose_ContinueAsNewFails(t *testing.T) {
	self := replay.Orchestration[any, string]("script")
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		ctx.OnClose(func(ctx *replay.Context, _ error) error { return self.ContinueAsNew(ctx, nil) })
		return "done", nil
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		wantLast(t, in, `OrchestrationFailed error="tenuto: continue as new, which the orchestration must return"`)
	})
}

// --- composition during eviction, and of nothing ---

func TestEvict_CompositionReturnsAtOnce(t *testing.T) {
	var errs []error
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		work, full := act.Start(ctx, "x"), replay.NewSemaphore(1)
		_ = full.Acquire(ctx)
		defer func() {
			_, err := replay.AllResults(ctx, work)
			errs = append(errs, err)
			for range replay.AsCompleted(ctx, work) {
				t.Error("AsCompleted yields during eviction")
			}
			_, err = replay.Map(ctx, 1, []int{1}, func(*replay.Context, int) (int, error) { panic("called") })
			errs = append(errs, err, ctx.Err(), full.Acquire(ctx), replay.SetStatus(ctx, 1), child.Chain(ctx, ""))
			_, err = replay.SideEffect(ctx, "x", func() (int, error) { panic("called") })
			errs = append(errs, err)
			inner, cancel := replay.WithTimeout(ctx, time.Second)
			cancel()
			errs = append(errs, replay.WithoutCancel(inner).Sleep(0))
			_ = ctx.Random()
			replay.DeprecatePatch(ctx, "x")
		}()
		_, err := goOn.Wait(ctx)
		return "", err
	}))
	requested := x.QueuedActions()
	x.Evict()
	for i, err := range errs {
		if !errors.Is(err, replay.ErrEvicting) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if x.QueuedActions() != requested || len(errs) != 8 {
		t.Errorf("%d calls, %d asked", len(errs), x.QueuedActions()-requested)
	}
}

func TestComposition_Empty(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		done, err := replay.AllResults[string](ctx)
		for range replay.AsCompleted[string](ctx) {
			return "", errors.New("yields")
		}
		mapped, failed := replay.Map(ctx, 0, nil, func(*replay.Context, int) (int, error) { return 0, nil })
		_, none := replay.Race(ctx)
		return fmt.Sprint(len(done), err, len(mapped), failed, none != nil), nil
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		if got := string(in.history[1].GetOrchestrationCompleted().Output.Data); !strings.Contains(got, "0") || !strings.Contains(got, "true") {
			t.Error(got)
		}
	})
}

// Map runs at most its limit of calls at once, or all without a limit.
func TestMap_RespectsLimit(t *testing.T) {
	for limit, want := range map[int]int{-1: 5, 0: 5, 1: 1, 3: 3, 5: 5, 9: 5} {
		maximum, running := 0, 0
		registry := script(t, func(ctx *replay.Context) ([]int, error) {
			return replay.Map(ctx, limit, []int{1, 2, 3, 4, 5}, func(ctx *replay.Context, n int) (int, error) {
				running++
				maximum = max(maximum, running)
				err := ctx.Sleep(time.Duration(n))
				running--
				return n * n, err
			})
		})
		in := &instance{registry: registry}
		mustTurn(t, in, started("script", nil))
		for !in.ended {
			open := openOperations(in.history)
			mustTurn(t, in, timerFired(open[len(open)-1].EventId, begin))
		}
		in.evict()
		wantLast(t, in, "OrchestrationCompleted output=[1,4,9,16,25]")
		if maximum != want {
			t.Errorf("limit %d: %d concurrent calls", limit, maximum)
		}
	}
}

func TestSemaphore_FreeSlotDoesNotWait(t *testing.T) {
	x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		s := replay.NewSemaphore(2)
		err := errors.Join(s.Acquire(ctx), s.Acquire(ctx))
		s.Release(ctx)
		return "", errors.Join(err, s.Acquire(ctx))
	}))
	defer x.Evict()
	if len(turn.Events) != 2 {
		t.Errorf("%d events", len(turn.Events))
	}
}

func TestSemaphore_ReleaseWithoutAcquireFailsInstance(t *testing.T) {
	x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		s := replay.NewSemaphore(2)
		err := s.Acquire(ctx)
		s.Release(ctx)
		s.Release(ctx)
		return "released", err
	}))
	defer x.Evict()
	failed := turn.Events[len(turn.Events)-1].GetOrchestrationFailed().GetError()
	if !strings.Contains(failed.GetMessage(), "Release of a Semaphore without Acquire") {
		t.Errorf("%v; want a panic that names Release", turn.Events[len(turn.Events)-1])
	}
}

func TestEvict_ReleaseWithoutAcquireIsNoOp(t *testing.T) {
	evicted := false
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		s := replay.NewSemaphore(1)
		defer func() {
			_ = s.Acquire(ctx)
			s.Release(ctx)
			evicted = true
		}()
		_, err := goOn.Wait(ctx)
		return "", err
	}))
	x.Evict()
	if !evicted {
		t.Error("the code has not returned")
	}
}

// --- children ---

func TestChildOptions_RejectsInvalid(t *testing.T) {
	x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		_, id := child.Call(ctx, "", replay.ChildID("\xff"))
		_, v := child.Call(ctx, "", replay.Version("\xff"))
		return fmt.Sprint(id != nil, v != nil, child.Chain(ctx, "", replay.ChildID("\xff")) != nil), nil
	}))
	defer x.Evict()
	if got := engine.Describe(turn.Events[len(turn.Events)-1]); got != `OrchestrationCompleted output="true true true"` {
		t.Error(got)
	}
}

// --- values of the wrong type ---

func TestSideEffect_UndecodableRecord(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		_, err := replay.SideEffect(ctx, "n", func() (int, error) { return 1, nil })
		return "", err
	})
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(withEventIDs(started("script", nil), sideEffect("n", "text")))); err != nil {
		t.Fatal(err)
	}
	turn, err := x.Turn(begin, nil)
	if err != nil || !strings.HasPrefix(turn.Events[0].GetOrchestrationFailed().GetError().GetMessage(), `decode value of side effect "n": json: `) {
		t.Errorf("%v, %v", turn, err)
	}
}

// longID starts a child and a chained instance without IDs.
func longID(t *testing.T) *engine.Registry {
	return script(t, func(ctx *replay.Context) (string, error) {
		future := child.Start(ctx, "x")
		if err := child.Chain(ctx, "x"); err != nil {
			return "", err
		}
		return future.Await(ctx)
	})
}

// startedAs returns a start under protocol 3.
func startedAs(incarnation uint64) *journalpb.Event {
	start := started("script", nil)
	start.GetOrchestrationStarted().Incarnation = incarnation
	return start
}

func TestDerivedID_ValidForLongParentID(t *testing.T) {
	seen := make(map[string]bool)
	for _, parent := range []string{strings.Repeat("p", 115), strings.Repeat("p", 125), strings.Repeat("p", 128), strings.Repeat("p", 127) + "q"} {
		for incarnation := range uint64(2) {
			start := startedAs(journalpb.NewIncarnation(1, incarnation+1))
			x := engine.NewExecution(parent, 1, longID(t), nil)
			turn, err := x.Turn(begin, messagesOf(start))
			x.Evict()
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{turn.Events[1].GetSubOrchestrationScheduled().GetInstance(), turn.Events[2].GetOrchestrationChained().GetInstance()} {
				if !engine.ValidInstanceID(id) || !strings.HasPrefix(id, parent[:94]) || seen[id] {
					t.Errorf("%q of %q: %d bytes, seen %v", id, parent, len(id), seen[id])
				}
				seen[id] = true
			}
			again := engine.NewExecution(parent, 1, longID(t), nil)
			if err := again.Replay(eventSeq(turn.Events)); err != nil {
				t.Error(err)
			}
			again.Evict()
		}
	}
}

// Histories with longer derived IDs can be replayed.
func TestDerivedID_RecordedLongIDAccepted(t *testing.T) {
	parent := strings.Repeat("p", 125)
	for text, start := range map[string]*journalpb.Event{"::1.": started("script", nil), "::1-1.1.": startedAs(journalpb.NewIncarnation(1, 1))} {
		events := withEventIDs(start, childScheduled("child", parent+text+"2", "x"),
			&journalpb.Event{Body: &journalpb.Event_OrchestrationChained{OrchestrationChained: &journalpb.OrchestrationChained{
				Name: "child", Instance: parent + text + "3", Input: payloadOf("x"),
			}}})
		x := engine.NewExecution(parent, 1, longID(t), nil)
		if err := x.Replay(eventSeq(events)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		x.Evict()
	}
}

func TestChildID_RejectsInvalid(t *testing.T) {
	for _, id := range []string{"x y", "a\x00b", "ü", "\xff", strings.Repeat("x", 129), strings.Repeat("x", 3<<20)} {
		registry := script(t, func(ctx *replay.Context) (bool, error) {
			_, err := child.Call(ctx, "x", replay.ChildID(id))
			var called, chained *replay.InvalidError
			return errors.As(err, &called) && errors.As(child.Chain(ctx, "x", replay.ChildID(id)), &chained) &&
				called.Field == "option ChildID" && len(chained.Error()) < 300, nil
		})
		x := engine.NewExecution("i", 1, registry, nil)
		turn, err := x.Turn(begin, messagesOf(startedAs(7)))
		x.Evict()
		if err != nil || len(turn.Events) != 2 || string(turn.Events[1].GetOrchestrationCompleted().GetOutput().GetData()) != "true" {
			t.Errorf("%.20q: %v, %v", id, turn, err)
		}
	}
	// An execution that began before protocol 3 may have recorded it.
	registry := script(t, func(ctx *replay.Context) (string, error) { return child.Call(ctx, "x", replay.ChildID("x y")) })
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(withEventIDs(started("script", nil), childScheduled("child", "x y", "x")))); err != nil {
		t.Error(err)
	}
}
