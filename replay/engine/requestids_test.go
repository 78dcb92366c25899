package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// entity continues as new after as many ticks as its input says.
var entity = replay.Orchestration[int, int]("entity")

func entityBody(ctx *replay.Context, ticks int) (int, error) {
	for range ticks {
		if _, err := tick.Wait(ctx); err != nil {
			return 0, err
		}
	}
	return 0, entity.ContinueAsNew(ctx, ticks)
}

// A repeatedCall models a call: the journal index that its sender had seen when it was first sent,
// and the index at which it was recorded, if any.
type repeatedCall struct {
	id              string
	first, recorded uint64
}

// A callModel sends calls to an entity, some of them repeatedly, and knows which of them the
// histories contain.
type callModel struct {
	*testing.T
	random    *rand.Rand
	registry  *engine.Registry
	execution *engine.Execution
	number    uint64
	history   []*journalpb.Event
	applied   uint64
	calls     []*repeatedCall
	waiting   []*repeatedCall
	order     []uint64 // the indexes of recorded calls
	forgotten int
}

// deliver delivers messages to the entity in one turn and checks their dispositions.
func (m *callModel) deliver(batch []*repeatedCall) {
	messages := make([]engine.Message, len(batch))
	for i, call := range batch {
		messages[i] = engine.Message{
			Event: external("tick", 1, call.id), Retried: true, FirstIndex: call.first,
		}
	}
	m.execution.SetAppliedIndex(m.applied)
	turn, err := m.execution.Turn(begin, messages)
	if err != nil {
		m.Fatal(err)
	}
	at := m.applied + 1 + m.random.Uint64N(3)
	if len(turn.Events) > 0 {
		m.applied = at
	}
	m.waiting = nil
	for i, disposition := range turn.Dispositions {
		m.check(batch[i], disposition, at)
	}
	m.history = append(m.history, turn.Events...)
	if successor := m.execution.Successor(); successor != nil {
		m.execution.Evict()
		m.number++
		m.history = []*journalpb.Event{journalCopy(successor)}
		m.load()
	}
}

func (m *callModel) check(call *repeatedCall, disposition engine.Disposition, at uint64) {
	switch disposition {
	case engine.Recorded:
		if call.recorded != 0 {
			m.Fatalf("%s is recorded at %d and at %d", call.id, call.recorded, at)
		}
		call.recorded = at
		m.order = append(m.order, at)
	case engine.Dropped:
		if call.recorded == 0 {
			m.Fatalf("%s is dropped and was not recorded", call.id)
		}
	case engine.Postponed:
		m.waiting = append(m.waiting, call)
	case engine.Forgotten:
		m.forgotten++
		since := 0
		for i := len(m.order) - 1; i >= 0 && m.order[i] > call.first; i-- {
			since++
		}
		if since < 256-2*16 {
			m.Fatalf("%s, first sent at %d, is forgotten after %d others, in execution %d at %d", call.id, call.first, since, m.number, m.applied)
		}
	default:
		m.Fatalf("%s: disposition %d", call.id, disposition)
	}
}

// load loads the execution into memory, as another leader does.
func (m *callModel) load() {
	m.execution = engine.NewExecution("e", m.number, m.registry, nil)
	m.execution.SetAppliedIndex(m.applied)
	if err := m.execution.Replay(eventSeq(m.history)); err != nil {
		m.Fatal(err)
	}
}

// batch returns the calls of a turn: new and repeated ones.
func (m *callModel) batch() []*repeatedCall {
	batch := m.waiting
	for range 1 + m.random.IntN(6) {
		if len(m.calls) > 0 && m.random.IntN(3) == 0 {
			offset := min(len(m.calls), 1+m.random.IntN([]int{10, 300, 1000}[m.random.IntN(3)]))
			batch = append(batch, m.calls[len(m.calls)-offset])
			continue
		}
		call := &repeatedCall{id: fmt.Sprintf("c%d", len(m.calls)), first: m.applied - min(m.applied-1, m.random.Uint64N(5))}
		m.calls = append(m.calls, call)
		if m.random.IntN(5) > 0 { // otherwise it is lost the first time
			batch = append(batch, call)
		}
	}
	return batch
}

// However often the entity continues as new, each call is recorded at most once. None is forgotten
// unless more than two hundred others were recorded since.
func TestRequestIDs_RetryNeverRecordedTwice(t *testing.T) {
	for _, ticks := range []int{1, 3, 40, 700} {
		for seed := range uint64(shorttest.SequentialRounds(5)) {
			m := &callModel{T: t, random: rand.New(rand.NewPCG(seed, uint64(ticks))), registry: registryOf(t, entity.Bind(entityBody)), number: 1, applied: 10}
			m.execution = engine.NewExecution("e", 1, m.registry, nil)
			m.execution.SetAppliedIndex(m.applied)
			start := started("entity", ticks)
			start.GetOrchestrationStarted().RequestHorizon = 1
			turn, err := m.execution.Turn(begin, messagesOf(start))
			if err != nil {
				t.Fatal(err)
			}
			m.history = turn.Events
			for range 800 {
				m.deliver(m.batch())
			}
			m.execution.Evict()
			if ticks < 256 && m.forgotten == 0 {
				t.Errorf("%d ticks, seed %d: nothing was forgotten", ticks, seed)
			}
		}
	}
}

// A leader that replays a long execution knows only that its inputs were recorded before, which is
// enough.
func TestRequestIDs_RetryAfterLeaderChange(t *testing.T) {
	for seed := range uint64(shorttest.SequentialRounds(5)) {
		m := &callModel{T: t, random: rand.New(rand.NewPCG(seed, 0)), registry: registryOf(t, entity.Bind(entityBody)), number: 1, applied: 10}
		m.history = withEventIDs(started("entity", 3))
		m.history[0].GetOrchestrationStarted().RequestHorizon = 1
		m.load()
		for range 500 {
			m.deliver(m.batch())
			if m.random.IntN(3) == 0 {
				m.execution.Evict()
				m.load()
			}
		}
		m.execution.Evict()
	}
}

// An execution carries over all inputs of its last turn, because their index is not known yet.
func TestRequestIDs_LastTurnCarriedOver(t *testing.T) {
	x := engine.NewExecution("e", 1, registryOf(t, entity.Bind(entityBody)), nil)
	defer x.Evict()
	x.SetAppliedIndex(7)
	messages := []*journalpb.Event{started("entity", 600)}
	for n := range 600 {
		messages = append(messages, external("tick", n, fmt.Sprintf("r%d", n)))
	}
	if _, err := x.Turn(begin, messagesOf(messages...)); err != nil {
		t.Fatal(err)
	}
	next := x.Successor().GetOrchestrationStarted()
	if len(next.RequestIds) != 600 || len(next.RequestIdMarks) != 0 || next.RequestHorizon != 7 {
		t.Errorf("%d IDs, marks %v, horizon %d", len(next.RequestIds), next.RequestIdMarks, next.RequestHorizon)
	}
}

// The marks are small compared with the IDs.
func TestRequestIDs_IndexMarksAreSmall(t *testing.T) {
	m := &callModel{T: t, random: rand.New(rand.NewPCG(1, 1)), registry: registryOf(t, entity.Bind(entityBody)), number: 1, applied: 1 << 40}
	m.history = withEventIDs(started("entity", 1))
	m.load()
	for n := range 600 {
		m.deliver([]*repeatedCall{{id: fmt.Sprintf("%026d", n), first: m.applied}})
	}
	defer m.execution.Evict()
	base := m.history[0].GetOrchestrationStarted()
	all := proto.Size(base)
	marks := len(base.RequestIdMarks)
	base = proto.CloneOf(base)
	base.RequestIdMarks = nil
	if share := float64(all-proto.Size(base)) / float64(all); share > 0.04 || marks == 0 {
		t.Errorf("%d marks take %.1f%% of %d bytes", marks, 100*share, all)
	}
	if !slices.IsSortedFunc(m.history[0].GetOrchestrationStarted().RequestIdMarks, func(a, b *journalpb.RequestIdMark) int { return int(a.Index) - int(b.Index) }) {
		t.Error("the indexes of the marks decrease")
	}
}

// An execution that began before horizons were recorded has none. The leader that loads it uses its
// applied index.
func TestRequestIDs_MissingHorizonIsAppliedIndex(t *testing.T) {
	for name, c := range map[string]struct {
		applied, first uint64
		want           engine.Disposition
	}{
		"sent before":                   {10, 9, engine.Forgotten},
		"sent since":                    {10, 10, engine.Recorded},
		"the protocol does not have it": {0, 0, engine.Recorded},
	} {
		t.Run(name, func(t *testing.T) {
			x := engine.NewExecution("e", 2, registryOf(t, entity.Bind(entityBody)), nil)
			defer x.Evict()
			history := withEventIDs(started("entity", 1))
			history[0].GetOrchestrationStarted().RequestIds = []string{"known"}
			if err := x.Replay(eventSeq(history)); err != nil {
				t.Fatal(err)
			}
			x.SetAppliedIndex(c.applied)
			turn, err := x.Turn(begin, []engine.Message{
				{Event: external("tick", 1, "known"), Retried: true, FirstIndex: c.first},
				{Event: external("tick", 1, "unknown"), Retried: true, FirstIndex: c.first},
			})
			if err != nil || !slices.Equal(turn.Dispositions, []engine.Disposition{engine.Dropped, c.want}) {
				t.Errorf("%v, %v", turn.Dispositions, err)
			}
			if c.want == engine.Recorded {
				next := x.Successor().GetOrchestrationStarted()
				if next.RequestHorizon != c.applied || (len(next.RequestIdMarks) > 0) != (c.applied > 0) {
					t.Errorf("the next begins with %v", next)
				}
			}
		})
	}
}

// An event that arrives in one turn with the start of an instance is recorded, even if the call is
// repeated and the instance could not know an earlier attempt.
func TestRequestIDs_RetriedEventSentWithStart(t *testing.T) {
	x := engine.NewExecution("e", 1, registryOf(t, entity.Bind(entityBody)), nil)
	defer x.Evict()
	x.SetAppliedIndex(10)
	start := started("entity", 3)
	start.GetOrchestrationStarted().RequestId, start.GetOrchestrationStarted().RequestHorizon = "r", 10
	turn, err := x.Turn(begin, []engine.Message{
		{Event: start},
		{Event: external("tick", 1, "another"), Retried: true, FirstIndex: 5},
		{Event: external("tick", 1, "r"), Retried: true, FirstIndex: 5},
	})
	if err != nil || !slices.Equal(turn.Dispositions, []engine.Disposition{engine.Recorded, engine.Forgotten, engine.Recorded}) {
		t.Errorf("%v, %v", turn.Dispositions, err)
	}
}
