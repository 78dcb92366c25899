package state

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The field numbers of Event beside its body.
const (
	fieldEventID       = 1
	fieldTimestamp     = 2
	fieldSourceEventID = 3
)

// skimmed is what the machine reads of an encoded Event: all it needs to guard
// and to index a history, for about a tenth of the price of decoding it.
type skimmed struct {
	id        uint64
	timestamp int64
	source    uint64
	arm       int    // the type, 0: no body that this version knows
	body      []byte // encoded, a part of the event's own bytes where possible
}

// skim reads an encoded Event. It agrees with proto.Unmarshal on every event
// that proto.Unmarshal accepts, including those that no encoder writes: the
// last of a repeated scalar counts, the bodies of a repeated arm are merged,
// fields of an unexpected wire type are unknown ones. It does not look into the
// body.
func skim(b []byte) (e skimmed, ok bool) {
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
		case wire == protowire.BytesType && isArm(number):
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

func (e *skimmed) setScalar(number protowire.Number, v uint64) {
	switch number {
	case fieldEventID:
		e.id = v
	case fieldTimestamp:
		e.timestamp = int64(v)
	case fieldSourceEventID:
		e.source = v
	}
}

func (e *skimmed) setBody(arm int, v []byte) {
	if e.arm == arm && len(e.body) > 0 {
		// Capped, so that the merge never writes into the event's own bytes.
		v = append(e.body[:len(e.body):len(e.body)], v...)
	}
	e.arm, e.body = arm, v
}

// text reads a string field of an encoded message; "" if it is absent. A string
// is UTF-8, or the message is none.
func text(message []byte, field protowire.Number) (value string, ok bool) {
	var last []byte
	ok = each(message, func(number protowire.Number, wire protowire.Type, b []byte) {
		if number == field && wire == protowire.BytesType {
			last, _ = protowire.ConsumeBytes(b)
		}
	})
	return string(last), ok && utf8.Valid(last)
}

// integer reads an int64 field of an encoded message; 0 if it is absent.
func integer(message []byte, field protowire.Number) (value int64, ok bool) {
	ok = each(message, func(number protowire.Number, wire protowire.Type, b []byte) {
		if number == field && wire == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b)
			value = int64(v)
		}
	})
	return value, ok
}

// each visits the fields of an encoded message, each with its encoded value. It
// reports whether the message is well formed.
func each(message []byte, visit func(protowire.Number, protowire.Type, []byte)) bool {
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

// isArm reports whether a field of Event is a type of event.
func isArm(number protowire.Number) bool {
	return number >= journalpb.ArmOrchestrationStarted && number <= journalpb.ArmStatusSet && number != 19
}
