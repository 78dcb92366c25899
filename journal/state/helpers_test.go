package state

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
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

func externalEvent(name string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ExternalEvent{ExternalEvent: &journalpb.ExternalEvent{Name: name}}}
}

func canceled(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_CancelRequested{CancelRequested: &journalpb.CancelRequested{}}}
}

func chained(id string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationChained{OrchestrationChained: &journalpb.OrchestrationChained{
		Name: "next", Instance: id, Input: &journalpb.Payload{Data: []byte(`{"n":2}`)},
	}}}
}

func suspended() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationSuspended{OrchestrationSuspended: &journalpb.OrchestrationSuspended{}}}
}

func resumed() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{OrchestrationResumed: &journalpb.OrchestrationResumed{}}}
}

func statusSet() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{}}}
}

// startedBy is the start of a child.
func startedBy(instance string, execution, event uint64) *journalpb.Event {
	e := started("child")
	e.GetOrchestrationStarted().Parent = &journalpb.OperationRef{Instance: instance, Execution: execution, EventId: event}
	return e
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

// applyAppend applies an append of segments at the current epoch.
func applyAppend(m *Machine, instance string, segments ...*journalpb.Segment) error {
	return applyAppendAt(m, m.Epoch(), instance, segments...)
}

func applyAppendAt(m *Machine, epoch uint64, instance string, segments ...*journalpb.Segment) error {
	_, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{
		Append: &journalpb.Append{Instance: instance, Epoch: epoch, Segments: segments},
	}})))
	return err
}

// applyAttempt applies an Attempt at the current epoch.
func applyAttempt(m *Machine, instance string, execution, event uint64, failed uint32) error {
	return applyAttemptAt(m, m.Epoch(), instance, execution, event, failed)
}

func applyAttemptAt(m *Machine, epoch uint64, instance string, execution, event uint64, failed uint32) error {
	known, _ := m.Instance(instance)
	_, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: &journalpb.Attempt{
		Ref:   &journalpb.OperationRef{Instance: instance, Execution: execution, EventId: event, Incarnation: known.GetIncarnation()},
		Epoch: epoch, Failed: failed, LastError: &journalpb.Error{Message: "no answer"}, NextAt: int64(failed) * 100,
	}}})))
	return err
}

// purge applies a Purge at the current epoch.
func purge(m *Machine, instances ...string) (purged uint64, err error) {
	return purgeAt(m, m.Epoch(), instances...)
}

func purgeAt(m *Machine, epoch uint64, instances ...string) (purged uint64, err error) {
	return applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Purge{
		Purge: &journalpb.Purge{Epoch: epoch, Instances: instances},
	}})))
}

// applyCondition sets a stall condition at a source position, or removes it if the position is
// empty.
func applyCondition(m *Machine, epoch uint64, instance string, incarnation, execution, last uint64, stalled string) error {
	c := &journalpb.SetCondition{Instance: instance, Epoch: epoch, Incarnation: incarnation, Execution: execution, LastEventId: last}
	if stalled != "" {
		c.Condition = &journalpb.Condition{Kind: journalpb.ConditionKind_CONDITION_KIND_STALLED, Source: stalled}
	}
	record, err := proto.Marshal(&journalpb.Record{Command: &journalpb.Record_SetCondition{SetCondition: c}})
	if err == nil {
		_, err = applyRecord(m, record)
	}
	return err
}

func applyEpoch(t testing.TB, m *Machine) {
	t.Helper()
	_, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: &journalpb.Epoch{Node: "a"}}})))
	if err != nil {
		t.Fatal(err)
	}
}

// applyRecord applies a record as an entry of its own.
func applyRecord(m *Machine, record []byte) (uint64, error) {
	if records := recordedLogs[m]; records != nil {
		*records = append(*records, record)
	}
	outcome, err := m.Apply(record)
	index, _ := m.Applied()
	return outcome, errors.Join(err, m.Advance(index+1, 1))
}

// newMachineFunc makes a machine at epoch 1.
type newMachineFunc func(testing.TB) *Machine

// testBothStorages runs a test with machines in memory, and with machines in a store that keep next
// to nothing in memory.
func testBothStorages(t *testing.T, test func(t *testing.T, newMachine newMachineFunc)) {
	t.Run("in memory", func(t *testing.T) { test(t, newMachine) })
	t.Run("in a store", func(t *testing.T) { test(t, newStoredMachine) })
}

func newMachine(t testing.TB) *Machine {
	m := New()
	applyEpoch(t, m)
	return m
}

func newStoredMachine(t testing.TB) *Machine {
	m := openMachine(t, tinyOptions(vfs.NewMem()))
	applyEpoch(t, m)
	return m
}

// machineOptions are the options of a machine and of its store.
type machineOptions struct {
	pebblestore.Options
	machine Options
}

func (o machineOptions) open() (*Machine, error) {
	s, err := pebblestore.Open(o.Options)
	if err != nil {
		return nil, err
	}
	return Open(testStore{s, o.FS}, o.machine)
}

// testStore is a store whose files are accessible.
type testStore struct {
	*pebblestore.Store
	fs vfs.FS
}

func testStoreOf(m *Machine) testStore { return m.store.Store.(testStore) }

// tinyOptions evict nearly everything at once.
func tinyOptions(fs vfs.FS) machineOptions {
	return machineOptions{
		pebblestore.Options{FS: fs, Dir: "state", CacheBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)},
		Options{MemoryBytes: 1, FlushBytes: 400},
	}
}

// openMachine opens a machine that is closed at the end of the test.
func openMachine(t testing.TB, o machineOptions) *Machine {
	t.Helper()
	m, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Err(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return m
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
