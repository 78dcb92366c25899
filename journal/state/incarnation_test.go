package state

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// startedWithIncarnation is the start of a run with an incarnation.
func startedWithIncarnation(incarnation uint64) *journalpb.Event {
	e := started("c")
	e.GetOrchestrationStarted().Incarnation = incarnation
	return e
}

func encodeAttempt(ref *journalpb.OperationRef, epoch uint64) []byte {
	return must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Attempt{
		Attempt: &journalpb.Attempt{Ref: ref, Epoch: epoch, Failed: 1},
	}}))
}

func TestAttempt_OfPurgedRunRejected(t *testing.T) {
	each := func(t *testing.T, m *Machine) {
		applyEpoch(t, m)
		for _, incarnation := range []uint64{7, 8} {
			if err := applyAppend(m, "a", segmentOf(1, 1, startedWithIncarnation(incarnation), activity())); err != nil {
				t.Fatal(err)
			}
			if incarnation == 7 {
				if err := applyAppend(m, "a", segmentOf(1, 3, completed())); err != nil {
					t.Fatal(err)
				}
				if purged, err := purge(m, "a"); purged != 1 || err != nil {
					t.Fatal(purged, err)
				}
			}
		}
		var closed *ClosedError
		for _, incarnation := range []uint64{0, 7, 9} {
			ref := &journalpb.OperationRef{Instance: "a", Execution: 1, EventId: 2, Incarnation: incarnation}
			if _, err := applyRecord(m, encodeAttempt(ref, m.Epoch())); !errors.As(err, &closed) {
				t.Errorf("an attempt of incarnation %d: %v", incarnation, err)
			}
		}
		ref := &journalpb.OperationRef{Instance: "a", Execution: 1, EventId: 2, Incarnation: 8}
		if _, err := applyRecord(m, encodeAttempt(ref, m.Epoch())); err != nil {
			t.Error(err)
		}
	}
	each(t, New())
}

// Only the run that started a child can wait for it.
func TestOrphans_ChildOfPurgedRun(t *testing.T) {
	m := New()
	applyEpoch(t, m)
	childStart := startedBy("p", 1, 2)
	childStart.GetOrchestrationStarted().Parent.Incarnation = 7
	if err := applyAppend(m, "kid", segmentOf(1, 1, childStart)); err != nil {
		t.Fatal(err)
	}
	orphans := func() (n int) {
		for range m.Orphans() {
			n++
		}
		return n
	}
	if err := applyAppend(m, "p", segmentOf(1, 1, startedWithIncarnation(7), child("kid"))); err != nil {
		t.Fatal(err)
	}
	if n := orphans(); n != 0 {
		t.Errorf("%d orphans while the parent waits", n)
	}
	if err := applyAppend(m, "p", segmentOf(1, 3, completed())); err != nil {
		t.Fatal(err)
	}
	if _, err := purge(m, "p"); err != nil {
		t.Fatal(err)
	}
	if err := applyAppend(m, "p", segmentOf(1, 1, startedWithIncarnation(8), child("kid"))); err != nil {
		t.Fatal(err)
	}
	if n := orphans(); n != 1 {
		t.Errorf("%d orphans, but the run that started the child is purged", n)
	}
}

func TestIncarnation_GrowsPerRun(t *testing.T) {
	var invalid *InvalidAppendError
	begin := func(t *testing.T, incarnation uint64, ended ...*journalpb.Event) *Machine {
		t.Helper()
		m := New()
		applyEpoch(t, m)
		if err := applyAppend(m, "a", segmentOf(1, 1, append([]*journalpb.Event{startedWithIncarnation(incarnation)}, ended...)...)); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, next := range []struct {
		before, after uint64
		wrong         bool
	}{{0, 0, false}, {0, 1, false}, {5, 6, false}, {5, 5, true}, {5, 4, true}, {5, 0, true}} {
		m := begin(t, next.before, completed())
		if err := applyAppend(m, "a", segmentOf(2, 1, startedWithIncarnation(next.after))); errors.As(err, &invalid) != next.wrong {
			t.Errorf("a run of incarnation %d after one of %d: %v", next.after, next.before, err)
		}
		m = begin(t, next.before)
		err := applyAppend(m, "a", segmentOf(1, 2, continued()), segmentOf(2, 1, startedWithIncarnation(next.after)))
		if wrong := next.before != next.after; errors.As(err, &invalid) != wrong {
			t.Errorf("a run of incarnation %d continues with %d: %v", next.before, next.after, err)
		}
		if known, _ := m.Instance("a"); known.Execution == 1 && known.Incarnation != next.before {
			t.Errorf("after a rejected append the index has incarnation %d, not %d", known.Incarnation, next.before)
		}
	}
}
