package state

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func TestArmsAreThoseOfTheSchema(t *testing.T) {
	arms := (&journalpb.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	known := 0
	for n := protowire.Number(1); n < 200; n++ {
		if isArm(n) {
			known++
		}
		if isArm(n) != (arms.ByNumber(n) != nil) {
			t.Errorf("number %d: kind %v, schema %v", n, isArm(n), arms.ByNumber(n))
		}
	}
	if known != arms.Len() {
		t.Errorf("%d kinds, %d arms", known, arms.Len())
	}
}

func FuzzSkim(f *testing.F) {
	for _, e := range []*journalpb.Event{
		{}, started("a"), completed(), continued(), activity(), activityDone(2), timer(-5), timerFired(3),
		child("c"), childDone(4), subscribed("s"), arrival("s"), cancelled(5),
		{EventId: 1 << 63, Timestamp: -1, SourceEventId: 1<<64 - 1},
	} {
		encoded := must(proto.Marshal(e))
		f.Add(encoded)
		f.Add(append(bytes.Clone(encoded), encoded...))        // merged with itself
		f.Add(append(bytes.Clone(encoded), 0x7a, 0x00))        // another arm wins
		f.Add(append(bytes.Clone(encoded), 0xf8, 0x06, 0x01))  // an unknown field
		f.Add(append([]byte{0x0a, 0x00, 0x50, 1}, encoded...)) // known numbers, wrong wire types
	}
	f.Add([]byte{0x08})
	f.Add([]byte{0x52, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		original := bytes.Clone(b)
		skimmed, ok := skim(b)
		if !bytes.Equal(b, original) {
			t.Fatal("skim has written into the event")
		}
		var event journalpb.Event
		if err := proto.Unmarshal(b, &event); err != nil {
			return // skim does not look into bodies, so it may accept more
		}
		if !ok {
			t.Fatal("skim refuses what proto.Unmarshal accepts")
		}
		compare(t, skimmed, &event)
	})
}

func compare(t *testing.T, s skimmed, event *journalpb.Event) {
	if s.id != event.EventId || s.timestamp != event.Timestamp || s.source != event.SourceEventId {
		t.Fatalf("skimmed %+v, decoded %v", s, event)
	}
	m := event.ProtoReflect()
	arm := m.WhichOneof(m.Descriptor().Oneofs().ByName("body"))
	if arm == nil {
		if s.arm != 0 {
			t.Fatalf("kind %d of an event without a body", s.arm)
		}
		return
	}
	if int(arm.Number()) != s.arm {
		t.Fatalf("kind %d, decoded %d", s.arm, arm.Number())
	}
	body := m.Get(arm).Message()
	again := body.New()
	if err := proto.Unmarshal(s.body, again.Interface()); err != nil || !proto.Equal(body.Interface(), again.Interface()) {
		t.Fatalf("body %v, decoded %v (%v)", again, body, err)
	}
	if name, ok := text(s.body, fieldExternalName); s.arm == journalpb.ArmExternalEvent && (!ok || name != event.GetExternalEvent().Name) {
		t.Fatalf("name %q, decoded %v", name, event)
	}
	if at, ok := integer(s.body, fieldTimerFireAt); s.arm == journalpb.ArmTimerCreated && (!ok || at != event.GetTimerCreated().FireAt) {
		t.Fatalf("fire_at %d, decoded %v", at, event)
	}
	if id, ok := text(s.body, fieldChildInstance); s.arm == journalpb.ArmSubOrchestrationScheduled && (!ok || id != event.GetSubOrchestrationScheduled().Instance) {
		t.Fatalf("instance %q, decoded %v", id, event)
	}
}

// FuzzApply shows that no record whatever ends the machine, and that one which
// is refused leaves no trace.
func FuzzApply(f *testing.F) {
	for _, a := range []*journalpb.Append{
		{Instance: "a", Epoch: 1, Segments: []*journalpb.Segment{segmentOf(1, 4, activityDone(2), timerFired(3))}},
		{Instance: "a", Epoch: 1, Segments: []*journalpb.Segment{segmentOf(1, 4, continued()), segmentOf(2, 1, started("b"))}},
		{Instance: "b", Epoch: 1, Segments: []*journalpb.Segment{segmentOf(1, 1, started("b"), subscribed("x"), arrival("x"))}},
		{Instance: "b", Epoch: 1, Segments: []*journalpb.Segment{segmentOf(1, 1, startedBy("a", 1, 2), chained("d"), suspended(), statusSet())}},
		{Instance: "a", Epoch: 2},
	} {
		f.Add(must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{Append: a}})))
	}
	f.Add(must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: &journalpb.Attempt{
		Ref: &journalpb.OperationRef{Instance: "a", Execution: 1, EventId: 2}, Epoch: 1, Failed: 3,
	}}})))
	f.Add(must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Purge{Purge: &journalpb.Purge{Epoch: 1, Instances: []string{"ended", "a"}}}})))
	f.Fuzz(func(t *testing.T, record []byte) {
		m := newMachine(t)
		for _, err := range []error{
			apply(m, "a", segmentOf(1, 1, started("a"), activity(), timer(9))),
			applyAttempt(m, "a", 1, 2, 2),
			apply(m, "ended", segmentOf(1, 1, started("ended"), chained("b"), chained("c"), completed())),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		before := picture(m)
		if _, err := m.Apply(record); err != nil && picture(m) != before {
			t.Fatalf("refused (%v), and not without a trace", err)
		}
		restored := New()
		if err := restored.Restore(bytes.NewReader(write(t, m))); err != nil || picture(restored) != picture(m) {
			t.Fatalf("not restored as it was: %v", err)
		}
	})
}
