package state

import (
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// lateCancel cancels a subscription to that name although its event is in the history.
func lateCancel(source uint64, name string) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_CancelRequested{
		CancelRequested: &journalpb.CancelRequested{EventName: name},
	}}
}

// An event recorded while an instance is suspended closes a subscription in the index. After the
// resume the code may still cancel that subscription; the event then goes to the next one. Builds
// before protocol 3 reject that.
func TestCancel_SubscriptionAfterBufferedEvent(t *testing.T) {
	m := newMachine(t)
	if err := applyAppend(m, "a", segmentOf(1, 1, started("flow"), subscribed("tick"), suspended(), externalEvent("tick"), resumed())); err != nil {
		t.Fatal(err)
	}
	late := segmentOf(1, 6, lateCancel(2, "tick"), subscribed("tick"), subscribed("tick"))
	var rejected *InvalidAppendError
	if err := applyAppend(m, "a", late); !errors.As(err, &rejected) {
		t.Fatalf("before protocol 3: %v", err)
	}
	if err := applyMetadataChange(t, m, 1, &journalpb.MetadataChange{Protocol: 3}); err != nil {
		t.Fatal(err)
	}
	if err := applyAppend(m, "a", segmentOf(1, 6, canceled(2))); !errors.As(err, &rejected) {
		t.Fatalf("without a name: %v", err)
	}
	if err := applyAppend(m, "a", late); err != nil {
		t.Fatal(err)
	}
	open := 0
	for op := range m.OpenOperations() {
		if open++; op.Ref.EventId != 8 {
			t.Errorf("subscription %d is open, want 8: 7 has the event of the canceled one", op.Ref.EventId)
		}
	}
	if open != 1 {
		t.Errorf("%d subscriptions are open, want 1", open)
	}
	if err := applyAppend(m, "a", segmentOf(1, 9, lateCancel(8, "tick"))); err != nil { // it is open: no event is passed on
		t.Fatal(err)
	}
	if err := applyAppend(m, "a", segmentOf(1, 10, subscribed("tick"))); err != nil {
		t.Fatal(err)
	}
	for op := range m.OpenOperations() {
		if op.Ref.EventId != 10 {
			t.Errorf("subscription %d is open, want 10", op.Ref.EventId)
		}
	}
}
