package state

import (
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The events of tests, without ids: appendOf numbers them.

func started(name string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: &journalpb.OrchestrationStarted{
		Name: name, Version: "v1", RequestId: "r-" + name, Input: &journalpb.Payload{Data: []byte(`{"n":1}`)},
	}}}
}

func completed() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{OrchestrationCompleted: &journalpb.OrchestrationCompleted{}}}
}

func continued() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationContinuedAsNew{OrchestrationContinuedAsNew: &journalpb.OrchestrationContinuedAsNew{}}}
}

func activity() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ActivityScheduled{ActivityScheduled: &journalpb.ActivityScheduled{Name: "charge"}}}
}

func activityDone(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{Attempts: 1}}}
}

func timer(at int64) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_TimerCreated{TimerCreated: &journalpb.TimerCreated{FireAt: at}}}
}

func timerFired(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_TimerFired{TimerFired: &journalpb.TimerFired{}}}
}

func child(id string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationScheduled{SubOrchestrationScheduled: &journalpb.SubOrchestrationScheduled{Instance: id}}}
}

func childDone(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_SubOrchestrationCompleted{SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{}}}
}

func subscribed(name string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ExternalSubscribed{ExternalSubscribed: &journalpb.ExternalSubscribed{Name: name}}}
}

func arrival(name string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ExternalEvent{ExternalEvent: &journalpb.ExternalEvent{Name: name}}}
}

func cancelled(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_CancelRequested{CancelRequested: &journalpb.CancelRequested{}}}
}

// segmentOf numbers events from first on and encodes them.
func segmentOf(execution, first uint64, events ...*journalpb.Event) *journalpb.Segment {
	s := &journalpb.Segment{Execution: execution, FirstEventId: first}
	for i, e := range events {
		e = proto.CloneOf(e)
		e.EventId = first + uint64(i)
		e.Timestamp = int64(1000*execution + e.EventId)
		s.Events = append(s.Events, must(proto.Marshal(e)))
	}
	return s
}

// apply applies an append of segments at the epoch in force.
func apply(m *Machine, instance string, segments ...*journalpb.Segment) error {
	return applyAt(m, m.Epoch(), instance, segments...)
}

func applyAt(m *Machine, epoch uint64, instance string, segments ...*journalpb.Segment) error {
	_, err := m.Apply(must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{
		Append: &journalpb.Append{Instance: instance, Epoch: epoch, Segments: segments},
	}})))
	return err
}

func applyEpoch(t testing.TB, m *Machine) {
	t.Helper()
	_, err := m.Apply(must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: &journalpb.Epoch{Node: "a"}}})))
	if err != nil {
		t.Fatal(err)
	}
}

// newMachine returns a machine at epoch 1.
func newMachine(t testing.TB) *Machine {
	m := New()
	applyEpoch(t, m)
	return m
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// author writes random valid histories, keeping a simple model of its own of
// what is open.
type author struct {
	r         *rand.Rand
	instance  string
	execution uint64
	last      uint64
	running   bool
	open      map[uint64]int
	// Names are subscribed to and sent in such a way that the model needs no
	// rule: a name belongs to one subscription.
	subscribed map[uint64]string
}

func newAuthor(r *rand.Rand, instance string) *author {
	return &author{r: r, instance: instance}
}

// next returns the segments of a next valid append.
func (a *author) next() []*journalpb.Segment {
	if !a.running {
		return []*journalpb.Segment{a.begin()}
	}
	first := a.last + 1
	var events []*journalpb.Event
	for range 1 + a.r.IntN(4) {
		a.last++
		events = append(events, a.event())
	}
	switch a.r.IntN(12) {
	case 0:
		a.running = false
		a.last++
		return []*journalpb.Segment{segmentOf(a.execution, first, append(events, completed())...)}
	case 1:
		s := segmentOf(a.execution, first, append(events, continued())...)
		return []*journalpb.Segment{s, a.begin()}
	}
	return []*journalpb.Segment{segmentOf(a.execution, first, events...)}
}

func (a *author) begin() *journalpb.Segment {
	a.execution++
	a.last, a.running = 1, true
	a.open, a.subscribed = map[uint64]int{}, map[uint64]string{}
	return segmentOf(a.execution, 1, started(a.instance))
}

func (a *author) event() *journalpb.Event {
	if len(a.open) > 0 && a.r.IntN(2) == 0 {
		return a.completion()
	}
	switch a.r.IntN(4) {
	case 0:
		a.open[a.last] = journalpb.ArmActivityScheduled
		return activity()
	case 1:
		a.open[a.last] = journalpb.ArmTimerCreated
		return timer(int64(a.last) * 7)
	case 2:
		a.open[a.last] = journalpb.ArmSubOrchestrationScheduled
		return child(a.instance + "-child")
	}
	a.open[a.last] = journalpb.ArmExternalSubscribed
	a.subscribed[a.last] = string(rune('a'+a.last%26)) + a.instance
	for id, name := range a.subscribed {
		if id != a.last && name == a.subscribed[a.last] {
			delete(a.open, a.last)
			a.open[a.last] = journalpb.ArmActivityScheduled
			return activity()
		}
	}
	return subscribed(a.subscribed[a.last])
}

func (a *author) completion() *journalpb.Event {
	ids := a.openIDs()
	id := ids[a.r.IntN(len(ids))]
	kind := a.open[id]
	delete(a.open, id)
	if a.r.IntN(4) == 0 {
		return cancelled(id)
	}
	switch kind {
	case journalpb.ArmActivityScheduled:
		return activityDone(id)
	case journalpb.ArmTimerCreated:
		return timerFired(id)
	case journalpb.ArmSubOrchestrationScheduled:
		return childDone(id)
	}
	return arrival(a.subscribed[id])
}

func (a *author) openIDs() []uint64 {
	var ids []uint64
	for id := range a.open {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
