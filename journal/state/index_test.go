package state

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// step is one append of a scenario, or another operation.
type step struct {
	instance string
	segments []*journalpb.Segment
	do       func(*Machine) error
	want     []string // after the step
}

// playSteps applies steps and compares the result of show after each.
func playSteps(t *testing.T, m *Machine, read func(*Machine) []string, steps []step) {
	t.Helper()
	for i, s := range steps {
		var err error
		if s.do != nil {
			err = s.do(m)
		} else {
			err = applyAppend(m, s.instance, s.segments...)
		}
		if err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
		if got := read(m); !slices.Equal(got, s.want) {
			t.Errorf("after step %d: %q, want %q", i+1, got, s.want)
		}
	}
}

func oneSegment(execution, first uint64, events ...*journalpb.Event) []*journalpb.Segment {
	return []*journalpb.Segment{segmentOf(execution, first, events...)}
}

func purgeFunc(ids ...string) func(*Machine) error {
	return func(m *Machine) error {
		purged, err := purge(m, ids...)
		if err == nil && purged != uint64(len(ids)) {
			return fmt.Errorf("%d of %v purged", purged, ids)
		}
		return err
	}
}

func idsOf(instances iter.Seq[*journalpb.Instance]) []string {
	var ids []string
	for in := range instances {
		ids = append(ids, in.Instance)
	}
	return ids
}

func TestInstance_ShowsLatestExecution(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		tagged := started("a")
		tagged.GetOrchestrationStarted().Tags = map[string]string{"customer": "17"}
		tagged.GetOrchestrationStarted().Summary = "17 pears"
		read := func(m *Machine) []string {
			in, _ := m.Instance("a")
			return []string{fmt.Sprint(in.Suspended, in.StatusEventId, in.Tags, in.Summary)}
		}
		playSteps(t, newMachine(t), read, []step{
			{instance: "a", segments: oneSegment(1, 1, tagged), want: []string{"false 0 map[customer:17]17 pears"}},
			{instance: "a", segments: oneSegment(1, 2, suspended(), statusSet()), want: []string{"true 3 map[customer:17]17 pears"}},
			{instance: "a", segments: oneSegment(1, 4, suspended(), statusSet(), resumed()), want: []string{"false 5 map[customer:17]17 pears"}},
			{instance: "a", segments: oneSegment(1, 7, suspended()), want: []string{"true 5 map[customer:17]17 pears"}},
			{instance: "a", segments: []*journalpb.Segment{segmentOf(1, 8, continued()), segmentOf(2, 1, started("a"))}, want: []string{"false 0 map[]"}},
			{instance: "a", segments: oneSegment(2, 2, suspended(), statusSet(), completed()), want: []string{"false 3 map[]"}},
			{instance: "a", segments: oneSegment(3, 1, tagged), want: []string{"false 0 map[customer:17]17 pears"}},
		})
	})
}

func TestInstance_TagsAreCopied(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		tagged := started("a")
		tagged.GetOrchestrationStarted().Tags = map[string]string{"k": "v"}
		if err := applyAppend(m, "a", segmentOf(1, 1, tagged)); err != nil {
			t.Fatal(err)
		}
		in, _ := m.Instance("a")
		clear(in.Tags)
		if in, _ = m.Instance("a"); !maps.Equal(in.Tags, map[string]string{"k": "v"}) {
			t.Errorf("tags %v", in.Tags)
		}
	})
}

func TestUnbegun_YieldsInstancesWithoutTurn(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		playSteps(t, newMachine(t), func(m *Machine) []string { return idsOf(m.Unbegun()) }, []step{
			{instance: "b", segments: oneSegment(1, 1, started("b")), want: []string{"b"}},
			{instance: "a", segments: oneSegment(1, 1, started("a")), want: []string{"a", "b"}},
			{instance: "c", segments: oneSegment(1, 1, started("c"), activity()), want: []string{"a", "b"}},
			{instance: "a", segments: oneSegment(1, 2, completed()), want: []string{"b"}},
			{instance: "c", segments: []*journalpb.Segment{segmentOf(1, 3, continued()), segmentOf(2, 1, started("c"))}, want: []string{"b", "c"}},
			{instance: "c", segments: []*journalpb.Segment{segmentOf(2, 2, continued()), segmentOf(3, 1, started("c"))}, want: []string{"b", "c"}},
			{instance: "c", segments: oneSegment(3, 2, timer(1)), want: []string{"b"}},
			{instance: "a", segments: oneSegment(2, 1, started("a")), want: []string{"a", "b"}},
		})
	})
}

func TestOrphans_YieldsChildrenNobodyAwaits(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		parent := []*journalpb.Event{started("p"), child("canceled"), child("late"), child("done"), child("moved-on")}
		playSteps(t, newMachine(t), func(m *Machine) []string { return idsOf(m.Orphans()) }, []step{
			{instance: "p", segments: oneSegment(1, 1, parent...)},
			{instance: "canceled", segments: oneSegment(1, 1, startedBy("p", 1, 2))},
			{instance: "done", segments: oneSegment(1, 1, startedBy("p", 1, 4))},
			{instance: "moved-on", segments: oneSegment(1, 1, startedBy("p", 1, 5))},
			{instance: "p", segments: oneSegment(1, 6, canceled(2)), want: []string{"canceled"}},
			{instance: "p", segments: oneSegment(1, 7, canceled(3)), want: []string{"canceled"}},
			{instance: "late", segments: oneSegment(1, 1, startedBy("p", 1, 3)), want: []string{"canceled", "late"}},
			// First without the parent's completion event, then with it.
			{instance: "done", segments: oneSegment(1, 2, completed()), want: []string{"canceled", "late"}},
			{instance: "p", segments: oneSegment(1, 8, childDone(4)), want: []string{"canceled", "late"}},
			{instance: "canceled", segments: oneSegment(1, 2, completed()), want: []string{"late"}},
			// A child remains one across its executions.
			{instance: "moved-on", segments: []*journalpb.Segment{segmentOf(1, 2, continued()), segmentOf(2, 1, started("m"))}, want: []string{"late"}},
			// Children of the parent's previous execution become orphans.
			{instance: "p", segments: []*journalpb.Segment{segmentOf(1, 9, continued()), segmentOf(2, 1, parent...)}, want: []string{"late", "moved-on"}},
			{instance: "p", segments: oneSegment(2, 6, completed()), want: []string{"late", "moved-on"}},
			{do: purgeFunc("p", "done"), want: []string{"late", "moved-on"}},
			// A later run under the same ID without a parent is no orphan.
			{instance: "late", segments: oneSegment(1, 2, completed()), want: []string{"moved-on"}},
			{instance: "late", segments: oneSegment(2, 1, started("late")), want: []string{"moved-on"}},
			// The parent's ID is used again, with another operation at that event_id.
			{instance: "p", segments: oneSegment(1, 1, started("p"), timer(1), timer(2), timer(3), timer(4)), want: []string{"moved-on"}},
		})
	})
}

func chainedStarts(m *Machine) []string {
	var all []string
	for c := range m.Chained() {
		if c.Child != nil {
			all = append(all, fmt.Sprintf("child %s by %s/%d.%d %s", c.Child.Instance, c.Ref.Instance, c.Ref.Execution, c.Ref.EventId, c.Child.Name))
			continue
		}
		all = append(all, fmt.Sprintf("%s by %s/%d.%d %s %s", c.Chained.Instance, c.Ref.Instance, c.Ref.Execution, c.Ref.EventId,
			c.Chained.Name, c.Chained.Input.GetData()))
	}
	return all
}

func TestChained_StaysUntilInstanceStarts(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		byA, byB := `x by a/1.2 next {"n":2}`, `y by b/1.3 next {"n":2}`
		restore := func(m *Machine) error {
			var b bytes.Buffer
			must(m.Snapshot().WriteTo(&b))
			return m.Restore(&b)
		}
		playSteps(t, newMachine(t), chainedStarts, []step{
			{instance: "a", segments: oneSegment(1, 1, started("a"), chained("x"), chained("a")), want: []string{byA}}, // a exists
			{instance: "b", segments: oneSegment(1, 1, started("b"), chained("x"), chained("y")), want: []string{byA, byB}},
			// The end and the purge of the instances that asked change nothing.
			{instance: "a", segments: oneSegment(1, 4, completed()), want: []string{byA, byB}},
			{instance: "b", segments: oneSegment(1, 4, completed()), want: []string{byA, byB}},
			{do: purgeFunc("a", "b"), want: []string{byA, byB}},
			{do: restore, want: []string{byA, byB}},
			{instance: "x", segments: oneSegment(1, 1, started("x")), want: []string{byB}},
			// An instance that was started and purged is not started again.
			{instance: "x", segments: oneSegment(1, 2, chained("x"), completed()), want: []string{byB}},
			{do: purgeFunc("x"), want: []string{byB}},
			{do: restore, want: []string{byB}},
			{instance: "y", segments: oneSegment(1, 1, started("other")), want: nil},
			{do: restore, want: nil},
			{instance: "a", segments: oneSegment(1, 1, started("a"), chained("x")), want: []string{byA}}, // asked again
		})
	})
}

func abandonedChild(id string) *journalpb.Event {
	e := child(id)
	e.GetSubOrchestrationScheduled().Name = "kid"
	e.GetSubOrchestrationScheduled().ClosePolicy = journalpb.ClosePolicy_CLOSE_POLICY_ABANDON
	return e
}

func TestChained_AbandonedChildStaysUntilStarted(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		x, y, frozen := "child x by a/1.3 kid", "child y by b/1.2 kid", "child z by b/2.2 kid"
		restore := func(m *Machine) error {
			var b bytes.Buffer
			must(m.Snapshot().WriteTo(&b))
			return m.Restore(&b)
		}
		playSteps(t, newMachine(t), chainedStarts, []step{
			// Only with that close policy, and not for existing instances.
			{instance: "a", segments: oneSegment(1, 1, started("a"), child("w"), abandonedChild("x"), abandonedChild("a")), want: []string{x}},
			{instance: "a", segments: oneSegment(1, 5, canceled(2), canceled(3)), want: []string{x}},
			// Canceled in the append that asks, or by the end of the execution.
			{instance: "b", segments: oneSegment(1, 1, started("b"), abandonedChild("y"), chained("x"), canceled(2), completed()), want: []string{x, y}},
			{instance: "b", segments: oneSegment(2, 1, started("b"), abandonedChild("z"), completed()), want: []string{x, y, frozen}},
			{do: purgeFunc("b"), want: []string{x, y, frozen}},
			{do: restore, want: []string{x, y, frozen}},
			{instance: "x", segments: oneSegment(1, 1, startedBy("a", 1, 3), completed()), want: []string{y, frozen}},
			{do: purgeFunc("x"), want: []string{y, frozen}},
			{instance: "y", segments: oneSegment(1, 1, started("other")), want: []string{frozen}}, // started by someone else
			{do: restore, want: []string{frozen}},
			{instance: "z", segments: oneSegment(1, 1, started("z")), want: nil},
		})
	})
}

func TestChained_RejectedAppendAddsNone(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"), chained("x"))); err != nil {
			t.Fatal(err)
		}
		if err := applyAppend(m, "x", segmentOf(1, 1, started("x"), completed())); err != nil {
			t.Fatal(err)
		}
		if _, err := purge(m, "x"); err != nil {
			t.Fatal(err)
		}
		var invalid *InvalidAppendError
		if err := applyAppend(m, "a", segmentOf(1, 3, chained("y"), timerFired(7))); !errors.As(err, &invalid) {
			t.Fatal(err)
		}
		if err := applyAppend(m, "a", segmentOf(1, 3, activity())); err != nil {
			t.Fatal(err)
		}
		if got := chainedStarts(m); got != nil {
			t.Errorf("chained: %q", got)
		}
	})
}

func TestAttempt_StoredWithOpenActivity(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		failed := func(event uint64, n uint32) func(*Machine) error {
			return func(m *Machine) error { return applyAttempt(m, "a", 1, event, n) }
		}
		playSteps(t, newMachine(t), func(m *Machine) []string {
			var all []string
			for op := range m.InstanceOperations("a") {
				all = append(all, describeOperation(op))
			}
			return all
		}, []step{
			{instance: "a", segments: oneSegment(1, 1, started("a"), activity(), activity(), activity()), want: []string{"2 kind 20", "3 kind 20", "4 kind 20"}},
			{do: failed(3, 1), want: []string{"2 kind 20", "3 kind 20 failed 1", "4 kind 20"}},
			{do: failed(2, 5), want: []string{"2 kind 20 failed 5", "3 kind 20 failed 1", "4 kind 20"}},
			{do: failed(4, 9), want: []string{"2 kind 20 failed 5", "3 kind 20 failed 1", "4 kind 20 failed 9"}},
			{do: failed(3, 1), want: []string{"2 kind 20 failed 5", "3 kind 20 failed 1", "4 kind 20 failed 9"}},
			{do: failed(3, 2), want: []string{"2 kind 20 failed 5", "3 kind 20 failed 2", "4 kind 20 failed 9"}},
			{instance: "a", segments: oneSegment(1, 5, activityDone(3)), want: []string{"2 kind 20 failed 5", "4 kind 20 failed 9"}},
			{instance: "a", segments: oneSegment(1, 6, canceled(2)), want: []string{"4 kind 20 failed 9"}},
			// The same event_id in the next execution is another operation.
			{instance: "a", segments: []*journalpb.Segment{
				segmentOf(1, 7, continued()), segmentOf(2, 1, started("a"), activity(), activity(), activity()),
			}, want: []string{"2 kind 20", "3 kind 20", "4 kind 20"}},
		})
	})
}

func TestAttempt_ReadAsProposed(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"), activity())); err != nil {
			t.Fatal(err)
		}
		want := &journalpb.Attempt{
			Ref: &journalpb.OperationRef{Instance: "a", Execution: 1, EventId: 2}, Epoch: 1, Failed: 3,
			LastError: &journalpb.Error{Code: "c", Message: "no answer"}, NextAt: 77, Heartbeat: &journalpb.Payload{Data: []byte("40%")},
		}
		changed, cancel := m.Watch("a")
		defer cancel()
		if _, err := m.Apply(must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: want}}))); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		default:
			t.Error("no watcher was woken")
		}
		for op := range m.OpenOperations() {
			if !proto.Equal(op.Attempt, want) {
				t.Errorf("attempt %v", op.Attempt)
			}
		}
		if in, _ := m.Instance("a"); in.LastEventId != 2 || in.UpdatedAt != 1002 {
			t.Errorf("an attempt is no event: %v", in)
		}
	})
}

func TestAttempt_RejectedUnlessActivityOpen(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		for _, err := range []error{
			applyAppend(m, "a", segmentOf(1, 1, started("a"), activity(), timer(1), activity(), activityDone(4))),
			applyAttempt(m, "a", 1, 2, 3),
			applyAppend(m, "ended", segmentOf(1, 1, started("ended"), activity(), completed())),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		before := dumpIndex(m)
		for _, c := range []struct {
			instance         string
			execution, event uint64
		}{{"a", 1, 4}, {"a", 1, 1}, {"a", 1, 9}, {"a", 2, 2}, {"a", 0, 2}, {"ended", 1, 2}, {"unknown", 1, 2}, {"", 0, 0}} {
			var closed *ClosedError
			err := applyAttempt(m, c.instance, c.execution, c.event, 5)
			if !errors.As(err, &closed) || *closed != (ClosedError{c.instance, c.execution, c.event}) {
				t.Errorf("%v: %v", c, err)
			}
		}
		var invalid *InvalidAppendError
		if err := applyAttempt(m, "a", 1, 3, 1); !errors.As(err, &invalid) || invalid.EventID != 3 || invalid.Execution != 1 {
			t.Errorf("of a timer: %v", err)
		}
		if err := applyAttempt(m, "a", 1, 2, 2); !errors.As(err, &invalid) || invalid.EventID != 2 {
			t.Errorf("2 after 3: %v", err)
		}
		for _, epoch := range []uint64{0, 2} {
			var stale *StaleEpochError
			if err := applyAttemptAt(m, epoch, "a", 1, 2, 4); !errors.As(err, &stale) || stale.Instance != "a" || stale.Epoch != epoch || stale.Current != 1 {
				t.Errorf("epoch %d: %v", epoch, err)
			}
		}
		if after := dumpIndex(m); after != before {
			t.Errorf("a rejected attempt changed the state\nbefore %s\nafter  %s", before, after)
		}
	})
}

func TestAttempt_SurvivesRejectedAppend(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		for _, err := range []error{
			applyAppend(m, "a", segmentOf(1, 1, started("a"), activity(), activity())),
			applyAttempt(m, "a", 1, 2, 3),
			applyAttempt(m, "a", 1, 3, 1),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		before := dumpIndex(m)
		var invalid *InvalidAppendError
		if err := applyAppend(m, "a", segmentOf(1, 4, activityDone(2), continued()), segmentOf(2, 1, started("a"), timerFired(9))); !errors.As(err, &invalid) {
			t.Fatal(err)
		}
		if after := dumpIndex(m); after != before {
			t.Errorf("before %s\nafter  %s", before, after)
		}
		wantOpen(t, m, "a", "2 kind 20 failed 3", "3 kind 20 failed 1")
	})
}

func TestDigest_CoversAttemptsAndChainedStarts(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		seen := map[[32]byte]int{}
		for i, do := range []func() error{
			func() error { return applyAppend(m, "x", segmentOf(1, 1, started("x"), completed())) },
			func() error {
				return applyAppend(m, "a", segmentOf(1, 1, started("a"), activity(), chained("x"), chained("y"), chained("y")))
			},
			func() error { return applyAttempt(m, "a", 1, 2, 1) },
			func() error { return applyAttempt(m, "a", 1, 2, 2) },
			func() error { _, err := purge(m, "x"); return err },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
			digest := m.Digest()
			if before, ok := seen[digest]; ok {
				t.Errorf("the same digest after step %d as after step %d", i+1, before)
			}
			seen[digest] = i + 1
		}
		// The same histories without the records beside them.
		other := newMachine(t)
		if err := applyAppend(other, "a", segmentOf(1, 1, started("a"), activity(), chained("x"), chained("y"), chained("y"))); err != nil {
			t.Fatal(err)
		}
		if err := applyAttempt(other, "a", 1, 2, 2); err != nil {
			t.Fatal(err)
		}
		if got := chainedStarts(other); len(got) != 2 || other.Digest() == m.Digest() {
			t.Errorf("x waits in one of the two, and the digest is the same; chained %q", got)
		}
	})
}

func TestPurge_RemovesEndedInstances(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		for _, id := range []string{"ended", "running", "kept"} {
			if err := applyAppend(m, id, segmentOf(1, 1, started(id), activity())); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []*journalpb.Segment{segmentOf(1, 3, completed()), segmentOf(2, 1, started("again")), segmentOf(2, 2, completed())} {
			if err := applyAppend(m, "ended", s); err != nil {
				t.Fatal(err)
			}
		}
		before := dumpIndex(m)
		var stale *StaleEpochError
		if _, err := purgeAt(m, 2, "ended"); !errors.As(err, &stale) || stale.Epoch != 2 || stale.Current != 1 {
			t.Errorf("another epoch: %v", err)
		}
		if purged, err := purge(m); purged != 0 || err != nil {
			t.Errorf("%d of no instances purged: %v", purged, err)
		}
		if purged, err := purge(m, "running", "unknown", ""); purged != 0 || err != nil || dumpIndex(m) != before {
			t.Errorf("%d running instances purged: %v", purged, err)
		}
		changed, cancel := m.Watch("ended")
		defer cancel()
		if purged, err := purge(m, "running", "ended", "unknown", "ended"); purged != 1 || err != nil {
			t.Errorf("%d purged: %v", purged, err)
		}
		select {
		case <-changed:
		default:
			t.Error("no watcher was woken")
		}
		if _, ok := m.Instance("ended"); ok || !slices.Equal(idsOf(m.Instances()), []string{"kept", "running"}) {
			t.Errorf("instances %v", idsOf(m.Instances()))
		}
		if _, err := m.Event("ended", 1, 1); !errors.Is(err, ErrNotFound) {
			t.Errorf("an event of it: %v", err)
		}
		if err := applyAppend(m, "ended", segmentOf(1, 1, started("anew"))); err != nil {
			t.Error(err)
		}
	})
}

func attributeSet(name, text string) *journalpb.Event {
	set := &journalpb.AttributeSet{Name: name}
	if text != "" {
		set.Value = &journalpb.AttributeValue{Kind: &journalpb.AttributeValue_Text{Text: text}}
	}
	return &journalpb.Event{Body: &journalpb.Event_AttributeSet{AttributeSet: set}}
}

func valueSet(key, json string) *journalpb.Event {
	set := &journalpb.ValueSet{Map: "m", Key: key}
	if json != "" {
		set.Value = &journalpb.Payload{Data: []byte(json)}
	}
	return &journalpb.Event{Body: &journalpb.Event_ValueSet{ValueSet: set}}
}

// Attributes and values are those of the latest run: kept after its end and by the next execution,
// dropped by the next run.
func TestInstance_ShowsPublishedState(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		read := func(m *Machine) (shown []string) {
			in, _ := m.Instance("a")
			for _, attribute := range in.Attributes {
				shown = append(shown, attribute.Name+"="+attribute.Value.GetText())
			}
			values, err := m.Values("a", "m")
			if err != nil {
				t.Error(err)
			}
			for _, set := range values {
				shown = append(shown, set.Key+"="+string(set.Value.Data))
			}
			return shown
		}
		carrying := started("a")
		carrying.GetOrchestrationStarted().Attributes = []*journalpb.AttributeSet{attributeSet("region", "south").GetAttributeSet()}
		carrying.GetOrchestrationStarted().Values = []*journalpb.ValueSet{valueSet("b", "2").GetValueSet(), valueSet("c", "3").GetValueSet()}
		m := newMachine(t)
		if err := applyMetadataChange(t, m, 1, &journalpb.MetadataChange{Protocol: 4}); err != nil {
			t.Fatal(err)
		}
		playSteps(t, m, read, []step{
			{instance: "a", segments: oneSegment(1, 1, started("a")), want: nil},
			{instance: "a", segments: oneSegment(1, 2, attributeSet("region", "north"), attributeSet("kind", "x"), valueSet("b", "1"), valueSet("a", "0")), want: []string{"kind=x", "region=north", "a=0", "b=1"}},
			{instance: "a", segments: oneSegment(1, 6, attributeSet("kind", ""), attributeSet("region", "south"), valueSet("a", ""), valueSet("b", "2"), valueSet("c", "3")), want: []string{"region=south", "b=2", "c=3"}},
			{instance: "a", segments: []*journalpb.Segment{segmentOf(1, 11, continued()), segmentOf(2, 1, carrying)}, want: []string{"region=south", "b=2", "c=3"}},
			{instance: "a", segments: oneSegment(2, 2, valueSet("c", "4"), valueSet("other", "5"), completed()), want: []string{"region=south", "b=2", "c=4", "other=5"}},
			{instance: "a", segments: oneSegment(3, 1, started("a")), want: nil},
		})
		if values, err := m.Values("unknown", "m"); len(values) != 0 || err != nil {
			t.Errorf("an unknown instance has %v, %v", values, err)
		}
	})
}

func TestAppend_PublishedStateNeedsProtocol4(t *testing.T) {
	for _, event := range []*journalpb.Event{attributeSet("region", "north"), valueSet("a", "1")} {
		m := newMachine(t)
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"))); err != nil {
			t.Fatal(err)
		}
		for _, protocol := range []uint32{3, 4} {
			if err := applyMetadataChange(t, m, 1, &journalpb.MetadataChange{Protocol: protocol}); err != nil {
				t.Fatal(err)
			}
			var rejected *InvalidAppendError
			if err := applyAppend(m, "a", segmentOf(1, 2, event)); errors.As(err, &rejected) != (protocol == 3) || errors.Is(err, ErrProtocol) != (protocol == 3) {
				t.Errorf("%s at protocol %d: %v", event.Type(), protocol, err)
			}
		}
	}
}
