package state

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func TestIsEventType_MatchesSchema(t *testing.T) {
	eventTypes := (&journalpb.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	known := 0
	for n := protowire.Number(1); n < 200; n++ {
		if isEventType(n) {
			known++
		}
		if isEventType(n) != (eventTypes.ByNumber(n) != nil) {
			t.Errorf("number %d: event type %v, schema %v", n, isEventType(n), eventTypes.ByNumber(n))
		}
	}
	if known != eventTypes.Len() {
		t.Errorf("%d event types, %d in the schema", known, eventTypes.Len())
	}
}

func FuzzParseEventFields(f *testing.F) {
	for _, e := range []*journalpb.Event{
		{}, started("a"), completed(), continued(), activity(), activityDone(2), timer(-5), timerFired(3),
		child("c"), childDone(4), subscribed("s"), externalEvent("s"), canceled(5),
		{EventId: 1 << 63, Timestamp: -1, SourceEventId: 1<<64 - 1},
	} {
		encoded := must(proto.Marshal(e))
		f.Add(encoded)
		f.Add(append(bytes.Clone(encoded), encoded...))        // merged with itself
		f.Add(append(bytes.Clone(encoded), 0x7a, 0x00))        // the later type wins
		f.Add(append(bytes.Clone(encoded), 0xf8, 0x06, 0x01))  // an unknown field
		f.Add(append([]byte{0x0a, 0x00, 0x50, 1}, encoded...)) // known numbers, wrong wire types
	}
	f.Add([]byte{0x08})
	f.Add([]byte{0x52, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		original := bytes.Clone(b)
		fields, ok := parseEventFields(b)
		if !bytes.Equal(b, original) {
			t.Fatal("parseEventFields changed the event")
		}
		var event journalpb.Event
		if err := proto.Unmarshal(b, &event); err != nil {
			return // parseEventFields does not read bodies, so it may accept more
		}
		if !ok {
			t.Fatal("parseEventFields rejects what proto.Unmarshal accepts")
		}
		compareEvent(t, fields, &event)
	})
}

func compareEvent(t *testing.T, s eventFields, event *journalpb.Event) {
	if s.id != event.EventId || s.timestamp != event.Timestamp || s.source != event.SourceEventId {
		t.Fatalf("parsed %+v, decoded %v", s, event)
	}
	m := event.ProtoReflect()
	eventType := m.WhichOneof(m.Descriptor().Oneofs().ByName("body"))
	if eventType == nil {
		if s.eventType != 0 {
			t.Fatalf("event type %d of an event without a body", s.eventType)
		}
		return
	}
	if int(eventType.Number()) != s.eventType {
		t.Fatalf("event type %d, decoded %d", s.eventType, eventType.Number())
	}
	body := m.Get(eventType).Message()
	again := body.New()
	if err := proto.Unmarshal(s.body, again.Interface()); err != nil || !proto.Equal(body.Interface(), again.Interface()) {
		t.Fatalf("body %v, decoded %v (%v)", again, body, err)
	}
	if name, ok := stringField(s.body, fieldExternalName); s.eventType == journalpb.TypeExternalEvent && (!ok || name != event.GetExternalEvent().Name) {
		t.Fatalf("name %q, decoded %v", name, event)
	}
	if at, ok := intField(s.body, fieldTimerFireAt); s.eventType == journalpb.TypeTimerCreated && (!ok || at != event.GetTimerCreated().FireAt) {
		t.Fatalf("fire_at %d, decoded %v", at, event)
	}
	if id, ok := stringField(s.body, fieldChildInstance); s.eventType == journalpb.TypeSubOrchestrationScheduled && (!ok || id != event.GetSubOrchestrationScheduled().Instance) {
		t.Fatalf("instance %q, decoded %v", id, event)
	}
}

// FuzzApply checks that no record crashes the machine, and that a rejected record changes nothing.
func FuzzApply(f *testing.F) {
	for _, a := range []*journalpb.Append{
		{Instance: "a", Epoch: 1, Segments: []*journalpb.Segment{segmentOf(1, 4, activityDone(2), timerFired(3))}},
		{Instance: "a", Epoch: 1, Segments: []*journalpb.Segment{segmentOf(1, 4, continued()), segmentOf(2, 1, started("b"))}},
		{Instance: "b", Epoch: 1, Segments: []*journalpb.Segment{segmentOf(1, 1, started("b"), subscribed("x"), externalEvent("x"))}},
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
			applyAppend(m, "a", segmentOf(1, 1, started("a"), activity(), timer(9))),
			applyAttempt(m, "a", 1, 2, 2),
			applyAppend(m, "ended", segmentOf(1, 1, started("ended"), chained("b"), chained("c"), completed())),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		before := dumpIndex(m)
		if _, err := m.Apply(record); err != nil && dumpIndex(m) != before {
			t.Fatalf("rejected (%v), but the state changed", err)
		}
		restored := New()
		if err := restored.Restore(bytes.NewReader(encodeSnapshot(t, m))); err != nil || dumpIndex(restored) != dumpIndex(m) {
			t.Fatalf("restored differently: %v", err)
		}
	})
}
