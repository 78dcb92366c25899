package engine_test

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var programSeed = flag.Uint64("program-seed", 0, "run TestRandomPrograms with this seed alone")

// TestRandomPrograms runs random orchestrations over random messages: undisturbed; with an eviction
// after every append and some lost turns, whose messages and earlier ones are delivered to a new
// owner; and with the messages of each batch in another order. The first two must produce the same
// histories. All histories must satisfy the rules (random_rules_test.go) and be replayable to their
// end. Histories of code without patches must fit code with patches.
func TestRandomPrograms(t *testing.T) {
	if *programSeed != 0 {
		runProgram(t, *programSeed)
		return
	}
	seeds := uint64(shorttest.Cases(6_000))
	shards := uint64(runtime.GOMAXPROCS(0))
	for shard := range shards {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			for seed := shard + 1; seed <= seeds && !t.Failed(); seed += shards {
				runProgram(t, seed)
			}
		})
	}
}

func FuzzPrograms(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { runProgram(t, seed) })
}

func runProgram(t *testing.T, seed uint64) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("to repeat: go test ./replay -run TestRandomPrograms -program-seed %d", seed)
		}
	}()
	first := newProgramRun(t, seed, false)
	defer func() { first.in.evict() }()
	script, ok := first.runUndisturbed(seed)
	if !ok {
		return
	}
	first.check()
	first.checkOldHistories()
	newProgramRun(t, seed, true).runWithEvictions(seed, script)
	reordered := newProgramRun(t, seed, true)
	reordered.runReordered(seed, script)
	reordered.check()
}

// A batch is the messages and the outcome of one turn of the undisturbed run.
type batch struct {
	now      time.Time
	messages []engine.Message
	turn     *engine.Turn
}

// A programRun is one program on its way through its executions.
type programRun struct {
	t         *testing.T
	env       *programEnv
	in        *instance
	postponed []engine.Message // postponed to the next execution
}

// newProgramRun returns a run of the program of that seed.
func newProgramRun(t *testing.T, seed uint64, cold bool) *programRun {
	w := &programEnv{t: t, seed: seed, patches: seed%3 != 0, cancelSeen: make(map[int]bool)}
	return &programRun{t: t, env: w, in: &instance{registry: w.registry(t), cold: cold, logger: slog.New(slog.DiscardHandler)}}
}

// turn delivers messages to the latest execution.
func (r *programRun) turn(now time.Time, messages []engine.Message) (*engine.Turn, error) {
	if r.in.successor != nil {
		r.in = r.in.next()
		messages = append(r.postponed, messages...)
		r.postponed = nil
	}
	sent := copyMessages(messages)
	if len(r.in.history) == 0 {
		sent[0].Event.GetOrchestrationStarted().Incarnation = r.env.incarnation
	}
	turn, err := r.in.turn(now, sent)
	if err != nil {
		return nil, fmt.Errorf("execution %d: %w", r.in.execution(), err)
	}
	for i, disposition := range turn.Dispositions {
		if disposition == engine.Postponed {
			r.postponed = append(r.postponed, messages[i])
		}
	}
	return turn, nil
}

func (r *programRun) isDone() bool { return r.in.ended && r.in.successor == nil }

func (r *programRun) executions() []*instance { return append(slices.Clone(r.in.earlier), r.in) }

const turnsMax = 60

// runUndisturbed runs the program over random messages and returns them.
func (r *programRun) runUndisturbed(seed uint64) (script []batch, ok bool) {
	s := &sender{random: rand.New(rand.NewPCG(seed, 2))}
	now := begin
	for after := 0; after < 3 && len(script) < turnsMax; {
		if r.isDone() {
			after++
		}
		now = now.Add(time.Duration(s.random.IntN(2000)-100) * time.Millisecond)
		b := batch{now: now, messages: s.batch(r.in)}
		var err error
		if b.turn, err = r.turn(now, b.messages); err != nil {
			r.t.Errorf("undisturbed: %v", err)
			return nil, false
		}
		script = append(script, b)
	}
	return script, true
}

// runWithEvictions repeats the run. The instance is evicted after every append. Some turns are lost
// with their owner; the next owner gets their messages again, together with earlier ones.
func (r *programRun) runWithEvictions(seed uint64, script []batch) {
	random := rand.New(rand.NewPCG(seed, 4))
	for i, b := range script {
		if random.IntN(4) == 0 {
			r.loseTurn(b)
		}
		turn, err := r.turn(b.now, b.messages)
		if err != nil {
			r.t.Errorf("with evictions: %v", err)
			return
		}
		if diff := cmp.Diff(b.turn, turn, protocmp.Transform(), protocmp.IgnoreFields(&journalpb.Error{}, "stack")); diff != "" {
			r.t.Errorf("turn %d (-undisturbed +with evictions):\n%s", i, diff)
			return
		}
		if random.IntN(4) == 0 && r.in.successor == nil {
			again, err := r.turn(b.now, r.repeatableMessages(b, turn))
			if err != nil || len(again.Events) > 0 {
				r.t.Errorf("recorded messages were recorded again: %v, %v", again, err)
				return
			}
		}
	}
}

// loseTurn computes a turn that is never committed.
func (r *programRun) loseTurn(b batch) {
	calls := r.env.calls
	lost := &programRun{t: r.t, env: r.env, postponed: slices.Clone(r.postponed), in: &instance{
		registry: r.in.registry, logger: r.in.logger, cold: true, number: r.in.number,
		history: slices.Clone(r.in.history), successor: r.in.successor, ended: r.in.ended,
	}}
	if _, err := lost.turn(b.now, b.messages); err != nil {
		r.t.Errorf("lost turn: %v", err)
	}
	r.env.calls = calls // external effects: the model repeats them
}

// repeatableMessages returns the messages of a batch whose repetition is detected: completions, and
// those with a request ID.
func (r *programRun) repeatableMessages(b batch, turn *engine.Turn) []engine.Message {
	if len(turn.Dispositions) != len(b.messages) {
		return nil
	}
	var again []engine.Message
	for i, m := range b.messages {
		completion := journalpb.SchedulingType(m.Event.TypeNumber()) != 0
		if turn.Dispositions[i] == engine.Recorded && (completion || requestID(m.Event) != "") {
			again = append(again, m)
		}
	}
	return again
}

// requestID returns the request ID of an event that a sender makes.
func requestID(event *journalpb.Event) string {
	if e := event.GetExternalEvent(); e != nil {
		return e.RequestId
	}
	return event.GetOrchestrationCancelRequested().GetRequestId()
}

// runReordered runs the program with the messages of each batch in another order. The history
// differs but must satisfy the same rules.
func (r *programRun) runReordered(seed uint64, script []batch) {
	random := rand.New(rand.NewPCG(seed, 5))
	for _, b := range script {
		messages := slices.Clone(b.messages)
		first := 0
		if len(r.in.history) == 0 {
			first = 1 // the start stays first
		}
		rest := messages[first:]
		random.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
		if _, err := r.turn(b.now, messages); err != nil {
			r.t.Errorf("reordered: %v", err)
			return
		}
	}
}

// check checks and replays every execution.
func (r *programRun) check() {
	executions := r.executions()
	for i, in := range executions {
		var next *journalpb.Event
		if i+1 < len(executions) {
			next = executions[i+1].history[0]
		}
		in.cancelSeen = r.env.cancelSeen[int(in.execution())]
		checkRules(r.t, in, next)
		in.boundaries = []int{len(in.history)}
		checkReplays(r.t, in)
	}
}

// checkOldHistories replays histories of code without patches with code that has patches.
func (r *programRun) checkOldHistories() {
	if r.env.patches || r.t.Failed() {
		return
	}
	newer := *r.env
	newer.patches, newer.noMarkers = true, true
	registry := newer.registry(r.t)
	for _, in := range r.executions() {
		if !in.ended {
			continue // at its end, new code may record a marker
		}
		x := engine.NewExecution("i", in.execution(), registry, nil)
		if err := x.Replay(eventSeq(in.history)); err != nil || !x.Ended() {
			r.t.Errorf("by code with patches: ended %t, %v", x.Ended(), err)
		}
		x.Evict()
	}
}

// copyMessages copies messages, so that runs do not share what they may change.
func copyMessages(messages []engine.Message) []engine.Message {
	copies := slices.Clone(messages)
	for i := range copies {
		copies[i].Event = journalCopy(copies[i].Event)
	}
	return copies
}

// --- random messages ---

var eventNames = []string{"red", "blue"}

// A sender makes batches of messages, most of them valid.
type sender struct {
	random *rand.Rand
	sent   []engine.Message
}

func (s *sender) batch(in *instance) []engine.Message {
	var messages []engine.Message
	if len(in.history) == 0 {
		start := started("script", 0)
		if s.random.IntN(3) == 0 {
			start.GetOrchestrationStarted().Retry = &journalpb.RetryPolicy{
				InitialInterval: int64(100 * time.Millisecond), MaxAttempts: 1 + s.random.Uint32N(3), PanicsAreFinal: s.random.IntN(4) == 0,
			}
		}
		messages = messagesOf(start)
	}
	for range s.random.IntN(5) {
		m := engine.Message{Event: s.event(in)}
		switch s.random.IntN(20) {
		case 0:
			m.Execution = 2
		case 1:
			m.Execution = 1
		case 2:
			if len(s.sent) > 0 {
				m = s.sent[s.random.IntN(len(s.sent))]
			}
		}
		messages = append(messages, m)
	}
	s.sent = append(s.sent, messages...)
	return messages
}

func (s *sender) event(in *instance) *journalpb.Event {
	switch n := s.random.IntN(100); {
	case n < 70:
		return s.completion(in)
	case n < 85:
		return external(eventNames[s.random.IntN(len(eventNames))], s.text(), s.requestID())
	case n < 88:
		return suspended("wait", "")
	case n < 95:
		return resumed("go on", "")
	case n < 98:
		return s.garbage(in)
	case n < 99:
		return cancelRequested("no reason", s.requestID())
	}
	if s.random.IntN(4) == 0 {
		return terminated("enough")
	}
	return cancelRequested("another reason", "")
}

// completion completes an open operation, or sometimes an invalid one.
func (s *sender) completion(in *instance) *journalpb.Event {
	open := openOperations(in.history)
	if len(open) == 0 {
		return s.garbage(in)
	}
	scheduled := open[s.random.IntN(len(open))]
	switch scheduled.TypeNumber() {
	case journalpb.TypeTimerCreated:
		return timerFired(scheduled.EventId, time.Unix(0, scheduled.GetTimerCreated().FireAt))
	case journalpb.TypeSubOrchestrationScheduled:
		if s.random.IntN(4) == 0 {
			return childFailed(scheduled.EventId, replay.WithCode("c", fmt.Errorf("child %s", s.text())))
		}
		return childCompleted(scheduled.EventId, s.text())
	case journalpb.TypeMessageSent:
		if s.random.IntN(4) == 0 {
			return messageRejected(scheduled.EventId, replay.ErrNotFound)
		}
		return messageDelivered(scheduled.EventId)
	}
	if s.random.IntN(4) == 0 {
		return activityFailed(scheduled.EventId, fmt.Errorf("failed %s", s.text()))
	}
	return activityCompleted(scheduled.EventId, s.text())
}

// garbage returns a message that a correct sender never sends.
func (s *sender) garbage(in *instance) *journalpb.Event {
	source := uint64(s.random.IntN(len(in.history) + 3))
	if s.random.IntN(10) == 0 {
		source = s.random.Uint64()
	}
	events := []*journalpb.Event{
		activityCompleted(source, "x"), activityFailed(source, nil), timerFired(source, begin), childCompleted(source, "x"),
		activityCompleted(source, 17), childFailed(source, replay.ErrCanceled), messageDelivered(source), operationCanceled(source), {}, {SourceEventId: source},
		started("script", 0), started("unknown", nil), completed("x"), activityScheduled("act", "x"), subscribed("red"),
		external("red", 17, ""), external("green", "x", ""), external("", nil, ""), sideEffect("pick", 1), marker("p0"),
		statusSet("x"), chained("child", "c", "x"), continuedAsNew(0, ""), orchestrationCanceled("x"),
	}
	return events[s.random.IntN(len(events))]
}

func (s *sender) text() string { return strings.Repeat("x", s.random.IntN(3)) }

func (s *sender) requestID() string {
	if s.random.IntN(2) == 0 {
		return ""
	}
	return fmt.Sprint("r", s.random.IntN(10))
}
