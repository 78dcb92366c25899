package engine_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// copyHistory returns the history of a copy as the journal makes it. Kept are the later external
// events.
func copyHistory(history []*journalpb.Event, source string, execution uint64, upTo int, at int64, incarnation uint64, kept ...*journalpb.ExternalEvent) []*journalpb.Event {
	var copied []*journalpb.Event
	for _, event := range history[:upTo] {
		copied = append(copied, journalCopy(event))
	}
	start := copied[0].GetOrchestrationStarted()
	from := &journalpb.CopiedPart{Instance: source, Execution: execution, Incarnation: start.Incarnation, UpTo: uint64(upTo)}
	var parts []*journalpb.CopiedPart
	for _, part := range start.Copied {
		if part.UpTo < uint64(upTo) {
			parts = append(parts, part)
			continue
		}
		last := proto.CloneOf(part)
		last.UpTo = uint64(upTo)
		from = last
		break
	}
	start.Copied, start.Incarnation, start.Parent = append(parts, from), incarnation, nil
	return append(copied, &journalpb.Event{
		EventId: uint64(upTo) + 1, Timestamp: max(at, copied[upTo-1].Timestamp),
		Body: &journalpb.Event_HistoryCopied{HistoryCopied: &journalpb.HistoryCopied{
			Source: &journalpb.CopiedPart{Instance: source, Execution: execution, UpTo: uint64(upTo)}, Inbox: kept,
		}},
	})
}

// canCopy reports whether a history can be copied up to an event.
func canCopy(history []*journalpb.Event, upTo int) bool {
	if journalpb.IsTerminal(history[upTo-1].TypeNumber()) {
		return false
	}
	for _, open := range openOperations(history[:upTo]) {
		if open.GetSubOrchestrationScheduled() != nil || open.GetMessageSent() != nil {
			return false
		}
	}
	return true
}

// TestRandomCopies copies the histories of random programs up to every event. A copy that gets what
// the source got after that event must record what the source recorded, at the same times, except
// for derived IDs.
func TestRandomCopies(t *testing.T) {
	seeds := uint64(shorttest.Cases(400))
	copies := 0
	for seed := uint64(1); seed <= seeds && !t.Failed(); seed++ {
		r := newCopySource(t, seed)
		if r == nil {
			return
		}
		calls := 0
		for _, in := range r.executions() {
			for upTo := 1; upTo <= len(in.history) && !t.Failed(); upTo++ {
				if canCopy(in.history, upTo) {
					copies++
					r.env.calls = calls + countSideEffects(in.history[:upTo])
					r.checkContinues(in, upTo)
				}
				if t.Failed() {
					t.Logf("seed %d, execution %d, copied up to %d", seed, in.execution(), upTo)
				}
			}
			calls += countSideEffects(in.history)
		}
	}
	if copies < int(seeds) {
		t.Errorf("only %d copies", copies)
	}
	t.Logf("%d copies", copies)
}

func newCopySource(t *testing.T, seed uint64) *programRun {
	r := newProgramRun(t, seed, true)
	r.env.unshifted, r.env.incarnation = true, 7
	r.in.registry = r.env.registry(t)
	if _, ok := r.runUndisturbed(seed); !ok {
		return nil
	}
	return r
}

// countSideEffects returns how often the code has called a function of SideEffect.
func countSideEffects(history []*journalpb.Event) (n int) {
	for _, event := range history {
		if label := event.GetSideEffectRecorded().GetLabel(); label == "once" || label == "fails" {
			n++
		}
	}
	return n
}

// checkContinues delivers to a copy what the source got.
func (r *programRun) checkContinues(source *instance, upTo int) {
	r.t.Helper()
	at := source.history[upTo-1].Timestamp
	in := &instance{
		registry: source.registry, logger: slog.New(slog.DiscardHandler), cold: upTo%2 == 0, number: source.execution() + 1,
		history: copyHistory(source.history, "i", source.execution(), upTo, at, 77),
	}
	defer in.evict()
	if upTo < len(source.history) {
		at = source.history[upTo].Timestamp
	}
	if _, err := in.turn(time.Unix(0, at), nil); err != nil {
		r.t.Errorf("first turn: %v", err)
		return
	}
	for _, event := range source.history[upTo:] {
		if !isInput(event) && journalpb.SchedulingType(event.TypeNumber()) == 0 {
			continue
		}
		message := journalCopy(event)
		message.SourceEventId = shifted(message.SourceEventId, upTo)
		m := engine.Message{Event: message}
		if _, err := in.turn(time.Unix(0, event.Timestamp), []engine.Message{m}); err != nil {
			r.t.Errorf("event %d of the source: %v", event.EventId, err)
			return
		}
	}
	var want []*journalpb.Event
	for _, event := range source.history[upTo:] {
		want = append(want, r.shiftedEvent(event, source.execution(), upTo))
	}
	if len(want) == 0 && upTo == len(source.history) {
		return // the source has not gone on
	}
	diff := cmp.Diff(want, in.history[upTo+1:], protocmp.Transform(), protocmp.IgnoreFields(&journalpb.Error{}, "stack", "details"))
	if diff != "" {
		r.t.Errorf("after the copy (-source +copy):\n%s", diff)
		return
	}
	in.boundaries = []int{upTo + 1, len(in.history)}
	if upTo+1 < len(in.history) {
		in.boundaries = in.boundaries[1:] // the code has recorded more since
	}
	checkReplay(r.t, in, len(in.history), in.sealedHistory(in.history))
}

func shifted(eventID uint64, upTo int) uint64 {
	if eventID > uint64(upTo) {
		return eventID + 1
	}
	return eventID
}

// shiftedEvent returns an event of the source as the copy must have it: one place later, with IDs
// derived from the copy. Errors name event IDs, too.
func (r *programRun) shiftedEvent(event *journalpb.Event, execution uint64, upTo int) *journalpb.Event {
	shiftedEvent := journalCopy(event)
	shiftedEvent.EventId, shiftedEvent.SourceEventId = shifted(event.EventId, upTo), shifted(event.SourceEventId, upTo)
	own := fmt.Sprintf("i::%s.%d.%d", journalpb.IncarnationText(77), execution+1, shiftedEvent.EventId)
	for _, start := range []*string{&shiftedChild(shiftedEvent).Instance, &shiftedChain(shiftedEvent).Instance} {
		if *start == fmt.Sprintf("i::%s.%d.%d", journalpb.IncarnationText(7), execution, event.EventId) {
			*start = own
		}
	}
	return shiftedEvent
}

func shiftedChild(event *journalpb.Event) *journalpb.SubOrchestrationScheduled {
	if child := event.GetSubOrchestrationScheduled(); child != nil {
		return child
	}
	return new(journalpb.SubOrchestrationScheduled)
}

func shiftedChain(event *journalpb.Event) *journalpb.OrchestrationChained {
	if chained := event.GetOrchestrationChained(); chained != nil {
		return chained
	}
	return new(journalpb.OrchestrationChained)
}

// TestRandomCopies_KeptEvents continues copies that keep later external events, up to every event,
// with random messages, in memory and evicted after every turn. Both must record the same, and what
// the journal accepts.
func TestRandomCopies_KeptEvents(t *testing.T) {
	seeds := uint64(shorttest.Cases(120))
	kept, late := 0, 0
	for seed := uint64(1); seed <= seeds && !t.Failed(); seed++ {
		r := newProgramRun(t, seed, true)
		r.env.incarnation = 7
		if _, ok := r.runUndisturbed(seed); !ok {
			return
		}
		for _, in := range r.executions() {
			for upTo := 1; upTo <= len(in.history) && !t.Failed(); upTo++ {
				events := laterEvents(in.history[upTo:])
				if !canCopy(in.history, upTo) || len(events) == 0 {
					continue
				}
				kept += len(events)
				calls := r.env.calls
				var histories [2][]*journalpb.Event
				for i := range histories {
					r.env.calls = calls
					histories[i] = r.continueRandomly(seed, in, upTo, i == 1, events)
				}
				if diff := cmp.Diff(histories[0], histories[1], protocmp.Transform(), protocmp.IgnoreFields(&journalpb.Error{}, "stack")); diff != "" {
					t.Errorf("seed %d, execution %d, copied up to %d (-in memory +evicted):\n%s", seed, in.execution(), upTo, diff)
				}
				n, refused := foldOperations(histories[0])
				if late += n; refused != "" {
					t.Errorf("seed %d, execution %d, copied up to %d: the journal rejects %s", seed, in.execution(), upTo, refused)
				}
			}
		}
	}
	if kept < int(seeds) || late == 0 {
		t.Errorf("only %d events were kept, and %d canceled subscriptions had got one", kept, late)
	}
	t.Logf("%d events kept, %d canceled subscriptions had got one", kept, late)
}

func laterEvents(history []*journalpb.Event) (events []*journalpb.ExternalEvent) {
	for _, event := range history {
		if external := event.GetExternalEvent(); external != nil {
			events = append(events, external)
		}
	}
	return events
}

// foldOperations applies the rules of the journal for open operations. It returns the first event
// that breaks them, and how many canceled subscriptions had got an event.
func foldOperations(history []*journalpb.Event) (late int, refused string) {
	open, buffered := make(map[uint64]string), make(map[string]int)
	var subscriptions []uint64 // ever made, in order
	deliver := func(events ...*journalpb.ExternalEvent) {
		for _, event := range events {
			oldest := slices.IndexFunc(subscriptions, func(id uint64) bool { return open[id] == event.Name })
			if oldest < 0 {
				buffered[event.Name]++
			} else {
				delete(open, subscriptions[oldest])
			}
		}
	}
	for _, event := range history {
		_, isOpen := open[event.SourceEventId]
		canceled, subscribed := event.GetCancelRequested(), event.GetExternalSubscribed()
		switch {
		case canceled.GetEventName() != "" && !isOpen:
			late++
			deliver(&journalpb.ExternalEvent{Name: canceled.EventName})
		case canceled != nil || journalpb.SchedulingType(event.TypeNumber()) != 0:
			if !isOpen {
				return late, engine.Describe(event)
			}
			delete(open, event.SourceEventId)
		case subscribed != nil && buffered[subscribed.Name] > 0:
			buffered[subscribed.Name]--
		case subscribed != nil:
			open[event.EventId] = subscribed.Name
			subscriptions = append(subscriptions, event.EventId)
		case journalpb.OpensOperation(event.TypeNumber()):
			open[event.EventId] = ""
		case event.GetExternalEvent() != nil:
			deliver(event.GetExternalEvent())
		}
		deliver(event.GetHistoryCopied().GetInbox()...)
		deliver(event.GetOrchestrationStarted().GetInbox()...)
	}
	return late, ""
}

// continueRandomly returns the history of a copy that got random messages.
func (r *programRun) continueRandomly(seed uint64, source *instance, upTo int, cold bool, kept []*journalpb.ExternalEvent) []*journalpb.Event {
	now := begin.Add(time.Hour)
	in := &instance{
		registry: source.registry, logger: slog.New(slog.DiscardHandler), cold: cold, number: source.execution() + 1,
		history: copyHistory(source.history, "i", source.execution(), upTo, now.UnixNano(), 77, kept...),
	}
	defer in.evict()
	s := &sender{random: rand.New(rand.NewPCG(seed, 10))}
	for turn := range 12 {
		var messages []engine.Message
		if turn > 0 {
			messages = s.batch(in)
		}
		now = now.Add(time.Second)
		if _, err := in.turn(now, messages); err != nil {
			r.t.Errorf("seed %d, execution %d, copied up to %d, cold %t, turn %d: %v", seed, source.execution(), upTo, cold, turn, err)
			break
		}
		if in.ended {
			break
		}
	}
	checkReplay(r.t, in, len(in.history), in.sealedHistory(in.history))
	return in.history
}

// The values and IDs of the copied part are those of the source, and those after it are not; a copy
// of a copy has three parts.
func TestCopy_Identity(t *testing.T) {
	var drawn []string
	registry := script(t, func(ctx *replay.Context) (string, error) {
		drawn = nil
		for {
			drawn = append(drawn, fmt.Sprintf("%s/%d %d %s", ctx.InstanceID(), ctx.Execution(), ctx.Random().IntN(1_000_000), ctx.UUID()))
			if err := child.Chain(ctx, "x"); err != nil {
				return "", err
			}
			if _, err := act.Call(ctx, strings.Join(drawn, ",")); err != nil {
				return "", err
			}
		}
	})
	complete := func(history []*journalpb.Event, instance string, execution uint64) ([]*journalpb.Event, []string) {
		t.Helper()
		x := engine.NewExecution(instance, execution, registry, nil)
		defer x.Evict()
		if err := x.Replay(eventSeq(history)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			turn, err := x.Turn(begin, nil)
			if err != nil {
				t.Fatal(err)
			}
			history = append(history, turn.Events...)
			turn, err = x.Turn(begin, messagesOf(activityCompleted(history[len(history)-1].EventId, "done")))
			if err != nil {
				t.Fatal(err)
			}
			history = append(history, turn.Events...)
		}
		return history, drawn
	}
	start := journalCopy(started("script", nil))
	start.EventId, start.Timestamp = 1, begin.UnixNano()
	start.GetOrchestrationStarted().Incarnation = 5
	first, ofFirst := complete([]*journalpb.Event{start}, "a", 1)
	// Event 4 is the completion of the first call, event 7 that of the second.
	second, ofSecond := complete(copyHistory(first, "a", 1, 4, begin.UnixNano(), 6), "a", 2)
	if ofSecond[0] != ofFirst[0] || ofSecond[1] == ofFirst[1] || !strings.HasPrefix(ofSecond[1], "a/2 ") {
		t.Errorf("drawn by the source:\n%q\nby the copy:\n%q", ofFirst, ofSecond)
	}
	// The marker is event 5, and event 8 the second completion.
	third, ofThird := complete(copyHistory(second, "a", 2, 8, begin.UnixNano(), 7), "b", 1)
	if ofThird[0] != ofFirst[0] || ofThird[1] != ofSecond[1] || ofThird[2] == ofSecond[2] || !strings.HasPrefix(ofThird[2], "b/1 ") {
		t.Errorf("drawn by the source:\n%q\nby the copy:\n%q", ofSecond, ofThird)
	}
	var chains []string
	for _, event := range third {
		if chained := event.GetOrchestrationChained(); chained != nil {
			chains = append(chains, chained.Instance)
		}
	}
	want := []string{"a::0-5.1.2", "a::0-6.2.6", "b::0-7.1.10"}
	for i := range want {
		if chains[i] != want[i] {
			t.Errorf("derived IDs %q, want %q", chains, want)
		}
	}
	// A rerun draws new values from the first one on.
	if _, ofRerun := complete(copyHistory(first, "a", 1, 1, begin.UnixNano(), 8), "a", 3); ofRerun[0] == ofFirst[0] {
		t.Errorf("a rerun has drawn %q again", ofRerun[0])
	}
}

// The time of the marker is that of the code that runs because of the last copied event, and the
// deadline counts from it.
func TestCopy_TimeAndDeadline(t *testing.T) {
	var seen time.Time
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := act.Call(ctx, "a"); err != nil {
			return "", err
		}
		seen = ctx.Now()
		return act.Call(ctx, "b")
	})
	start := started("script", nil)
	start.GetOrchestrationStarted().Incarnation, start.GetOrchestrationStarted().Deadline = 5, begin.Add(time.Hour).UnixNano()
	x := engine.NewExecution("a", 1, registry, nil)
	turn, err := x.Turn(begin, messagesOf(start))
	if err != nil {
		t.Fatal(err)
	}
	more, err := x.Turn(begin.Add(time.Minute), messagesOf(activityCompleted(3, "done")))
	if err != nil {
		t.Fatal(err)
	}
	x.Evict()
	later := begin.Add(10 * time.Hour)
	history := copyHistory(append(turn.Events, more.Events...), "a", 1, 4, later.UnixNano(), 6)
	history[4].GetHistoryCopied().Deadline = later.Add(time.Hour).UnixNano()
	y := engine.NewExecution("a", 2, registry, nil)
	defer y.Evict()
	if err := y.Replay(eventSeq(history)); err != nil {
		t.Fatal(err)
	}
	turn, err = y.Turn(later, messagesOf(timerFired(2, begin.Add(time.Hour))))
	if err != nil {
		t.Fatal(err)
	}
	if !seen.Equal(later) {
		t.Errorf("the code after the copy has seen %v, want %v", seen, later)
	}
	var got []string
	for _, event := range turn.Events {
		got = append(got, engine.Describe(event))
	}
	want := []string{`ActivityScheduled name="act" input="b"`, "CancelRequested source_event_id=2", "TimerCreated fire_at=2026-01-01T11:00:00Z"}
	if diff := cmp.Diff(want, got); diff != "" || turn.Dispositions[0] != engine.Dropped {
		t.Errorf("after the copy, with the old deadline %v (-want +got):\n%s", turn.Dispositions, diff)
	}
}

// A source of random numbers that the code keeps goes on with the numbers of the copy.
func TestCopy_KeptRandom(t *testing.T) {
	var drawn []int
	registry := script(t, func(ctx *replay.Context) (string, error) {
		drawn = nil
		for random := ctx.Random(); ; {
			drawn = append(drawn, random.IntN(1_000_000))
			if _, err := replay.Event[string]("red").Wait(ctx); err != nil {
				return "", err
			}
		}
	})
	x, turn := startScript(t, registry, external("red", "first", ""), external("red", "second", ""))
	x.Evict()
	source := drawn
	y := engine.NewExecution("i", 2, registry, nil)
	defer y.Evict()
	if err := y.Replay(eventSeq(copyHistory(turn.Events, "i", 1, 3, begin.UnixNano(), 6))); err != nil {
		t.Fatal(err)
	}
	if len(source) != 3 || len(drawn) != 2 || drawn[0] != source[0] || drawn[1] == source[1] {
		t.Errorf("drawn by the source: %d, by the copy: %d", source, drawn)
	}
}

// A repetition of an event that was kept is recognized.
func TestCopy_KeptEventIsKnown(t *testing.T) {
	var got []string
	registry := script(t, func(ctx *replay.Context) (string, error) {
		got = nil
		for {
			text, err := replay.Event[string]("red").Wait(ctx)
			if err != nil {
				return "", err
			}
			got = append(got, text)
		}
	})
	x, turn := startScript(t, registry, external("red", "first", "r1"), external("red", "second", "r2"))
	x.Evict()
	var kept []*journalpb.ExternalEvent
	for _, event := range turn.Events {
		if e := event.GetExternalEvent(); e != nil {
			kept = append(kept, e)
		}
	}
	y := engine.NewExecution("i", 2, registry, nil)
	defer y.Evict()
	if err := y.Replay(eventSeq(copyHistory(turn.Events, "i", 1, 1, begin.UnixNano(), 6, kept...))); err != nil {
		t.Fatal(err)
	}
	after, err := y.Turn(begin, messagesOf(external("red", "second", "r2"), external("red", "third", "r3")))
	if err != nil || !slices.Equal(after.Dispositions, []engine.Disposition{engine.Dropped, engine.Recorded}) || !slices.Equal(got, []string{"first", "second", "third"}) {
		t.Errorf("%v, %v; the code has received %q", after, err, got)
	}
}

// Kept events arrive at once: if they counted, the code would continue as new before it receives
// them.
func TestCopy_KeptEventsDoNotContinueAsNew(t *testing.T) {
	should, received := false, 0
	registry := script(t, func(ctx *replay.Context) (string, error) {
		for {
			if _, err := replay.Event[string]("red").Wait(ctx); err != nil {
				return "", err
			}
			should, received = ctx.ShouldContinueAsNew(), received+1
		}
	})
	x, turn := startScript(t, registry)
	x.Evict()
	large := slices.Repeat([]*journalpb.Event{external("red", strings.Repeat("x", 1_000_000), "")}, 9)
	y := engine.NewExecution("i", 2, registry, nil)
	defer y.Evict()
	if err := y.Replay(eventSeq(copyHistory(turn.Events, "i", 1, 1, begin.UnixNano(), 6, laterEvents(large)...))); err != nil {
		t.Fatal(err)
	}
	if _, err := y.Turn(begin, nil); err != nil || received != len(large) || should {
		t.Errorf("after %d kept events: %v, %t", received, err, should)
	}
	var messages []engine.Message
	for _, event := range large {
		messages = append(messages, engine.Message{Event: journalCopy(event)})
	}
	if _, err := y.Turn(begin, messages); err != nil || !should {
		t.Errorf("after another event: %v, %t", err, should)
	}
	if size := y.Size(); size.Bytes < 18_000_000 {
		t.Errorf("%d bytes", size.Bytes)
	}
}

// A timer of a step that the copy has cut counts from the end of the copy.
func TestCopy_CutsStepWithTimer(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		act.Start(ctx, "a")
		return "", ctx.Sleep(time.Minute)
	})
	x, turn := startScript(t, registry)
	x.Evict()
	y := engine.NewExecution("i", 2, registry, nil)
	defer y.Evict()
	later := begin.Add(time.Hour)
	if err := y.Replay(eventSeq(copyHistory(turn.Events, "i", 1, 2, later.UnixNano(), 6))); err != nil {
		t.Fatal(err)
	}
	after, err := y.Turn(later, nil)
	if err != nil || len(after.Events) != 1 || after.Events[0].GetTimerCreated().GetFireAt() != later.Add(time.Minute).UnixNano() {
		t.Errorf("after the copy: %v, %v; want a timer a minute later", after, err)
	}
}

// A patch whose marker the source has after the copied events is still patched.
func TestCopy_CutsStepWithPatch(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		act.Start(ctx, "a")
		if replay.Patched(ctx, "p") {
			return act.Call(ctx, "new")
		}
		return act.Call(ctx, "old")
	})
	x, turn := startScript(t, registry)
	x.Evict()
	y := engine.NewExecution("i", 2, registry, nil)
	defer y.Evict()
	if err := y.Replay(eventSeq(copyHistory(turn.Events, "i", 1, 2, begin.UnixNano(), 6))); err != nil {
		t.Fatal(err)
	}
	after, err := y.Turn(begin, nil)
	if err != nil || len(after.Events) != 2 || after.Events[0].GetSideEffectRecorded() == nil {
		t.Errorf("after the copy: %v, %v; want the marker and the new call", after, err)
	}
}
