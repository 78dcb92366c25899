package replay_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var programSeed = flag.Uint64("program-seed", 0, "run TestRandomPrograms with this seed alone")

// TestRandomPrograms runs random orchestrations over random messages, resident
// and brought back for every turn: the histories are the same, keep the rules
// that every history keeps, and can be replayed.
func TestRandomPrograms(t *testing.T) {
	if *programSeed != 0 {
		runProgram(t, *programSeed)
		return
	}
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 200
	}
	for seed := uint64(1); seed <= seeds && !t.Failed(); seed++ {
		runProgram(t, seed)
	}
}

func FuzzPrograms(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { runProgram(t, seed) })
}

func runProgram(t *testing.T, seed uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("again with: go test ./replay -run TestRandomPrograms -program-seed %d", seed)
		}
	}()
	registry := script(t, func(ctx *replay.Context) (string, error) { return (&interpreter{t: t, seed: seed}).run(ctx) })
	resident := &instance{registry: registry}
	cold := &instance{registry: registry, cold: true}
	defer resident.drop()
	s := &sender{random: rand.New(rand.NewPCG(seed, 2))}
	now := begin
	for after := 0; after < 3 && len(resident.boundaries) < 60; {
		if resident.ended {
			after++
		}
		now = now.Add(time.Duration(s.random.IntN(2000)-100) * time.Millisecond)
		messages := s.batch(resident)
		a, err := resident.turn(now, copied(messages))
		if err != nil {
			t.Errorf("resident: %v", err)
			return
		}
		b, err := cold.turn(now, copied(messages))
		if err != nil {
			t.Errorf("cold: %v", err)
			return
		}
		if diff := cmp.Diff(a, b, protocmp.Transform(), protocmp.IgnoreFields(&journalpb.Error{}, "stack")); diff != "" {
			t.Errorf("(-resident +cold):\n%s", diff)
			return
		}
	}
	checkRules(t, resident)
	checkReplays(t, resident)
}

// copied keeps the two instances from sharing what they may write to.
func copied(messages []replay.Message) []replay.Message {
	copies := slices.Clone(messages)
	for i := range copies {
		copies[i].Event = stored(copies[i].Event)
	}
	return copies
}

// --- random orchestrations ---

// An interpreter performs random statements. Which ones depends on the seed
// and on the results so far, nothing else. It notes all that it sees, and
// returns it: whatever differs, differs in the history.
type interpreter struct {
	t     *testing.T
	seed  uint64
	notes []string
}

func (in *interpreter) run(ctx *replay.Context) (string, error) {
	b := &block{in: in, ctx: ctx, name: "m", random: rand.New(rand.NewPCG(in.seed, 1))}
	defer func() { _, _ = act.Call(ctx, "deferred") }()
	b.statements(5+b.random.IntN(20), 2)
	if b.random.IntN(8) == 0 {
		panic(strings.Join(in.notes, ";"))
	}
	return strings.Join(in.notes, ";"), nil
}

// A block is a stretch of statements in one coroutine.
type block struct {
	in     *interpreter
	ctx    *replay.Context
	name   string
	random *rand.Rand
	open   []*replay.Future[string]
	depth  int
}

func (b *block) note(format string, args ...any) {
	b.in.notes = append(b.in.notes, b.name+":"+fmt.Sprintf(format, args...))
}

func (b *block) noteResult(value any, err error) {
	if err != nil {
		value = err
	}
	b.note("%v", value)
	// Results steer what comes next.
	if len(fmt.Sprint(value))%2 == 0 {
		b.random.Uint64()
	}
}

func (b *block) must(holds bool, otherwise string) {
	if !holds {
		b.in.t.Error(otherwise)
	}
}

func (b *block) statements(n, depth int) {
	b.depth = depth
	for range n {
		b.statement()
	}
}

func (b *block) statement() {
	switch b.random.IntN(14) {
	case 0, 1, 2:
		b.open = append(b.open, b.start())
	case 3:
		b.noteResult(b.start().Await(b.ctx))
	case 4:
		b.noteResult(nil, b.ctx.Sleep(time.Duration(b.random.IntN(3))*time.Second))
	case 5:
		b.noteResult(b.event().WaitFor(b.ctx, time.Second))
	case 6:
		b.noteResult(b.start().AwaitFor(b.ctx, time.Second))
	case 7:
		if f := b.any(); f != nil {
			result, err := f.Await(b.ctx)
			b.noteResult(result, err)
			b.must(err != nil || f.Done(), "awaited and not done")
		}
	case 8:
		if f := b.any(); f != nil {
			f.Cancel(b.ctx)
		}
	case 9:
		winner, err := replay.Race(b.ctx, b.several()...)
		b.noteResult(winner, err)
		b.must(err != nil || winner >= 0, "a race without a winner")
	case 10:
		winner, err := replay.Next(b.ctx, b.several()...)
		b.noteResult(winner, err)
		b.must(err != nil || winner >= 0, "next of none")
	case 11:
		results, err := replay.All(b.ctx, b.open...)
		b.noteResult(strings.Join(results, ","), err)
	case 12:
		b.start().Cancel(b.ctx)
	case 13:
		b.note("at %v", b.ctx.Now().Sub(begin))
	}
}

// start starts something whose result is text.
func (b *block) start() *replay.Future[string] {
	switch n := b.random.IntN(8); {
	case n < 3:
		return act.Start(b.ctx, fmt.Sprint(b.random.IntN(3)))
	case n == 3:
		return child.Start(b.ctx, "c")
	case n == 4:
		return child.Start(b.ctx, "c", replay.ChildID(fmt.Sprint("child-", b.random.IntN(3))))
	case n < 7 || b.depth == 0:
		return b.event().Subscribe(b.ctx)
	}
	b.in.seed++ // each coroutine has random numbers of its own
	inner := &block{in: b.in, name: fmt.Sprint(b.name, len(b.open)), random: rand.New(rand.NewPCG(b.in.seed, 3))}
	return replay.Go(b.ctx, func(ctx *replay.Context) (string, error) {
		inner.ctx = ctx
		inner.statements(1+inner.random.IntN(4), b.depth-1)
		return "end of " + inner.name, nil
	})
}

func (b *block) event() replay.EventHandle[string] {
	return replay.Event[string](eventNames[b.random.IntN(len(eventNames))])
}

func (b *block) any() *replay.Future[string] {
	if len(b.open) == 0 {
		return nil
	}
	return b.open[b.random.IntN(len(b.open))]
}

func (b *block) several() []replay.Awaitable {
	operations := []replay.Awaitable{b.ctx.Timer(time.Duration(b.random.IntN(3)) * time.Second)}
	for range b.random.IntN(3) {
		if f := b.any(); f != nil {
			operations = append(operations, f)
		}
	}
	b.random.Shuffle(len(operations), func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
	return operations
}

// --- random messages ---

var eventNames = []string{"red", "blue"}

// A sender makes batches of messages: most of them sound, some of them not.
type sender struct {
	random *rand.Rand
	sent   []replay.Message
}

func (s *sender) batch(in *instance) []replay.Message {
	var messages []replay.Message
	if len(in.history) == 0 {
		messages = messagesOf(started("script", nil))
	}
	for range s.random.IntN(5) {
		m := replay.Message{Event: s.event(in)}
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
	case n < 90:
		return external(eventNames[s.random.IntN(len(eventNames))], s.text(), s.requestID())
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

// completion completes an open operation, or else one that is none.
func (s *sender) completion(in *instance) *journalpb.Event {
	open := openOperations(in.history)
	if len(open) == 0 {
		return s.garbage(in)
	}
	scheduled := open[s.random.IntN(len(open))]
	switch scheduled.Arm() {
	case journalpb.ArmTimerCreated:
		return timerFired(scheduled.EventId, time.Unix(0, scheduled.GetTimerCreated().FireAt))
	case journalpb.ArmSubOrchestrationScheduled:
		if s.random.IntN(4) == 0 {
			return childFailed(scheduled.EventId, replay.WithCode("c", fmt.Errorf("child %s", s.text())))
		}
		return childCompleted(scheduled.EventId, s.text())
	}
	if s.random.IntN(4) == 0 {
		return activityFailed(scheduled.EventId, fmt.Errorf("failed %s", s.text()))
	}
	return activityCompleted(scheduled.EventId, s.text())
}

// garbage is a message that no sound sender sends, or sends by mistake.
func (s *sender) garbage(in *instance) *journalpb.Event {
	source := uint64(s.random.IntN(len(in.history) + 3))
	if s.random.IntN(10) == 0 {
		source = s.random.Uint64()
	}
	events := []*journalpb.Event{
		activityCompleted(source, "x"), activityFailed(source, nil), timerFired(source, begin), childCompleted(source, "x"),
		activityCompleted(source, 17), childFailed(source, replay.ErrCanceled), gaveUp(source), {}, {SourceEventId: source},
		started("script", nil), started("unknown", nil), completed("x"), activityScheduled("act", "x"), subscribed("red"),
		external("red", 17, ""), external("green", "x", ""), external("", nil, ""),
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

// --- the rules of every history ---

// openOperations returns the schedules of activities, timers and children that
// a history neither completes nor gives up. It is written apart from the
// engine, to judge it.
func openOperations(history []*journalpb.Event) []*journalpb.Event {
	closed := make(map[uint64]bool)
	for _, event := range history {
		closed[event.SourceEventId] = true
	}
	var open []*journalpb.Event
	for _, event := range history {
		switch event.Arm() {
		case journalpb.ArmActivityScheduled, journalpb.ArmTimerCreated, journalpb.ArmSubOrchestrationScheduled:
			if !closed[event.EventId] {
				open = append(open, event)
			}
		}
	}
	return open
}

func checkRules(t *testing.T, in *instance) {
	closed := make(map[uint64]bool)
	var cancels, at int64
	for i, event := range in.history {
		arm, source := event.Arm(), event.SourceEventId
		switch {
		case event.EventId != uint64(i+1):
			t.Errorf("event_id %d at place %d", event.EventId, i+1)
		case event.Timestamp < at:
			t.Errorf("time goes back at event %d", event.EventId)
		case (arm == journalpb.ArmOrchestrationStarted) != (i == 0):
			t.Errorf("%s at event %d", event.Type(), event.EventId)
		case journalpb.Terminal(arm) && i != len(in.history)-1:
			t.Errorf("%s at event %d of %d", event.Type(), event.EventId, len(in.history))
		case source >= event.EventId, source == 0 && journalpb.Completes(arm) != 0:
			t.Errorf("event %d has source %d", event.EventId, source)
		case closed[source] && source != 0:
			t.Errorf("event %d closes %d again", event.EventId, source)
		case journalpb.Completes(arm) != 0 && in.history[source-1].Arm() != journalpb.Completes(arm):
			t.Errorf("%s for %s", event.Type(), in.history[source-1].Type())
		}
		at = event.Timestamp
		closed[source] = source != 0
		if arm == journalpb.ArmOrchestrationCancelRequested {
			cancels++
		}
	}
	if cancels > 1 {
		t.Errorf("%d requests to cancel", cancels)
	}
	last := in.history[len(in.history)-1]
	if open := openOperations(in.history); in.ended && len(open) > 0 && last.GetOrchestrationTerminated() == nil {
		t.Errorf("%s is open after the end", replay.Describe(open[0]))
	}
}
