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
)

// stepsMax is the default of Env.stepsMax.
const stepsMax = 20_000

// horizon is how much virtual time a body of an activity gets when nothing else
// is going to happen.
const horizon = 100 * 365 * 24 * time.Hour

// An Env is a world in which orchestrations are tested: a node over a journal in
// memory, and a clock that runs only when something waits for it. It is for the
// goroutine of its test; bodies of activities may send messages as well.
//
// Whatever goes wrong fails the test at once.
type Env struct {
	t      testing.TB
	bubble *bubble
	node   *node
	begun  bool
	stuck  bool        // what runs in the bubble does not come back
	inside atomic.Bool // something runs in the bubble

	// How many things may happen while one call waits: an orchestration that
	// goes round for ever is told from one that is long.
	stepsMax int

	activities     map[string]replay.Definition
	orchestrations []replay.Definition
	registry       *replay.Registry // what the node runs
	log            *log

	start, now time.Time
	quiet      survey // when nothing happened any more
	alarms     []alarm
	calls      map[string][]*journalpb.Payload
	updates    updates
	requests   int
	replayed   int // events, in all replays of histories
}

// An alarm is what At was given.
type alarm struct {
	at   time.Time
	call func()
}

// New returns a world for one test, with the code that a node would be given.
// Activities that are stubbed need no body. It ends with the test.
//
// The test must not be in a synctest bubble: the world makes one of its own, in
// which the bodies run. There time.Now, time.Sleep and everything built on them
// is virtual, from 2000-01-01 00:00 UTC on.
func New(t *testing.T, definitions ...replay.Definition) *Env {
	t.Helper()
	return newEnv(t, t, new(order), definitions)
}

// newEnv takes who is told of failures apart from the test that the bubble
// belongs to.
func newEnv(t testing.TB, of *testing.T, order *order, definitions []replay.Definition) *Env {
	t.Helper()
	if ownBubble() != "" {
		t.Fatal("replaytest: New inside of a synctest bubble: it makes one of its own")
	}
	e := &Env{
		t:          t,
		activities: make(map[string]replay.Definition),
		calls:      make(map[string][]*journalpb.Payload),
		updates:    make(updates),
		log:        &log{to: t},
		stepsMax:   stepsMax,
	}
	if _, err := replay.NewRegistry(definitions...); err != nil {
		t.Fatalf("replaytest: %v", err)
	}
	for _, d := range definitions {
		if name, ok := d.Activity(); ok {
			e.activities[name] = d
		} else {
			e.orchestrations = append(e.orchestrations, d)
		}
	}
	e.bubble = newBubble(of)
	t.Cleanup(e.close)
	e.do(func() {
		e.node = &node{journal: newJournal(), order: order, replayEvery: 1}
		e.node.gate = &gate{notify: e.node.journal.notify}
	})
	e.start = e.now
	return e
}

// ReplayEvery says after how many appends an instance is dropped from memory and
// brought back by a replay. Defaults to 1: after each. A history of more than 500
// events is replayed each time that it has grown by a fiftieth, so that the cost of
// a test grows with its length and not with the square. Ends are checked with any.
// 0 keeps instances in memory and checks nothing. It must be called before anything
// is started.
func (e *Env) ReplayEvery(appends int) {
	e.t.Helper()
	if e.begun {
		e.t.Fatal("replaytest: ReplayEvery comes before anything is started")
	}
	e.node.replayEvery = max(appends, 0)
}

// RealTimeMax says how much real time a step may take before the test is failed,
// because something in it is blocked outside of virtual time. Defaults to 10 s.
// Orchestration code that is blocked is found earlier.
func (e *Env) RealTimeMax(d time.Duration) { e.bubble.longer = d }

// Now returns the virtual time.
func (e *Env) Now() time.Time { return e.now }

// At has fn called when d has passed since the beginning of the test, by
// [Env.Advance] and by whatever else lets time pass. fn may use the Env. Those of
// one moment are called in the order in which they were given; one that is late
// already is called when time passes next.
func (e *Env) At(d time.Duration, fn func()) {
	at := e.start.Add(d)
	i, _ := slices.BinarySearchFunc(e.alarms, at, func(a alarm, at time.Time) int {
		if a.at.After(at) {
			return 1
		}
		return -1
	})
	e.alarms = slices.Insert(e.alarms, i, alarm{at, fn})
}

// Advance lets time pass: all that is due meanwhile happens at its moment.
func (e *Env) Advance(d time.Duration) {
	e.t.Helper()
	until := e.now.Add(d)
	e.run(func() bool { return !e.now.Before(until) }, until)
}

// do runs a function in the bubble, and returns when nothing there happens any
// more without time.
func (e *Env) do(call func()) {
	e.t.Helper()
	var now time.Time
	e.inside.Store(true)
	stacks, ok := e.bubble.do(func() {
		call()
		synctest.Wait()
		now = time.Now()
	})
	e.inside.Store(false)
	if !ok {
		e.stuck = true
		e.t.Fatal(stuckMessage(stacks))
	}
	e.now = now
}

// begin starts the node with the first thing that it has to do.
func (e *Env) begin() {
	e.t.Helper()
	if e.begun {
		return
	}
	e.begun = true
	e.bind()
	definitions := slices.Clone(e.orchestrations)
	for name := range e.activities {
		definitions = append(definitions, e.node.gate.guard(name))
	}
	registry, err := replay.NewRegistry(definitions...)
	if err != nil {
		e.t.Fatalf("replaytest: %v", err)
	}
	e.registry = registry
	e.do(func() { err = e.node.begin(registry, slog.New(slog.NewTextHandler(e.log, nil))) })
	if err != nil {
		e.t.Fatalf("replaytest: begin: %v", err)
	}
}

// bind makes the bodies of activities those that are known now.
func (e *Env) bind() {
	e.t.Helper()
	var bodies []replay.Definition
	for _, d := range e.activities {
		bodies = append(bodies, d)
	}
	registry, err := replay.NewRegistry(bodies...)
	if err != nil {
		e.t.Fatalf("replaytest: %v", err)
	}
	e.node.gate.code.Store(registry)
}

// settle lets everything happen that happens at this moment, one thing after the
// other, and returns how many things there were.
func (e *Env) settle() (steps int) {
	e.t.Helper()
	for ; ; steps++ {
		if steps > e.stepsMax {
			e.t.Fatalf("replaytest: more than %d steps at one moment, %s: something goes round without time passing%s",
				e.stepsMax, e.now.UTC().Format(time.RFC3339Nano), e.running())
		}
		var committed *commit
		var more bool
		var err error
		e.do(func() {
			if committed, more, err = e.node.step(); !more {
				e.quiet = e.node.survey()
			}
		})
		switch {
		case err != nil:
			e.t.Fatalf("replaytest: %v", err)
		case !more:
			if e.quiet.overdue {
				e.look()
			}
			return steps
		case committed != nil:
			e.committed(committed)
		}
	}
}

// look fails the test if it finds why something that should have happened has
// not: an instance that cannot go on.
func (e *Env) look() {
	e.t.Helper()
	var id string
	var reason error
	var stacks []stack
	e.do(func() {
		id, reason = e.node.stalled()
		stacks = blockedCode(stacksOf(e.bubble.id))
	})
	switch {
	case len(stacks) > 0:
		e.stuck = true // its actor does not end
		e.t.Fatal(stuckMessage(stacks))
	case reason != nil:
		e.disagree(id, 0, reason)
	}
}

// run lets time pass until a condition holds, at most until the limit if that is
// not zero. It returns false if nothing is going to happen any more.
func (e *Env) run(done func() bool, limit time.Time) bool {
	e.t.Helper()
	e.begin()
	steps := e.settle()
	for waited := false; !done(); {
		if e.ring() {
			steps += e.settle()
			continue
		}
		until := e.next(limit)
		if until.IsZero() && (waited || !e.quiet.working) {
			return false
		}
		waited = until.IsZero()
		if waited {
			until = e.now.Add(horizon)
		}
		var err error
		e.do(func() { err = e.node.pass(until) })
		if err != nil {
			e.t.Fatalf("replaytest: %v", err)
		}
		passed := e.settle()
		waited = waited && passed == 0 && !e.now.Before(until)
		if steps += passed + 1; steps > e.stepsMax && limit.IsZero() {
			e.t.Fatalf("replaytest: no end after %d steps and %v of virtual time%s", steps, e.now.Sub(e.start), e.running())
		}
	}
	return true
}

// ring calls what At has set for now.
func (e *Env) ring() bool {
	if len(e.alarms) == 0 || e.alarms[0].at.After(e.now) {
		return false
	}
	call := e.alarms[0].call
	e.alarms = e.alarms[1:]
	call()
	return true
}

// next returns until when nothing happens by itself, the zero time if nothing is
// due at all.
func (e *Env) next(limit time.Time) time.Time {
	until := e.quiet.wakeUp
	earlier := func(at time.Time) {
		if !at.IsZero() && (until.IsZero() || at.Before(until)) {
			until = at
		}
	}
	earlier(limit)
	if len(e.alarms) > 0 {
		earlier(e.alarms[0].at)
	}
	return until
}

// ask gives a message to an instance and returns the answer, when all has
// happened that follows at this moment.
func (e *Env) ask(id string, m actors.Message) actors.Answer {
	e.t.Helper()
	return e.askAll(id, m)[0]
}

// askAll gives messages to an instance, with nothing between them, and returns
// the answers.
func (e *Env) askAll(id string, messages ...actors.Message) []actors.Answer {
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
	if e.inside.Load() { // the body of an activity asks: it is in the bubble
		deliver()
		for i := range replies {
			answers[i] = <-replies[i]
		}
		return answers
	}
	e.begin()
	e.do(deliver)
	e.settle()
	for i := range replies {
		select {
		case answers[i] = <-replies[i]:
		default:
			e.look()
			e.t.Fatalf("replaytest: %s does not answer%s", id, e.running())
		}
	}
	return answers
}

// close ends the world with its test.
func (e *Env) close() {
	defer e.log.close()
	if e.stuck {
		return // its goroutines are left where they are
	}
	var left []stack
	e.do(func() {
		if e.begun {
			e.endNode()
		}
		synctest.Wait()
		left = leftBehind(stacksOf(e.bubble.id))
	})
	if len(left) > 0 {
		e.stuck = true
		e.t.Error(leftMessage(left))
		return
	}
	e.bubble.end()
}

// endNode ends the node, or gives up after as much time as it can take: what is
// still there then is seen among the goroutines.
func (e *Env) endNode() {
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

// mustBeginLater fails the test if the node was started already.
func (e *Env) mustBeginLater(what string) {
	e.t.Helper()
	if e.begun {
		e.t.Fatalf("replaytest: %s comes before anything is started", what)
	}
}

// running says, for a failure, what runs and what it waits for.
func (e *Env) running() string {
	text := ""
	for known := range e.node.journal.Instances() {
		if known.Status == journalpb.Status_STATUS_RUNNING {
			text += fmt.Sprintf("\n%s (%s) waits for:%s", known.Instance, known.Name, e.waitsFor(known.Instance))
		}
	}
	return text
}

func (e *Env) waitsFor(id string) string {
	text := ""
	for op := range e.node.journal.OpenOf(id) {
		event, err := e.node.journal.Event(id, op.Ref.Execution, op.Ref.EventId)
		if err != nil {
			continue
		}
		text += fmt.Sprintf("\n%5d  %s", event.EventId, replay.Describe(event))
		if failed := op.Attempt.GetFailed(); failed > 0 {
			text += fmt.Sprintf(", %d failed attempts, the last: %v", failed, replay.DecodeError(op.Attempt.LastError))
		}
	}
	if text == "" {
		return " nothing"
	}
	return text
}
