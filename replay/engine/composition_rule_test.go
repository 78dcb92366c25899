package engine_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// never is the time of an event that does not occur.
const never = 1 << 30

// awaitLimit is the timeout of AwaitFor in compositions; no other timer has this duration.
const awaitLimit = 10 * time.Hour

// A composedOp is an operation that a composition waits for.
type composedOp struct {
	kind  string // activity, child, event, timer or coroutine
	inner bool   // in the scope that ends, not in the outer one
}

// A composition calls one function on several operations in a scope that may end.
type composition struct {
	function string // Race, Next, All, AllResults, AsCompleted, AwaitFor or Map
	endedBy  string // what ends the scope: instance, timeout or function
	late     bool   // called only after an event
	ops      []composedOp
}

func randomComposition(random *rand.Rand) *composition {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	c := &composition{
		function: pick("Race", "Next", "All", "AllResults", "AsCompleted", "AwaitFor", "Map"),
		endedBy:  pick("instance", "timeout", "function"),
		late:     random.IntN(3) == 0,
	}
	for range 1 + random.IntN(4) {
		c.ops = append(c.ops, composedOp{pick("activity", "child", "event", "timer", "coroutine"), random.IntN(2) == 0})
	}
	if c.function == "AwaitFor" {
		c.ops = c.ops[:1]
	}
	return c
}

// run is the orchestration. It sets the outcome of the composition as status.
func (c *composition) run(ctx *replay.Context) (string, error) {
	outer, inner, end := replay.WithoutCancel(ctx), ctx, func() {}
	switch c.endedBy {
	case "timeout":
		inner, _ = replay.WithTimeout(outer, time.Hour)
	case "function":
		inner, end = replay.WithCancel(outer)
		replay.Go(outer, func(ctx *replay.Context) (any, error) {
			_, err := replay.Event[any]("end").Wait(ctx)
			end()
			return nil, err
		})
	}
	futures := make([]*replay.Future[string], len(c.ops))
	awaitables := make([]replay.Awaitable, len(c.ops))
	for i, op := range c.ops {
		scope := outer
		if op.inner {
			scope = inner
		}
		if op.kind == "timer" && (c.function == "Race" || c.function == "Next") {
			awaitables[i] = scope.Timer(time.Duration(i+1) * time.Minute)
			continue
		}
		futures[i] = op.start(scope, i)
		awaitables[i] = futures[i]
	}
	if c.late {
		if _, err := replay.Event[any]("begin").Wait(outer); err != nil {
			return "", err
		}
	}
	if err := replay.SetStatus(ctx, "returned "+c.call(inner, futures, awaitables)); err != nil {
		return "", err
	}
	return replay.Event[string]("finish").Wait(outer)
}

// start starts operation i. The result of a timer is not a string, so it is wrapped in a coroutine
// where the composition needs one type.
func (op composedOp) start(ctx *replay.Context, i int) *replay.Future[string] {
	switch op.kind {
	case "activity":
		return act.Start(ctx, fmt.Sprint(i))
	case "child":
		return child.Start(ctx, fmt.Sprint(i))
	case "event":
		return replay.Event[string](fmt.Sprint("e", i)).Subscribe(ctx)
	}
	return replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		if op.kind == "coroutine" {
			return act.Call(ctx, fmt.Sprint(i))
		}
		return fmt.Sprint("r", i), ctx.Sleep(time.Duration(i+1) * time.Minute)
	})
}

func (c *composition) call(ctx *replay.Context, futures []*replay.Future[string], awaitables []replay.Awaitable) string {
	switch c.function {
	case "Race":
		winner, err := replay.Race(ctx, awaitables...)
		return formatResult(winner, err)
	case "Next":
		winner, err := replay.Next(ctx, awaitables...)
		return formatResult(winner, err)
	case "All":
		results, err := replay.All(ctx, futures...)
		return formatResult(results, err)
	case "AllResults":
		results, err := replay.AllResults(ctx, futures...)
		return formatResult(len(results), err)
	case "AsCompleted":
		var order []int
		for i := range replay.AsCompleted(ctx, futures...) {
			order = append(order, i)
		}
		if len(order) == len(futures) {
			return formatResult(order, nil)
		}
		return formatResult(order, nil) + " " + formatResult(nil, ctx.Err())
	case "AwaitFor":
		result, err := futures[0].AwaitFor(ctx, awaitLimit)
		return formatResult(result, err)
	}
	indexes := make([]int, len(futures))
	for i := range indexes {
		indexes[i] = i
	}
	results, err := replay.Map(ctx, 0, indexes, func(ctx *replay.Context, i int) (string, error) { return futures[i].Await(ctx) })
	return formatResult(results, err)
}

func formatResult(value any, err error) string {
	var failed *replay.ActivityError
	var child *replay.ChildError
	switch {
	case err == nil:
		return fmt.Sprint(value)
	case errors.As(err, &failed):
		return failed.Err.Error()
	case errors.As(err, &child):
		return child.Err.Error()
	case errors.Is(err, replay.ErrCanceled):
		return "canceled"
	case errors.Is(err, replay.ErrTimeout):
		return "timeout"
	}
	return err.Error()
}

// An expectation holds the schedule of one run and derives the expected outcome.
type expectation struct {
	c      *composition
	done   []int  // when each operation completes
	failed []bool // whether it fails
	ended  int    // when the scope ends
	limit  int    // when the timeout of AwaitFor passes
	called int    // when the composition is called
}

func (e *expectation) scopeError() string {
	if e.c.endedBy == "timeout" {
		return "timeout"
	}
	return "canceled"
}

// result returns when the composition has its result, and the result.
func (e *expectation) result() (at int, text string) {
	order := make([]int, len(e.done))
	for i := range order {
		order[i] = i
	}
	done := func(i int) int {
		if e.c.function == "Map" {
			return max(e.done[i], e.called) // no function runs earlier
		}
		return e.done[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return done(a) - done(b) })
	first, last := order[0], e.done[order[len(order)-1]]
	texts := make([]string, len(e.done))
	for i := range texts {
		texts[i] = fmt.Sprint("r", i)
	}
	switch e.c.function {
	case "Race", "Next":
		return e.done[first], fmt.Sprint(first)
	case "AllResults":
		return last, fmt.Sprint(len(order))
	case "AsCompleted":
		return last, fmt.Sprint(order)
	case "AwaitFor":
		switch {
		case e.limit < e.done[0]:
			return e.limit, "timeout"
		case e.failed[0]:
			return e.done[0], "failed 0"
		}
		return e.done[0], texts[0]
	}
	for _, i := range order {
		if e.failed[i] && done(i) < never {
			return done(i), fmt.Sprint("failed ", i)
		}
	}
	return max(last, done(order[0])), fmt.Sprint(texts)
}

// expectedStatus returns the expected status and its time, "" if the composition keeps waiting.
func (e *expectation) expectedStatus() (at int, text string) {
	at, text = e.result()
	switch {
	case at < e.ended:
		return max(at, e.called), text
	case e.ended == never:
		return never, ""
	case e.c.function == "AsCompleted":
		var before []int
		for i, done := range e.done {
			if done < e.ended {
				before = append(before, i)
			}
		}
		slices.SortFunc(before, func(a, b int) int { return e.done[a] - e.done[b] })
		return max(e.ended, e.called), fmt.Sprint(before) + " " + e.scopeError()
	}
	return max(e.ended, e.called), e.scopeError()
}

// canceledOps returns the expected cancellations in order: by the end of the scope, a lost race, or
// a timeout. -1 stands for the timer of AwaitFor.
func (e *expectation) canceledOps() []int {
	var canceled []int
	result, text := e.result()
	at := max(result, e.called)
	for i, op := range e.c.ops {
		races := e.c.function == "Race" && fmt.Sprint(i) != text || e.c.function == "AwaitFor" && text == "timeout"
		switch {
		case op.inner && e.ended < e.done[i], races && result < e.ended && at < e.done[i]:
			canceled = append(canceled, i)
		}
	}
	if e.c.function == "AwaitFor" && e.called < min(e.ended, e.done[0]) && min(e.ended, e.done[0]) < e.limit {
		canceled = append(canceled, -1)
	}
	slices.Sort(canceled)
	return canceled
}

// TestComposition_EndsWithScope runs random compositions of operations in two scopes, one of which
// ends at some time. If the scope of a composition ends before its result is available, the
// composition must return the error of the scope, and must not cancel anything else.
func TestComposition_EndsWithScope(t *testing.T) {
	for seed := range uint64(shorttest.SequentialRounds(4000)) {
		random := rand.New(rand.NewPCG(seed, 6))
		c := randomComposition(random)
		e := &expectation{c: c, ended: never, limit: never, called: 0}
		in := &instance{registry: script(t, c.run), cold: seed%2 == 0, logger: slog.New(slog.DiscardHandler)}
		mustTurn(t, in, started("script", nil))
		e.run(t, in, random)
		e.check(t, in)
		checkReplays(t, in)
		in.evict()
		if t.Failed() {
			t.Fatalf("seed %d: %+v, done %v, failed %v, ended %d, limit %d, called %d", seed, *c, e.done, e.failed, e.ended, e.limit, e.called)
		}
	}
}

// run delivers completions and the end of the scope in random order, one a turn.
func (e *expectation) run(t *testing.T, in *instance, random *rand.Rand) {
	actions := []int{-1, -2, -3} // the end of the scope, the timeout of AwaitFor, the call
	for i := range e.c.ops {
		e.done, e.failed = append(e.done, never), append(e.failed, false)
		actions = append(actions, i)
	}
	if e.c.late {
		e.called = never
	}
	random.Shuffle(len(actions), func(i, j int) { actions[i], actions[j] = actions[j], actions[i] })
	for at, action := range actions {
		at++
		if random.IntN(5) == 0 && action != -3 {
			continue
		}
		switch {
		case action == -1:
			e.ended = at
			mustTurn(t, in, e.scopeEnd(in))
		case action == -2:
			if limit := openTimer(in, awaitLimit); limit != nil {
				e.limit = at
				mustTurn(t, in, timerFired(limit.EventId, begin.Add(awaitLimit)))
			}
		case action == -3 && e.c.late:
			e.called = at
			mustTurn(t, in, external("begin", nil, ""))
		case action >= 0:
			fails := random.IntN(3) == 0
			if event, failed := e.completion(in, action, fails); event != nil {
				e.done[action], e.failed[action] = at, failed
				mustTurn(t, in, event)
			}
		}
	}
}

// scopeEnd returns the event that ends the scope.
func (e *expectation) scopeEnd(in *instance) *journalpb.Event {
	switch e.c.endedBy {
	case "instance":
		return cancelRequested("enough", "")
	case "timeout":
		return timerFired(openTimer(in, time.Hour).EventId, begin.Add(time.Hour))
	}
	return external("end", nil, "")
}

// openTimer returns the open timer with duration d, nil if there is none.
func openTimer(in *instance, d time.Duration) *journalpb.Event {
	for _, event := range openOperations(in.history) {
		if timer := event.GetTimerCreated(); timer != nil && timer.FireAt == begin.Add(d).UnixNano() {
			return event
		}
	}
	return nil
}

// completion returns the event that completes operation i, nil if it is not open.
func (e *expectation) completion(in *instance, i int, fails bool) (completion *journalpb.Event, failed bool) {
	input := fmt.Sprintf("%q", fmt.Sprint(i))
	switch e.c.ops[i].kind {
	case "timer":
		if timer := openTimer(in, time.Duration(i+1)*time.Minute); timer != nil {
			return timerFired(timer.EventId, begin), false
		}
		return nil, false
	case "event":
		if e.c.ops[i].inner && e.ended < never || slices.Contains(canceledOperations(in), i) {
			return nil, false
		}
		return external(fmt.Sprint("e", i), fmt.Sprint("r", i), ""), false
	}
	for _, event := range openOperations(in.history) {
		switch {
		case string(event.GetSubOrchestrationScheduled().GetInput().GetData()) == input && fails:
			return childFailed(event.EventId, fmt.Errorf("failed %d", i)), true
		case string(event.GetSubOrchestrationScheduled().GetInput().GetData()) == input:
			return childCompleted(event.EventId, fmt.Sprint("r", i)), false
		case string(event.GetActivityScheduled().GetInput().GetData()) == input && fails:
			return activityFailed(event.EventId, fmt.Errorf("failed %d", i)), true
		case string(event.GetActivityScheduled().GetInput().GetData()) == input:
			return activityCompleted(event.EventId, fmt.Sprint("r", i)), false
		}
	}
	return nil, false
}

// canceledOperations returns the operations that a history cancels, -1 for the timer of AwaitFor.
func canceledOperations(in *instance) []int {
	var canceled []int
	for _, event := range in.history {
		if event.GetCancelRequested() == nil {
			continue
		}
		number := -2
		switch body := in.history[event.SourceEventId-1].Body.(type) {
		case *journalpb.Event_ActivityScheduled:
			_, _ = fmt.Sscanf(string(body.ActivityScheduled.Input.Data), "\"%d\"", &number)
		case *journalpb.Event_SubOrchestrationScheduled:
			_, _ = fmt.Sscanf(string(body.SubOrchestrationScheduled.Input.Data), "\"%d\"", &number)
		case *journalpb.Event_ExternalSubscribed:
			_, _ = fmt.Sscanf(body.ExternalSubscribed.Name, "e%d", &number)
		case *journalpb.Event_TimerCreated:
			if d := time.Duration(body.TimerCreated.FireAt - begin.UnixNano()); d == awaitLimit {
				number = -1
			} else {
				number = int(d/time.Minute) - 1
			}
		}
		canceled = append(canceled, number)
	}
	slices.Sort(canceled)
	return canceled
}

func (e *expectation) check(t *testing.T, in *instance) {
	var got string
	for _, event := range in.history {
		if status := event.GetStatusSet(); status != nil {
			got = strings.TrimPrefix(strings.Trim(string(status.Value.Data), `"`), "returned ")
		}
	}
	if _, want := e.expectedStatus(); got != want {
		t.Errorf("%s returned %q, want %q", e.c.function, got, want)
	}
	if got, want := canceledOperations(in), e.canceledOps(); !slices.Equal(got, want) {
		t.Errorf("canceled operations %v, want %v", got, want)
	}
}
