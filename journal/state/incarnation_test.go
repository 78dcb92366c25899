package state

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// begunAs is the start of a run with an incarnation.
func begunAs(incarnation uint64) *journalpb.Event {
	e := started("c")
	e.GetOrchestrationStarted().Incarnation = incarnation
	return e
}

func attemptOf(ref *journalpb.OperationRef, epoch uint64) []byte {
	return must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Attempt{
		Attempt: &journalpb.Attempt{Ref: ref, Epoch: epoch, Failed: 1},
	}}))
}

func TestAnAttemptOfAPurgedRunIsNotKeptWithTheNext(t *testing.T) {
	each := func(t *testing.T, m *Machine) {
		applyEpoch(t, m)
		for _, incarnation := range []uint64{7, 8} {
			if err := apply(m, "a", segmentOf(1, 1, begunAs(incarnation), activity())); err != nil {
				t.Fatal(err)
			}
			if incarnation == 7 {
				if err := apply(m, "a", segmentOf(1, 3, completed())); err != nil {
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
			if _, err := applyRecord(m, attemptOf(ref, m.Epoch())); !errors.As(err, &closed) {
				t.Errorf("an attempt of incarnation %d: %v", incarnation, err)
			}
		}
		ref := &journalpb.OperationRef{Instance: "a", Execution: 1, EventId: 2, Incarnation: 8}
		if _, err := applyRecord(m, attemptOf(ref, m.Epoch())); err != nil {
			t.Error(err)
		}
	}
	each(t, New())
}

// Whether somebody waits for a child is a question of the run that has started it.
func TestAChildOfAPurgedRunIsAnOrphanWhateverTheNextRunHasOpen(t *testing.T) {
	m := New()
	applyEpoch(t, m)
	kid := startedBy("p", 1, 2)
	kid.GetOrchestrationStarted().Parent.Incarnation = 7
	if err := apply(m, "kid", segmentOf(1, 1, kid)); err != nil {
		t.Fatal(err)
	}
	orphans := func() (n int) {
		for range m.Orphans() {
			n++
		}
		return n
	}
	if err := apply(m, "p", segmentOf(1, 1, begunAs(7), child("kid"))); err != nil {
		t.Fatal(err)
	}
	if n := orphans(); n != 0 {
		t.Errorf("%d orphans while the parent waits", n)
	}
	if err := apply(m, "p", segmentOf(1, 3, completed())); err != nil {
		t.Fatal(err)
	}
	if _, err := purge(m, "p"); err != nil {
		t.Fatal(err)
	}
	if err := apply(m, "p", segmentOf(1, 1, begunAs(8), child("kid"))); err != nil {
		t.Fatal(err)
	}
	if n := orphans(); n != 1 {
		t.Errorf("%d orphans; the run that has started the child is purged", n)
	}
}

func TestIncarnationsGrowFromRunToRunAndStayInOne(t *testing.T) {
	var invalid *InvalidAppendError
	begin := func(t *testing.T, incarnation uint64, ended ...*journalpb.Event) *Machine {
		t.Helper()
		m := New()
		applyEpoch(t, m)
		if err := apply(m, "a", segmentOf(1, 1, append([]*journalpb.Event{begunAs(incarnation)}, ended...)...)); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, next := range []struct {
		before, after uint64
		wrong         bool
	}{{0, 0, false}, {0, 1, false}, {5, 6, false}, {5, 5, true}, {5, 4, true}, {5, 0, true}} {
		m := begin(t, next.before, completed())
		if err := apply(m, "a", segmentOf(2, 1, begunAs(next.after))); errors.As(err, &invalid) != next.wrong {
			t.Errorf("a run of incarnation %d after one of %d: %v", next.after, next.before, err)
		}
		m = begin(t, next.before)
		err := apply(m, "a", segmentOf(1, 2, continued()), segmentOf(2, 1, begunAs(next.after)))
		if wrong := next.before != next.after; errors.As(err, &invalid) != wrong {
			t.Errorf("a run of incarnation %d continues with %d: %v", next.before, next.after, err)
		}
		if known, _ := m.Instance("a"); known.Execution == 1 && known.Incarnation != next.before {
			t.Errorf("after a refused append the index has incarnation %d, not %d", known.Incarnation, next.before)
		}
	}
}
