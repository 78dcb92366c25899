package state

import (
	"hash/crc32"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// stepEvents are the two events of a step of a run with activities, 166 bytes in total.
func stepEvents() []*journalpb.Event {
	done, next := activityDone(4), activity()
	done.EventId, done.Timestamp = 5, 1_790_000_000_000_000_000
	done.GetActivityCompleted().Result = &journalpb.Payload{ContentType: "application/json", Data: []byte(`{"receipt":"4711-0815","total":129.95}`)}
	next.EventId, next.Timestamp = 6, 1_790_000_000_000_000_000
	next.GetActivityScheduled().Input = &journalpb.Payload{ContentType: "application/json", Data: []byte(`{"order":"order-17","address":"Main St 1"}`)}
	return []*journalpb.Event{done, next}
}

// BenchmarkCodec compares generated with hand-written code, for an append of one step, per event:
// encoding and decoding in the proposer, and what the machine reads; see bench/RESULTS.md.
func BenchmarkCodec(b *testing.B) {
	events := stepEvents()
	var encoded [][]byte
	for _, e := range events {
		encoded = append(encoded, must(proto.Marshal(e)))
	}
	record := must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{Append: &journalpb.Append{
		Instance: "order-17", Epoch: 1, Segments: []*journalpb.Segment{{Execution: 1, FirstEventId: 5, Events: encoded}},
	}}}))
	benchPerEvent(b, "record/decode/generated", func() {
		var r journalpb.Record
		if proto.Unmarshal(record, &r) != nil {
			b.Fatal("it does not decode")
		}
	})
	var c command
	benchPerEvent(b, "record/decode/by hand", func() {
		if c.parse(record) != nil {
			b.Fatal("it does not decode")
		}
	})
	buffer := make([]byte, 0, 1024)
	benchPerEvent(b, "events/encode/generated", func() {
		buffer = buffer[:0]
		for _, e := range events {
			buffer = must(proto.MarshalOptions{}.MarshalAppend(buffer, e))
		}
	})
	benchPerEvent(b, "events/encode/by hand", func() {
		buffer = buffer[:0]
		for _, e := range events {
			buffer = appendEventByHand(buffer, e)
		}
	})
	benchPerEvent(b, "events/decode/generated", func() {
		for i := range encoded {
			var e journalpb.Event
			if proto.Unmarshal(encoded[i], &e) != nil {
				b.Fatal("it does not decode")
			}
		}
	})
	benchPerEvent(b, "events/decode/skimmed", func() {
		for i := range encoded {
			if _, ok := parseEventFields(encoded[i]); !ok {
				b.Fatal("it does not decode")
			}
		}
	})
	chainHash := uint64(0)
	benchPerEvent(b, "events/chain", func() { chainHash = hashEvents(chainHash, encoded) })
	sum := uint32(0)
	benchPerEvent(b, "record/CRC-32C", func() { sum ^= crc32.Checksum(record, castagnoli) })
	b.Logf("%d bytes of events, a record of %d; %x %x", len(encoded[0])+len(encoded[1]), len(record), chainHash, sum)
}

// benchPerEvent runs f once for each append of two events.
func benchPerEvent(b *testing.B, name string, do func()) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			do()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/event")
	})
}

// appendEventByHand encodes the two types of stepEvents as the generated code does, without
// reflection.
func appendEventByHand(b []byte, e *journalpb.Event) []byte {
	b = appendUint(b, fieldEventID, e.EventId)
	b = appendUint(b, fieldTimestamp, uint64(e.Timestamp))
	b = appendUint(b, fieldSourceEventID, e.SourceEventId)
	switch body := e.Body.(type) {
	case *journalpb.Event_ActivityCompleted:
		return appendNested(b, journalpb.TypeActivityCompleted, func(b []byte) []byte {
			b = appendPayloadByHand(b, 1, body.ActivityCompleted.Result)
			return appendUint(b, 2, uint64(body.ActivityCompleted.Attempts))
		})
	case *journalpb.Event_ActivityScheduled:
		return appendNested(b, journalpb.TypeActivityScheduled, func(b []byte) []byte {
			b = appendText(b, 1, body.ActivityScheduled.Name)
			return appendPayloadByHand(b, 2, body.ActivityScheduled.Input)
		})
	}
	return b
}

func appendPayloadByHand(b []byte, field protowire.Number, p *journalpb.Payload) []byte {
	return appendNested(b, field, func(b []byte) []byte {
		b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), p.Data)
		return appendText(b, 2, p.ContentType)
	})
}

// Both encodings are equal.
func TestAppendEventByHand_MatchesGenerated(t *testing.T) {
	for _, e := range stepEvents() {
		if got, want := appendEventByHand(nil, e), must(proto.Marshal(e)); string(got) != string(want) {
			t.Errorf("%x is not %x", got, want)
		}
	}
}
