package state

import (
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// canceledLate is the decision to cancel a subscription of that name although its event
// is in the history.
func canceledLate(source uint64, name string) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_CancelRequested{
		CancelRequested: &journalpb.CancelRequested{EventName: name},
	}}
}

// An event that was recorded while an instance was suspended closes a subscription in the
// index. When the instance is resumed, its code may still cancel that subscription, and
// the event is the next one's. Builds before protocol 3 refuse that.
func TestASubscriptionWhoseEventWasHeldMayBeCanceled(t *testing.T) {
	m := newMachine(t)
	if err := apply(m, "a", segmentOf(1, 1, started("flow"), subscribed("tick"), suspended(), arrival("tick"), resumed())); err != nil {
		t.Fatal(err)
	}
	late := segmentOf(1, 6, canceledLate(2, "tick"), subscribed("tick"), subscribed("tick"))
	var refused *InvalidAppendError
	if err := apply(m, "a", late); !errors.As(err, &refused) {
		t.Fatalf("before protocol 3: %v", err)
	}
	if err := changed(t, m, 1, &journalpb.GroupChange{Protocol: 3}); err != nil {
		t.Fatal(err)
	}
	if err := apply(m, "a", segmentOf(1, 6, cancelled(2))); !errors.As(err, &refused) {
		t.Fatalf("without a name: %v", err)
	}
	if err := apply(m, "a", late); err != nil {
		t.Fatal(err)
	}
	open := 0
	for op := range m.Open() {
		if open++; op.Ref.EventId != 8 {
			t.Errorf("subscription %d is open, want 8: 7 has the event of the canceled one", op.Ref.EventId)
		}
	}
	if open != 1 {
		t.Errorf("%d subscriptions are open, want 1", open)
	}
	if err := apply(m, "a", segmentOf(1, 9, canceledLate(8, "tick"))); err != nil { // open: nothing arrives
		t.Fatal(err)
	}
	if err := apply(m, "a", segmentOf(1, 10, subscribed("tick"))); err != nil {
		t.Fatal(err)
	}
	for op := range m.Open() {
		if op.Ref.EventId != 10 {
			t.Errorf("subscription %d is open, want 10", op.Ref.EventId)
		}
	}
}
