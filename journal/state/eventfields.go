package state

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The field numbers of Event besides its body.
const (
	fieldEventID       = 1
	fieldTimestamp     = 2
	fieldSourceEventID = 3
)

// eventFields is what the machine reads of an encoded Event to check and index a history. Parsing
// it costs about a tenth of decoding the event.
type eventFields struct {
	id        uint64
	timestamp int64
	source    uint64
	eventType int    // 0: no body of a type that this version knows
	body      []byte // encoded, a part of the event's own bytes where possible
}

// parseEventFields reads an encoded Event without its body. It returns what proto.Unmarshal returns
// for every event that proto.Unmarshal accepts, also in unusual encodings: the last of a repeated
// scalar counts, repeated bodies of one type are merged, and a field of an unexpected wire type is
// unknown.
func parseEventFields(b []byte) (e eventFields, ok bool) {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return e, false
		}
		b = b[n:]
		switch {
		case wire == protowire.VarintType && number <= fieldSourceEventID:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return e, false
			}
			e.setScalar(number, v)
			b = b[n:]
		case wire == protowire.BytesType && isEventType(number):
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return e, false
			}
			e.setBody(int(number), v)
			b = b[n:]
		default:
			n := protowire.ConsumeFieldValue(number, wire, b)
			if n < 0 {
				return e, false
			}
			b = b[n:]
		}
	}
	return e, true
}

func (e *eventFields) setScalar(number protowire.Number, v uint64) {
	switch number {
	case fieldEventID:
		e.id = v
	case fieldTimestamp:
		e.timestamp = int64(v)
	case fieldSourceEventID:
		e.source = v
	}
}

func (e *eventFields) setBody(eventType int, v []byte) {
	if e.eventType == eventType && len(e.body) > 0 {
		// The capacity is the length, so that append copies and never writes into the event's own
		// bytes.
		v = append(e.body[:len(e.body):len(e.body)], v...)
	}
	e.eventType, e.body = eventType, v
}

// stringField reads a string field of an encoded message; "" if it is absent. It fails if the
// string is not UTF-8.
func stringField(message []byte, field protowire.Number) (value string, ok bool) {
	var last []byte
	ok = eachField(message, func(number protowire.Number, wire protowire.Type, b []byte) {
		if number == field && wire == protowire.BytesType {
			last, _ = protowire.ConsumeBytes(b)
		}
	})
	return string(last), ok && utf8.Valid(last)
}

// intField reads an int64 field of an encoded message; 0 if it is absent.
func intField(message []byte, field protowire.Number) (value int64, ok bool) {
	ok = eachField(message, func(number protowire.Number, wire protowire.Type, b []byte) {
		if number == field && wire == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b)
			value = int64(v)
		}
	})
	return value, ok
}

// eachField visits the fields of an encoded message, each with its encoded value. It reports
// whether the message is well formed.
func eachField(message []byte, visit func(protowire.Number, protowire.Type, []byte)) bool {
	for len(message) > 0 {
		number, wire, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, wire, message); n < 0 {
			return false
		}
		visit(number, wire, message[:n])
		message = message[n:]
	}
	return true
}

// isEventType reports whether a field of Event is an event type.
func isEventType(number protowire.Number) bool {
	return number >= journalpb.TypeOrchestrationStarted && number <= journalpb.TypeHistoryCopied && number != 19
}
