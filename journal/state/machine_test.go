package state

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func TestEpoch_NumberedByMachine(t *testing.T) {
	m := New()
	for want := uint64(1); want <= 3; want++ {
		applyEpoch(t, m)
		if m.Epoch() != want {
			t.Fatalf("epoch %d, want %d", m.Epoch(), want)
		}
	}
}

func TestAppend_ReadBack(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		steps := []*journalpb.Segment{
			segmentOf(1, 1, started("order"), activity(), timer(77)),
			segmentOf(1, 4, activityDone(2), child("order-child")),
		}
		for _, s := range steps {
			if err := applyAppend(m, "order-1", s); err != nil {
				t.Fatal(err)
			}
		}
		var ids []uint64
		for e, err := range m.Events("order-1", 0, 2) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, e.EventId)
		}
		if !slices.Equal(ids, []uint64{2, 3, 4, 5}) {
			t.Errorf("events from 2 on: %v", ids)
		}
		e, err := m.Event("order-1", 1, 3)
		if err != nil || e.GetTimerCreated().GetFireAt() != 77 {
			t.Errorf("event 3: %v, %v", e, err)
		}
		want := &journalpb.Instance{
			Instance: "order-1", Execution: 1, FirstExecution: 1, LastEventId: 5,
			Status: journalpb.Status_STATUS_RUNNING, Name: "order", Version: "v1", RequestId: "r-order",
			CreatedAt: 1001, UpdatedAt: 1005,
		}
		if got, ok := m.Instance("order-1"); !ok || !proto.Equal(got, want) {
			t.Errorf("instance: %v", got)
		}
		wantOpen(t, m, "order-1", "3 kind 23 at 77", "5 kind 27 child order-child")
	})
}

func TestRead_UnknownIsNotFound(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"))); err != nil {
			t.Fatal(err)
		}
		if _, ok := m.Instance("b"); ok {
			t.Error("found an instance without an append")
		}
		for name, read := range map[string]func() error{
			"event of unknown instance":  func() error { _, err := m.Event("b", 0, 1); return err },
			"event of unknown execution": func() error { _, err := m.Event("a", 2, 1); return err },
			"event after the last":       func() error { _, err := m.Event("a", 1, 2); return err },
			"event 0":                    func() error { _, err := m.Event("a", 1, 0); return err },
			"hash":                       func() error { _, err := m.Hash("b"); return err },
			"events": func() error {
				for _, err := range m.Events("b", 0, 1) {
					return err
				}
				return nil
			},
		} {
			if err := read(); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestAppend_OtherEpochIsStale(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		applyEpoch(t, m)
		for _, epoch := range []uint64{0, 1, 3} {
			var stale *StaleEpochError
			err := applyAppendAt(m, epoch, "a", segmentOf(1, 1, started("a")))
			if !errors.As(err, &stale) || stale.Epoch != epoch || stale.Current != 2 {
				t.Errorf("epoch %d: %v", epoch, err)
			}
		}
	})
}

func TestAppend_GapConflicts(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"), activity())); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			segment *journalpb.Segment
			last    uint64
		}{
			{segmentOf(1, 1, started("a")), 2},
			{segmentOf(1, 2, activity()), 2},
			{segmentOf(1, 4, activity()), 2},
			{segmentOf(2, 2, activity()), 0},
		} {
			var conflict *ConflictError
			err := applyAppend(m, "a", c.segment)
			if !errors.As(err, &conflict) || conflict.First != c.segment.FirstEventId || conflict.Last != c.last {
				t.Errorf("%d.%d: %v", c.segment.Execution, c.segment.FirstEventId, err)
			}
		}
		var conflict *ConflictError
		err := applyAppend(m, "a", segmentOf(1, 3, continued()), segmentOf(2, 2, started("a")))
		if !errors.As(err, &conflict) || conflict.Execution != 2 {
			t.Errorf("second segment from 2: %v", err)
		}
		// The instance existed once and was purged: a conflict, not a bug of the proposer.
		err = applyAppend(m, "b", segmentOf(4, 1, started("b")))
		if !errors.As(err, &conflict) || conflict.Execution != 4 {
			t.Errorf("execution 4 of an unknown instance: %v", err)
		}
	})
}

func TestAppend_RejectsInvalidHistories(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		type segments = []*journalpb.Segment
		base := segments{segmentOf(1, 1, started("a"), activity(), timer(1), child("c"), subscribed("s"))} // 1..5
		ended := segments{segmentOf(1, 1, started("a"), completed())}
		badID := segmentOf(1, 6, activity(), activity())
		badID.Events[1] = badID.Events[0]
		for name, c := range map[string]struct{ before, rejected segments }{
			"no segments":                   {base, nil},
			"three segments":                {base, segments{segmentOf(1, 6, continued()), segmentOf(2, 1, started("a"), continued()), segmentOf(3, 1, started("a"))}},
			"execution 0 of a running one":  {base, segments{segmentOf(0, 1, started("a"))}},
			"no events":                     {base, segments{segmentOf(1, 6)}},
			"execution 0":                   {nil, segments{segmentOf(0, 1, started("a"))}},
			"next execution while running":  {base, segments{segmentOf(2, 1, started("a"))}},
			"execution skipped":             {ended, segments{segmentOf(3, 1, started("a"))}},
			"append after the end":          {ended, segments{segmentOf(1, 3, activity())}},
			"event after the end":           {base, segments{segmentOf(1, 6, completed(), activity())}},
			"first event is not started":    {nil, segments{segmentOf(1, 1, activity())}},
			"started twice":                 {base, segments{segmentOf(1, 6, started("a"))}},
			"ids not contiguous":            {base, segments{badID}},
			"not an event":                  {base, segments{{Execution: 1, FirstEventId: 6, Events: [][]byte{{0xff}}}}},
			"event without a body":          {base, segments{segmentOf(1, 6, &journalpb.Event{})}},
			"continued without successor":   {base, segments{segmentOf(1, 6, continued())}},
			"successor without continued":   {base, segments{segmentOf(1, 6, completed()), segmentOf(2, 1, started("a"))}},
			"successor of the wrong number": {base, segments{segmentOf(1, 6, continued()), segmentOf(3, 1, started("a"))}},
			"successor continued at once":   {base, segments{segmentOf(1, 6, continued()), segmentOf(2, 1, started("a"), continued())}},
			"unknown source":                {base, segments{segmentOf(1, 6, activityDone(99))}},
			"source is itself":              {base, segments{segmentOf(1, 6, activityDone(6))}},
			"no source":                     {base, segments{segmentOf(1, 6, timerFired(0))}},
			"completed twice":               {base, segments{segmentOf(1, 6, activityDone(2), activityDone(2))}},
			"canceled, then completed":      {base, segments{segmentOf(1, 6, canceled(2), activityDone(2))}},
			"canceled twice":                {base, segments{segmentOf(1, 6, canceled(5), canceled(5))}},
			"timer for an activity":         {base, segments{segmentOf(1, 6, timerFired(2))}},
			"activity for a timer":          {base, segments{segmentOf(1, 6, activityDone(3))}},
			"child for an activity":         {base, segments{segmentOf(1, 6, childDone(2))}},
			"activity for a subscription":   {base, segments{segmentOf(1, 6, activityDone(5))}},
			"cancel of a consumed one":      {base, segments{segmentOf(1, 6, externalEvent("s"), canceled(5))}},
			"chained start of no instance":  {base, segments{segmentOf(1, 6, chained(""))}},
			"chained start with a bad body": {base, segments{{Execution: 1, FirstEventId: 6, Events: [][]byte{{0x08, 6, 0xf2, 1, 1, 0xff}}}}},
		} {
			t.Run(name, func(t *testing.T) {
				m := newMachine(t)
				if c.before != nil {
					if err := applyAppend(m, "a", c.before...); err != nil {
						t.Fatal(err)
					}
				}
				before := dumpIndex(m)
				var invalid *InvalidAppendError
				if err := applyAppend(m, "a", c.rejected...); !errors.As(err, &invalid) || invalid.Instance != "a" || invalid.Reason == "" {
					t.Fatalf("error %v", err)
				}
				if after := dumpIndex(m); after != before {
					t.Errorf("a rejected append changed the state\nbefore %s\nafter  %s", before, after)
				}
			})
		}
	})
}

func TestAppend_RejectsEmptyID(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		var invalid *InvalidAppendError
		if err := applyAppend(newMachine(t), "", segmentOf(1, 1, started("a"))); !errors.As(err, &invalid) {
			t.Error(err)
		}
	})
}

func TestAppend_SecondSegmentRejectedUndoesFirst(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"), activity(), externalEvent("s"))); err != nil {
			t.Fatal(err)
		}
		before := dumpIndex(m)
		err := applyAppend(m, "a", segmentOf(1, 4, activityDone(2), subscribed("s"), continued()), segmentOf(2, 1, started("b"), timerFired(9)))
		var invalid *InvalidAppendError
		if !errors.As(err, &invalid) || invalid.Execution != 2 || invalid.EventID != 2 {
			t.Fatalf("error %v", err)
		}
		if after := dumpIndex(m); after != before {
			t.Errorf("before %s\nafter  %s", before, after)
		}
		// The arrival is still buffered.
		if err := applyAppend(m, "a", segmentOf(1, 4, subscribed("s"))); err != nil {
			t.Fatal(err)
		}
		wantOpen(t, m, "a", "2 kind 20")
	})
}

func TestContinueAsNew_KeepsRunOrigin(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		first := started("first")
		first.GetOrchestrationStarted().Parent = &journalpb.OperationRef{Instance: "p", Execution: 1, EventId: 4}
		next := started("second")
		next.GetOrchestrationStarted().RequestId = "other"
		steps := [][]*journalpb.Segment{
			{segmentOf(1, 1, first, activity())},
			{segmentOf(1, 3, continued()), segmentOf(2, 1, next)},
			{segmentOf(2, 2, completed())},
		}
		for _, s := range steps {
			if err := applyAppend(m, "a", s...); err != nil {
				t.Fatal(err)
			}
		}
		in, _ := m.Instance("a")
		if in.FirstExecution != 1 || in.Execution != 2 || in.CreatedAt != 1001 || in.RequestId != "r-first" ||
			in.Name != "second" || in.GetParent().GetInstance() != "p" || in.Status != journalpb.Status_STATUS_COMPLETED {
			t.Errorf("after continue-as-new: %v", in)
		}
		wantOpen(t, m, "a")
		if err := applyAppend(m, "a", segmentOf(3, 1, started("third"))); err != nil {
			t.Fatal(err)
		}
		in, _ = m.Instance("a")
		if in.FirstExecution != 3 || in.CreatedAt != 3001 || in.RequestId != "r-third" || in.Parent != nil {
			t.Errorf("after a new start: %v", in)
		}
	})
}

func TestSubscriptions_ReceiveEventsInOrder(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		carried := started("a")
		carried.GetOrchestrationStarted().Inbox = []*journalpb.ExternalEvent{{Name: "x"}}
		for _, step := range []struct {
			events []*journalpb.Event
			open   []string
		}{
			{[]*journalpb.Event{carried, subscribed("x")}, nil}, // 2 consumes the event from the inbox
			{[]*journalpb.Event{subscribed("x"), subscribed("x"), subscribed("y")}, []string{"3 kind 25", "4 kind 25", "5 kind 25"}},
			{[]*journalpb.Event{canceled(3), externalEvent("x")}, []string{"5 kind 25"}},
			{[]*journalpb.Event{externalEvent("x"), externalEvent("x"), subscribed("x")}, []string{"5 kind 25"}},
			{[]*journalpb.Event{subscribed("x"), subscribed("x")}, []string{"5 kind 25", "12 kind 25"}},
		} {
			first := uint64(1)
			if in, ok := m.Instance("a"); ok {
				first = in.LastEventId + 1
			}
			if err := applyAppend(m, "a", segmentOf(1, first, step.events...)); err != nil {
				t.Fatal(err)
			}
			wantOpen(t, m, "a", step.open...)
		}
	})
}

func TestApply_UnknownCommandIsCorrupt(t *testing.T) {
	m := newMachine(t)
	good := must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: &journalpb.Epoch{Node: "n"}}}))
	for name, record := range map[string][]byte{
		"empty":           nil,
		"truncated":       good[:len(good)-1],
		"unknown command": append([]byte{0x7a}, good[1:]...),
		"trailing bytes":  append(slices.Clone(good), 0),
		"bad append":      {0x0a, 0x02, 0x0a, 0x7f},
		"bad attempt":     {0x1a, 0x02, 0x0a, 0x7f},
		"bad purge":       {0x22, 0x02, 0x12, 0x7f},
		"bad group":       {0x2a, 0x02, 0x1a, 0x7f},
	} {
		before := dumpIndex(m)
		if _, err := m.Apply(record); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if dumpIndex(m) != before {
			t.Errorf("%s has changed the state", name)
		}
	}
}

func TestRead_OpenAndInstancesInOrder(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		for _, id := range []string{"c", "a", "b"} {
			if err := applyAppend(m, id, segmentOf(1, 1, started(id), activity(), timer(5))); err != nil {
				t.Fatal(err)
			}
		}
		if err := applyAppend(m, "b", segmentOf(1, 4, completed())); err != nil {
			t.Fatal(err)
		}
		var open, all []string
		for op := range m.OpenOperations() {
			open = append(open, fmt.Sprintf("%s/%d", op.Ref.Instance, op.Ref.EventId))
		}
		for in := range m.Instances() {
			all = append(all, in.Instance)
		}
		if !slices.Equal(open, []string{"a/2", "a/3", "c/2", "c/3"}) || !slices.Equal(all, []string{"a", "b", "c"}) {
			t.Errorf("open %v, instances %v", open, all)
		}
	})
}

func TestWatch_SignalsEveryChange(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		changed, cancel := m.Watch("a")
		if err := applyAppend(m, "b", segmentOf(1, 1, started("b"))); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
			t.Error("woken for another instance")
		default:
		}
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"))); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		default:
			t.Error("not woken")
		}
		cancel()
		cancel()
		if err := applyAppend(m, "a", segmentOf(1, 2, completed())); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
			t.Error("woken after cancel")
		default:
		}
		if len(m.watchers.byInstance) != 0 {
			t.Error("a canceled watch still exists")
		}
	})
}

func TestWatchEnd_SignalsOnlyEnds(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		changed, cancel := m.WatchEnd("a")
		defer cancel()
		woken := func() bool {
			select {
			case <-changed:
				return true
			default:
				return false
			}
		}
		for _, step := range []struct {
			what  string
			do    func() error
			wakes bool
		}{
			{"a start", func() error { return applyAppend(m, "a", segmentOf(1, 1, started("a"), activity())) }, false},
			{"a step", func() error { return applyAppend(m, "a", segmentOf(1, 3, activityDone(2))) }, false},
			{"the next execution", func() error { return applyAppend(m, "a", segmentOf(1, 4, continued()), segmentOf(2, 1, started("a"))) }, false},
			{"the end of another", func() error { return applyAppend(m, "b", segmentOf(1, 1, started("b"), completed())) }, false},
			{"its end", func() error { return applyAppend(m, "a", segmentOf(2, 2, completed())) }, true},
			{"another run", func() error { return applyAppend(m, "a", segmentOf(3, 1, started("a"), completed())) }, true},
			{"a purge", func() error { _, err := purge(m, "a"); return err }, true},
		} {
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
			if got := woken(); got != step.wakes {
				t.Errorf("woken by %s: %v", step.what, got)
			}
		}
	})
}

// dumpIndex returns the whole index as one string.
func dumpIndex(m *Machine) string {
	s := fmt.Sprintf("epoch %d\n", m.Epoch())
	for in := range m.Instances() {
		s += fmt.Sprintf("%s %v", in.Instance, must(proto.MarshalOptions{Deterministic: true}.Marshal(in)))
		_, _ = m.lookup(in.Instance, func(in *instance) { s += fmt.Sprintf(" buffered %v\n", in.bufferedEvents) })
	}
	for op := range m.OpenOperations() {
		s += fmt.Sprintf("open %s %s\n", op.Ref.Instance, describeOperation(op))
	}
	for _, set := range []struct {
		name      string
		instances iter.Seq[*journalpb.Instance]
	}{{"unbegun", m.Unbegun()}, {"orphans", m.Orphans()}, {"held", m.WithCondition()}} {
		for in := range set.instances {
			s += fmt.Sprintf("%s %s\n", set.name, in.Instance)
		}
	}
	for c := range m.Chained() {
		s += fmt.Sprintf("chained %x\n", must(proto.MarshalOptions{Deterministic: true}.Marshal(c)))
	}
	if m.store == nil {
		s += fmt.Sprintf("busy %d, children %d, ", len(m.busy), len(m.children))
	}
	return s + fmt.Sprintf("digest %x", m.Digest())
}

func describeOperation(op *journalpb.Operation) string {
	s := fmt.Sprintf("%d kind %d", op.Ref.EventId, op.Kind)
	if op.FireAt != 0 {
		s += fmt.Sprintf(" at %d", op.FireAt)
	}
	if op.Child != "" {
		s += " child " + op.Child
	}
	if op.Attempt != nil {
		s += fmt.Sprintf(" failed %d", op.Attempt.Failed)
	}
	return s
}

func wantOpen(t *testing.T, m *Machine, instance string, want ...string) {
	t.Helper()
	var got []string
	for op := range m.InstanceOperations(instance) {
		got = append(got, describeOperation(op))
	}
	if !slices.Equal(got, want) {
		t.Errorf("open operations of %s: %q, want %q", instance, got, want)
	}
}
