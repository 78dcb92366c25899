package replaytest

import (
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// stepsMax is the default of Env.stepsMax.
const stepsMax = 20_000

// activityTimeMax is the virtual time that the body of an activity may take while nothing else is
// due.
const activityTimeMax = 100 * 365 * 24 * time.Hour

// An Env is a test environment for orchestrations: a node with an in-memory journal and a
// virtual clock. Only the goroutine of the test may use it, except that bodies of activities
// may send messages.
//
// An Env fails the test at the first error.
type Env struct {
	// OrchestrationInterceptors and ActivityInterceptors run around the bodies of orchestrations
	// and around attempts, as in the Config of package cluster. Set them before the first start.
	OrchestrationInterceptors []replay.OrchestrationInterceptor
	ActivityInterceptors      []replay.ActivityInterceptor

	t        testing.TB
	bubble   *bubble
	node     *node
	started  bool
	stuck    bool        // a call in the bubble does not return
	inBubble atomic.Bool // a call runs in the bubble

	// The limit of steps while one call waits, which detects endless loops.
	stepsMax int

	activities     map[string]replay.Definition
	orchestrations []replay.Definition
	registry       *engine.Registry // what the node runs
	log            *log

	startedAt, now time.Time
	idleState      nodeState // of the node when it was last idle
	timers         []timer
	calls          map[string][]*journalpb.Payload
	updates        updates
	requestCount   int
	replayedEvents int // in all replays of histories
}

// A timer is a call that was scheduled with At.
type timer struct {
	at   time.Time
	call func()
}

// New returns an environment for one test, with the definitions that a node would get.
// Activities that are stubbed need no body. The environment ends with the test.
//
// The test must not run in a synctest bubble: the environment creates its own, in which the
// bodies run. There, package time is virtual and starts at 2000-01-01 00:00 UTC.
func New(t *testing.T, definitions ...replay.Definition) *Env {
	t.Helper()
	return newEnv(t, t, new(order), definitions)
}

// newEnv reports failures to t. The bubble belongs to owner.
func newEnv(t testing.TB, owner *testing.T, order *order, definitions []replay.Definition) *Env {
	t.Helper()
	if currentBubble() != "" {
		t.Fatal("replaytest: New must not be called in a synctest bubble: it creates its own")
	}
	e := &Env{
		t:          t,
		activities: make(map[string]replay.Definition),
		calls:      make(map[string][]*journalpb.Payload),
		updates:    make(updates),
		log:        &log{to: t},
		stepsMax:   stepsMax,
	}
	if _, err := engine.NewRegistry(definitions...); err != nil {
		t.Fatalf("replaytest: %v", err)
	}
	for _, d := range definitions {
		if name, ok := d.Activity(); ok {
			e.activities[name] = d
		} else {
			e.orchestrations = append(e.orchestrations, d)
		}
	}
	e.bubble = newBubble(owner)
	t.Cleanup(e.close)
	e.runInBubble(func() {
		e.node = &node{journal: newJournal(), order: order, replayEvery: 1}
		e.node.barrier = &barrier{notify: e.node.journal.notify}
	})
	e.startedAt = e.now
	return e
}

// ReplayEvery sets after how many appends an instance is evicted and replayed. Defaults to 1.
// A history of more than 500 events is replayed only after each growth by 2%, which keeps the
// cost of a test linear in its length. The end of an execution is always checked. 0 keeps
// instances in memory and disables all checks. ReplayEvery must be called before the first
// start.
func (e *Env) ReplayEvery(appends int) {
	e.t.Helper()
	if e.started {
		e.t.Fatal("replaytest: ReplayEvery must be called before the first start")
	}
	e.node.replayEvery = max(appends, 0)
}

// RealTimeMax sets how much real time a step may take before the test fails because something
// is blocked outside virtual time. Defaults to 10 s. Blocked orchestration code is found
// earlier.
func (e *Env) RealTimeMax(d time.Duration) { e.bubble.timeout = d }

// Now returns the virtual time.
func (e *Env) Now() time.Time { return e.now }

// At schedules fn for d after the beginning of the test. Calls that let time pass, such as
// [Env.Advance], call it; fn may use the Env. Functions with the same time are called in the order
// in which they were scheduled. If the time has already passed, fn is called by the next call that
// lets time pass.
func (e *Env) At(d time.Duration, fn func()) {
	at := e.startedAt.Add(d)
	i, _ := slices.BinarySearchFunc(e.timers, at, func(a timer, at time.Time) int {
		if a.at.After(at) {
			return 1
		}
		return -1
	})
	e.timers = slices.Insert(e.timers, i, timer{at, fn})
}

// Advance lets time pass. Everything that is due meanwhile happens at its time.
func (e *Env) Advance(d time.Duration) {
	e.t.Helper()
	until := e.now.Add(d)
	e.runUntil(func() bool { return !e.now.Before(until) }, until)
}

// runInBubble runs a function in the bubble and returns when the bubble is idle at this moment.
func (e *Env) runInBubble(call func()) {
	e.t.Helper()
	var now time.Time
	e.inBubble.Store(true)
	stacks, ok := e.bubble.do(func() {
		call()
		synctest.Wait()
		now = time.Now()
	})
	e.inBubble.Store(false)
	if !ok {
		e.stuck = true
		e.t.Fatal(stuckMessage(stacks))
	}
	e.now = now
}

// start starts the node before its first use.
func (e *Env) start() {
	e.t.Helper()
	if e.started {
		return
	}
	e.started = true
	e.bindActivities()
	definitions := slices.Clone(e.orchestrations)
	for name := range e.activities {
		definitions = append(definitions, e.node.barrier.wrap(name))
	}
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		e.t.Fatalf("replaytest: %v", err)
	}
	e.registry = registry.WithStrict(true).WithInterceptors(e.OrchestrationInterceptors, nil)
	registry = e.registry
	e.runInBubble(func() { err = e.node.start(registry, slog.New(slog.NewTextHandler(e.log, nil))) })
	if err != nil {
		e.t.Fatalf("replaytest: start node: %v", err)
	}
}

// bindActivities installs the current bodies of activities.
func (e *Env) bindActivities() {
	e.t.Helper()
	var bodies []replay.Definition
	for _, d := range e.activities {
		bodies = append(bodies, d)
	}
	registry, err := engine.NewRegistry(bodies...)
	if err != nil {
		e.t.Fatalf("replaytest: %v", err)
	}
	e.node.barrier.bodies.Store(registry.WithInterceptors(nil, e.ActivityInterceptors))
}

// runUntilIdle processes all arrivals at this moment of virtual time, one per step, and returns the
// number of steps.
func (e *Env) runUntilIdle() (steps int) {
	e.t.Helper()
	for ; ; steps++ {
		if steps > e.stepsMax {
			e.t.Fatalf("replaytest: more than %d steps at virtual time %s: endless loop without passing time%s",
				e.stepsMax, e.now.UTC().Format(time.RFC3339Nano), e.describeRunning())
		}
		var committed *commit
		var more bool
		var err error
		e.runInBubble(func() {
			if committed, more, err = e.node.step(); !more {
				e.idleState = e.node.inspect()
			}
		})
		switch {
		case err != nil:
			e.t.Fatalf("replaytest: %v", err)
		case !more:
			if e.idleState.overdue {
				e.checkStalled()
			}
			return steps
		case committed != nil:
			e.handleCommit(committed)
		}
	}
}

// checkStalled fails the test if an instance is blocked or stalled.
func (e *Env) checkStalled() {
	e.t.Helper()
	var id string
	var reason error
	var stacks []stack
	e.runInBubble(func() {
		id, reason = e.node.stalledInstance()
		stacks = blockedCode(stacksOf(e.bubble.id))
	})
	switch {
	case len(stacks) > 0:
		e.stuck = true // its actor does not end
		e.t.Fatal(stuckMessage(stacks))
	case reason != nil:
		e.failMismatch(id, 0, reason)
	}
}

// runUntil lets time pass until done returns true, but not beyond limit (zero: no limit). It
// returns false if nothing more can happen.
func (e *Env) runUntil(done func() bool, limit time.Time) bool {
	e.t.Helper()
	e.start()
	steps := e.runUntilIdle()
	for waited := false; !done(); {
		if e.fireTimer() {
			steps += e.runUntilIdle()
			continue
		}
		until := e.nextWakeUp(limit)
		if until.IsZero() && (waited || !e.idleState.activityRunning) {
			return false
		}
		waited = until.IsZero()
		if waited {
			until = e.now.Add(activityTimeMax)
		}
		var err error
		e.runInBubble(func() { err = e.node.advance(until) })
		if err != nil {
			e.t.Fatalf("replaytest: %v", err)
		}
		passed := e.runUntilIdle()
		waited = waited && passed == 0 && !e.now.Before(until)
		if steps += passed + 1; steps > e.stepsMax && limit.IsZero() {
			e.t.Fatalf("replaytest: no end after %d steps and %v of virtual time%s", steps, e.now.Sub(e.startedAt), e.describeRunning())
		}
	}
	return true
}

// fireTimer calls the next function of At if it is due.
func (e *Env) fireTimer() bool {
	if len(e.timers) == 0 || e.timers[0].at.After(e.now) {
		return false
	}
	call := e.timers[0].call
	e.timers = e.timers[1:]
	call()
	return true
}

// nextWakeUp returns the next time at which something is due, or the zero time.
func (e *Env) nextWakeUp(limit time.Time) time.Time {
	until := e.idleState.nextWakeUp
	earlier := func(at time.Time) {
		if !at.IsZero() && (until.IsZero() || at.Before(until)) {
			until = at
		}
	}
	earlier(limit)
	if len(e.timers) > 0 {
		earlier(e.timers[0].at)
	}
	return until
}

// deliver sends a message to an instance, runs until idle, and returns the answer.
func (e *Env) deliver(id string, m actors.Message) actors.Answer {
	e.t.Helper()
	return e.deliverAll(id, m)[0]
}

// deliverAll sends messages to an instance, with no other message between them, and returns the
// answers.
func (e *Env) deliverAll(id string, messages ...actors.Message) []actors.Answer {
	e.t.Helper()
	answers := make([]actors.Answer, len(messages))
	replies := make([]chan actors.Answer, len(messages))
	for i := range replies {
		replies[i] = make(chan actors.Answer, 1)
	}
	deliver := func() {
		for i, m := range messages {
			e.node.deliver(id, m, replies[i])
		}
	}
	if e.inBubble.Load() { // called by the body of an activity
		deliver()
		for i := range replies {
			answers[i] = <-replies[i]
		}
		return answers
	}
	e.start()
	e.runInBubble(deliver)
	e.runUntilIdle()
	for i := range replies {
		select {
		case answers[i] = <-replies[i]:
		default:
			e.checkStalled()
			e.t.Fatalf("replaytest: instance %s does not answer%s", id, e.describeRunning())
		}
	}
	return answers
}

// close ends the environment with its test.
func (e *Env) close() {
	defer e.log.close()
	if e.stuck {
		return // the goroutines of the bubble cannot be stopped
	}
	var leaked []stack
	e.runInBubble(func() {
		if e.started {
			e.closeNode()
		}
		synctest.Wait()
		leaked = leakedGoroutines(stacksOf(e.bubble.id))
	})
	if len(leaked) > 0 {
		e.stuck = true
		e.t.Error(leakMessage(leaked))
		return
	}
	e.bubble.end()
}

// closeNode closes the node. It returns after 2*closeGrace of virtual time at the latest.
// Goroutines that remain are reported as leaked.
func (e *Env) closeNode() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.node.close()
	}()
	select {
	case <-done:
	case <-time.After(2 * closeGrace):
	}
}

// mustNotBeStarted fails the test if the node was started.
func (e *Env) mustNotBeStarted(what string) {
	e.t.Helper()
	if e.started {
		e.t.Fatalf("replaytest: %s must come before the first start", what)
	}
}

// describeRunning lists, for a failure, running instances and their open operations.
func (e *Env) describeRunning() string {
	text := ""
	for known := range e.node.journal.Instances() {
		if known.Status == journalpb.Status_STATUS_RUNNING {
			text += fmt.Sprintf("\n%s (%s) waits for:%s", known.Instance, known.Name, e.node.journal.describeOpenOperations(known.Instance))
		}
	}
	return text
}

func (j *journal) describeOpenOperations(id string) string {
	text := ""
	for op := range j.InstanceOperations(id) {
		event, err := j.Event(id, op.Ref.Execution, op.Ref.EventId)
		if err != nil {
			continue
		}
		text += fmt.Sprintf("\n%5d  %s", event.EventId, engine.Describe(event))
		if failed := op.Attempt.GetFailed(); failed > 0 {
			text += fmt.Sprintf(", %d failed attempts, the last: %v", failed, engine.DecodeError(op.Attempt.LastError))
		}
	}
	if text == "" {
		return " nothing"
	}
	return text
}
