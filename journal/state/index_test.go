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

// step is one append of a scenario, or something else to be done.
type step struct {
	instance string
	segments []*journalpb.Segment
	do       func(*Machine) error
	want     []string // afterwards
}

// play applies steps and compares what show returns after each.
func play(t *testing.T, m *Machine, show func(*Machine) []string, steps []step) {
	t.Helper()
	for i, s := range steps {
		var err error
		if s.do != nil {
			err = s.do(m)
		} else {
			err = apply(m, s.instance, s.segments...)
		}
		if err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
		if got := show(m); !slices.Equal(got, s.want) {
			t.Errorf("after step %d: %q, want %q", i+1, got, s.want)
		}
	}
}

func on(execution, first uint64, events ...*journalpb.Event) []*journalpb.Segment {
	return []*journalpb.Segment{segmentOf(execution, first, events...)}
}

func purging(ids ...string) func(*Machine) error {
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

func TestSuspensionStatusAndTagsAreThoseOfTheLatestExecution(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		tagged := started("a")
		tagged.GetOrchestrationStarted().Tags = map[string]string{"customer": "17"}
		show := func(m *Machine) []string {
			in, _ := m.Instance("a")
			return []string{fmt.Sprint(in.Suspended, in.StatusEventId, in.Tags)}
		}
		play(t, newMachine(t), show, []step{
			{instance: "a", segments: on(1, 1, tagged), want: []string{"false 0 map[customer:17]"}},
			{instance: "a", segments: on(1, 2, suspended(), statusSet()), want: []string{"true 3 map[customer:17]"}},
			{instance: "a", segments: on(1, 4, suspended(), statusSet(), resumed()), want: []string{"false 5 map[customer:17]"}},
			{instance: "a", segments: on(1, 7, suspended()), want: []string{"true 5 map[customer:17]"}},
			{instance: "a", segments: []*journalpb.Segment{segmentOf(1, 8, continued()), segmentOf(2, 1, started("a"))}, want: []string{"false 0 map[]"}},
			{instance: "a", segments: on(2, 2, suspended(), statusSet(), completed()), want: []string{"false 3 map[]"}},
			{instance: "a", segments: on(3, 1, tagged), want: []string{"false 0 map[customer:17]"}},
		})
	})
}

func TestTagsThatWereReadAreTheReadersOwn(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		m := newMachine(t)
		tagged := started("a")
		tagged.GetOrchestrationStarted().Tags = map[string]string{"k": "v"}
		if err := apply(m, "a", segmentOf(1, 1, tagged)); err != nil {
			t.Fatal(err)
		}
		in, _ := m.Instance("a")
		clear(in.Tags)
		if in, _ = m.Instance("a"); !maps.Equal(in.Tags, map[string]string{"k": "v"}) {
			t.Errorf("tags %v", in.Tags)
		}
	})
}

func TestUnbegunAreThoseOfWhichNoCodeHasRun(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		play(t, newMachine(t), func(m *Machine) []string { return idsOf(m.Unbegun()) }, []step{
			{instance: "b", segments: on(1, 1, started("b")), want: []string{"b"}},
			{instance: "a", segments: on(1, 1, started("a")), want: []string{"a", "b"}},
			{instance: "c", segments: on(1, 1, started("c"), activity()), want: []string{"a", "b"}},
			{instance: "a", segments: on(1, 2, completed()), want: []string{"b"}},
			{instance: "c", segments: []*journalpb.Segment{segmentOf(1, 3, continued()), segmentOf(2, 1, started("c"))}, want: []string{"b", "c"}},
			{instance: "c", segments: []*journalpb.Segment{segmentOf(2, 2, continued()), segmentOf(3, 1, started("c"))}, want: []string{"b", "c"}},
			{instance: "c", segments: on(3, 2, timer(1)), want: []string{"b"}},
			{instance: "a", segments: on(2, 1, started("a")), want: []string{"a", "b"}},
		})
	})
}

func TestOrphansAreChildrenForWhomNobodyWaits(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		parent := []*journalpb.Event{started("p"), child("given-up"), child("late"), child("done"), child("moved-on")}
		play(t, newMachine(t), func(m *Machine) []string { return idsOf(m.Orphans()) }, []step{
			{instance: "p", segments: on(1, 1, parent...)},
			{instance: "given-up", segments: on(1, 1, startedBy("p", 1, 2))},
			{instance: "done", segments: on(1, 1, startedBy("p", 1, 4))},
			{instance: "moved-on", segments: on(1, 1, startedBy("p", 1, 5))},
			{instance: "p", segments: on(1, 6, cancelled(2)), want: []string{"given-up"}},
			{instance: "p", segments: on(1, 7, cancelled(3)), want: []string{"given-up"}},
			{instance: "late", segments: on(1, 1, startedBy("p", 1, 3)), want: []string{"given-up", "late"}},
			// The parent has not heard of it yet, then it has.
			{instance: "done", segments: on(1, 2, completed()), want: []string{"given-up", "late"}},
			{instance: "p", segments: on(1, 8, childDone(4)), want: []string{"given-up", "late"}},
			{instance: "given-up", segments: on(1, 2, completed()), want: []string{"late"}},
			// A child stays one over its executions.
			{instance: "moved-on", segments: []*journalpb.Segment{segmentOf(1, 2, continued()), segmentOf(2, 1, started("m"))}, want: []string{"late"}},
			// So does the parent of an earlier execution.
			{instance: "p", segments: []*journalpb.Segment{segmentOf(1, 9, continued()), segmentOf(2, 1, parent...)}, want: []string{"late", "moved-on"}},
			{instance: "p", segments: on(2, 6, completed()), want: []string{"late", "moved-on"}},
			{do: purging("p", "done"), want: []string{"late", "moved-on"}},
			// A run of the same ID that is nobody's child is no orphan.
			{instance: "late", segments: on(1, 2, completed()), want: []string{"moved-on"}},
			{instance: "late", segments: on(2, 1, started("late")), want: []string{"moved-on"}},
			// The parent's ID is used again, and something else stands in that place.
			{instance: "p", segments: on(1, 1, started("p"), timer(1), timer(2), timer(3), timer(4)), want: []string{"moved-on"}},
		})
	})
}

func chains(m *Machine) []string {
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

func TestChainedStartWaitsUntilItsInstanceIsStarted(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		byA, byB := `x by a/1.2 next {"n":2}`, `y by b/1.3 next {"n":2}`
		restore := func(m *Machine) error {
			var b bytes.Buffer
			must(m.Snapshot().WriteTo(&b))
			return m.Restore(&b)
		}
		play(t, newMachine(t), chains, []step{
			{instance: "a", segments: on(1, 1, started("a"), chained("x"), chained("a")), want: []string{byA}}, // a exists
			{instance: "b", segments: on(1, 1, started("b"), chained("x"), chained("y")), want: []string{byA, byB}},
			// The end and the purge of those who asked change nothing.
			{instance: "a", segments: on(1, 4, completed()), want: []string{byA, byB}},
			{instance: "b", segments: on(1, 4, completed()), want: []string{byA, byB}},
			{do: purging("a", "b"), want: []string{byA, byB}},
			{do: restore, want: []string{byA, byB}},
			{instance: "x", segments: on(1, 1, started("x")), want: []string{byB}},
			// What was started once and purged is not started again.
			{instance: "x", segments: on(1, 2, chained("x"), completed()), want: []string{byB}},
			{do: purging("x"), want: []string{byB}},
			{do: restore, want: []string{byB}},
			{instance: "y", segments: on(1, 1, started("other")), want: nil},
			{do: restore, want: nil},
			{instance: "a", segments: on(1, 1, started("a"), chained("x")), want: []string{byA}}, // asked anew
		})
	})
}

func abandoned(id string) *journalpb.Event {
	e := child(id)
	e.GetSubOrchestrationScheduled().Name = "kid"
	e.GetSubOrchestrationScheduled().ClosePolicy = journalpb.ClosePolicy_CLOSE_POLICY_ABANDON
	return e
}

func TestStartOfAChildToBeAbandonedWaitsUntilItExists(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		x, y, z := "child x by a/1.3 kid", "child y by b/1.2 kid", "child z by b/2.2 kid"
		restore := func(m *Machine) error {
			var b bytes.Buffer
			must(m.Snapshot().WriteTo(&b))
			return m.Restore(&b)
		}
		play(t, newMachine(t), chains, []step{
			// Only with that close policy, and not of what exists.
			{instance: "a", segments: on(1, 1, started("a"), child("w"), abandoned("x"), abandoned("a")), want: []string{x}},
			{instance: "a", segments: on(1, 5, cancelled(2), cancelled(3)), want: []string{x}},
			// Given up in the append that asks, or by its end.
			{instance: "b", segments: on(1, 1, started("b"), abandoned("y"), chained("x"), cancelled(2), completed()), want: []string{x, y}},
			{instance: "b", segments: on(2, 1, started("b"), abandoned("z"), completed()), want: []string{x, y, z}},
			{do: purging("b"), want: []string{x, y, z}},
			{do: restore, want: []string{x, y, z}},
			{instance: "x", segments: on(1, 1, startedBy("a", 1, 3), completed()), want: []string{y, z}},
			{do: purging("x"), want: []string{y, z}},
			{instance: "y", segments: on(1, 1, started("other")), want: []string{z}}, // by whomever
			{do: restore, want: []string{z}},
			{instance: "z", segments: on(1, 1, started("z")), want: nil},
		})
	})
}

func TestChainedStartsOfARefusedAppendAreNotKept(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		m := newMachine(t)
		if err := apply(m, "a", segmentOf(1, 1, started("a"), chained("x"))); err != nil {
			t.Fatal(err)
		}
		if err := apply(m, "x", segmentOf(1, 1, started("x"), completed())); err != nil {
			t.Fatal(err)
		}
		if _, err := purge(m, "x"); err != nil {
			t.Fatal(err)
		}
		var invalid *InvalidAppendError
		if err := apply(m, "a", segmentOf(1, 3, chained("y"), timerFired(7))); !errors.As(err, &invalid) {
			t.Fatal(err)
		}
		if err := apply(m, "a", segmentOf(1, 3, activity())); err != nil {
			t.Fatal(err)
		}
		if got := chains(m); got != nil {
			t.Errorf("chained: %q", got)
		}
	})
}

func TestAttemptIsKeptWithItsOpenActivity(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		failed := func(event uint64, n uint32) func(*Machine) error {
			return func(m *Machine) error { return applyAttempt(m, "a", 1, event, n) }
		}
		play(t, newMachine(t), func(m *Machine) []string {
			var all []string
			for op := range m.OpenOf("a") {
				all = append(all, describe(op))
			}
			return all
		}, []step{
			{instance: "a", segments: on(1, 1, started("a"), activity(), activity(), activity()), want: []string{"2 kind 20", "3 kind 20", "4 kind 20"}},
			{do: failed(3, 1), want: []string{"2 kind 20", "3 kind 20 failed 1", "4 kind 20"}},
			{do: failed(2, 5), want: []string{"2 kind 20 failed 5", "3 kind 20 failed 1", "4 kind 20"}},
			{do: failed(4, 9), want: []string{"2 kind 20 failed 5", "3 kind 20 failed 1", "4 kind 20 failed 9"}},
			{do: failed(3, 1), want: []string{"2 kind 20 failed 5", "3 kind 20 failed 1", "4 kind 20 failed 9"}},
			{do: failed(3, 2), want: []string{"2 kind 20 failed 5", "3 kind 20 failed 2", "4 kind 20 failed 9"}},
			{instance: "a", segments: on(1, 5, activityDone(3)), want: []string{"2 kind 20 failed 5", "4 kind 20 failed 9"}},
			{instance: "a", segments: on(1, 6, cancelled(2)), want: []string{"4 kind 20 failed 9"}},
			// The same event_id in the next execution is another operation.
			{instance: "a", segments: []*journalpb.Segment{
				segmentOf(1, 7, continued()), segmentOf(2, 1, started("a"), activity(), activity(), activity()),
			}, want: []string{"2 kind 20", "3 kind 20", "4 kind 20"}},
		})
	})
}

func TestAttemptIsReadAsItWasProposed(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		m := newMachine(t)
		if err := apply(m, "a", segmentOf(1, 1, started("a"), activity())); err != nil {
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
			t.Error("nobody was woken")
		}
		for op := range m.Open() {
			if !proto.Equal(op.Attempt, want) {
				t.Errorf("attempt %v", op.Attempt)
			}
		}
		if in, _ := m.Instance("a"); in.LastEventId != 2 || in.UpdatedAt != 1002 {
			t.Errorf("an attempt is no event: %v", in)
		}
	})
}

func TestAttemptOfWhatIsNotAnOpenActivityIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		m := newMachine(t)
		for _, err := range []error{
			apply(m, "a", segmentOf(1, 1, started("a"), activity(), timer(1), activity(), activityDone(4))),
			applyAttempt(m, "a", 1, 2, 3),
			apply(m, "ended", segmentOf(1, 1, started("ended"), activity(), completed())),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		before := picture(m)
		for _, c := range []struct {
			instance         string
			execution, event uint64
		}{{"a", 1, 4}, {"a", 1, 1}, {"a", 1, 9}, {"a", 2, 2}, {"a", 0, 2}, {"ended", 1, 2}, {"nobody", 1, 2}, {"", 0, 0}} {
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
		if after := picture(m); after != before {
			t.Errorf("a refused attempt has changed the state\nbefore %s\nafter  %s", before, after)
		}
	})
}

func TestRefusedAppendLeavesTheAttempts(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		m := newMachine(t)
		for _, err := range []error{
			apply(m, "a", segmentOf(1, 1, started("a"), activity(), activity())),
			applyAttempt(m, "a", 1, 2, 3),
			applyAttempt(m, "a", 1, 3, 1),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		before := picture(m)
		var invalid *InvalidAppendError
		if err := apply(m, "a", segmentOf(1, 4, activityDone(2), continued()), segmentOf(2, 1, started("a"), timerFired(9))); !errors.As(err, &invalid) {
			t.Fatal(err)
		}
		if after := picture(m); after != before {
			t.Errorf("before %s\nafter  %s", before, after)
		}
		wantOpen(t, m, "a", "2 kind 20 failed 3", "3 kind 20 failed 1")
	})
}

func TestDigestShowsAttemptsAndChainedStarts(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		m := newMachine(t)
		seen := map[[32]byte]int{}
		for i, do := range []func() error{
			func() error { return apply(m, "x", segmentOf(1, 1, started("x"), completed())) },
			func() error {
				return apply(m, "a", segmentOf(1, 1, started("a"), activity(), chained("x"), chained("y"), chained("y")))
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
		// The same histories without what stands beside them.
		other := newMachine(t)
		if err := apply(other, "a", segmentOf(1, 1, started("a"), activity(), chained("x"), chained("y"), chained("y"))); err != nil {
			t.Fatal(err)
		}
		if err := applyAttempt(other, "a", 1, 2, 2); err != nil {
			t.Fatal(err)
		}
		if got := chains(other); len(got) != 2 || other.Digest() == m.Digest() {
			t.Errorf("x waits in one of the two, and the digest is the same; chained %q", got)
		}
	})
}

func TestPurgedInstancesAreUnknown(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		m := newMachine(t)
		for _, id := range []string{"ended", "running", "kept"} {
			if err := apply(m, id, segmentOf(1, 1, started(id), activity())); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []*journalpb.Segment{segmentOf(1, 3, completed()), segmentOf(2, 1, started("again")), segmentOf(2, 2, completed())} {
			if err := apply(m, "ended", s); err != nil {
				t.Fatal(err)
			}
		}
		before := picture(m)
		var stale *StaleEpochError
		if _, err := purgeAt(m, 2, "ended"); !errors.As(err, &stale) || stale.Epoch != 2 || stale.Current != 1 {
			t.Errorf("another epoch: %v", err)
		}
		if purged, err := purge(m); purged != 0 || err != nil {
			t.Errorf("%d of none purged: %v", purged, err)
		}
		if purged, err := purge(m, "running", "nobody", ""); purged != 0 || err != nil || picture(m) != before {
			t.Errorf("%d purged of what has not ended: %v", purged, err)
		}
		changed, cancel := m.Watch("ended")
		defer cancel()
		if purged, err := purge(m, "running", "ended", "nobody", "ended"); purged != 1 || err != nil {
			t.Errorf("%d purged: %v", purged, err)
		}
		select {
		case <-changed:
		default:
			t.Error("nobody was woken")
		}
		if _, ok := m.Instance("ended"); ok || !slices.Equal(idsOf(m.Instances()), []string{"kept", "running"}) {
			t.Errorf("instances %v", idsOf(m.Instances()))
		}
		if _, err := m.Event("ended", 1, 1); !errors.Is(err, ErrNotFound) {
			t.Errorf("an event of it: %v", err)
		}
		if err := apply(m, "ended", segmentOf(1, 1, started("anew"))); err != nil {
			t.Error(err)
		}
	})
}
