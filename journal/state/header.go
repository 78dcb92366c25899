package state

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The fields of an instance's header in the store. Headers are encoded by hand for speed, because a
// flush writes one for each changed instance. See the package comment.
const (
	fieldHeaderNumber      = 1
	fieldHeaderChunks      = 2
	fieldHeaderChainHash   = 3
	fieldHeaderExecution   = 4
	fieldHeaderLast        = 5
	fieldHeaderStatus      = 6
	fieldHeaderSuspended   = 7
	fieldHeaderName        = 8
	fieldHeaderVersion     = 9
	fieldHeaderStatusEvent = 10
	fieldHeaderTag         = 11
	fieldHeaderFirst       = 12
	fieldHeaderParent      = 13
	fieldHeaderRequest     = 14
	fieldHeaderCreated     = 15
	fieldHeaderUpdated     = 16
	fieldHeaderOperation   = 17
	fieldHeaderBuffered    = 18
	fieldHeaderAttempt     = 19
	fieldHeaderIncarnation = 20
	fieldHeaderCondition   = 21
	fieldHeaderAttribute   = 22
	fieldHeaderValue       = 23
	fieldHeaderSummary     = 24
	fieldHeaderErrorCode   = 25
	fieldHeaderIndexed     = 26
	fieldHeaderCopied      = 27
)

// The fields of an open operation in a header. Tags and buffered names have the first two.
const (
	fieldFirst  = 1
	fieldSecond = 2
	fieldThird  = 3
	fieldFourth = 4
	fieldFifth  = 5
	fieldSixth  = 6

	fieldOperationHeld       = 32
	fieldOperationRetryNow   = 33
	fieldOperationAdjustedBy = 34
)

// appendHeader appends everything that the store keeps of an instance except its history.
func (in *instance) appendHeader(b []byte) []byte {
	b = appendUint(b, fieldHeaderNumber, in.instanceNumber)
	b = appendUint(b, fieldHeaderChunks, in.chunks)
	b = protowire.AppendTag(b, fieldHeaderChainHash, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, in.chainHash)
	b = appendUint(b, fieldHeaderIndexed, in.indexedIn)
	b = in.indexEntry.appendTo(b)
	for i := range in.open {
		b = in.open[i].appendTo(b)
	}
	for name, count := range in.bufferedEvents {
		b = appendPair(b, fieldHeaderBuffered, name, func(b []byte) []byte { return appendUint(b, fieldSecond, uint64(count)) })
	}
	if in.attempts != nil {
		for _, a := range in.sortedAttempts() {
			b = protowire.AppendTag(b, fieldHeaderAttempt, protowire.BytesType)
			b = protowire.AppendBytes(b, a.encoded)
		}
	}
	if in.condition != nil {
		b = protowire.AppendTag(b, fieldHeaderCondition, protowire.BytesType)
		b = protowire.AppendBytes(b, in.condition)
	}
	return b
}

func (i *indexEntry) appendTo(b []byte) []byte {
	b = appendUint(b, fieldHeaderExecution, i.execution)
	b = appendUint(b, fieldHeaderLast, i.last)
	b = appendUint(b, fieldHeaderStatus, uint64(i.status))
	if i.suspended {
		b = appendUint(b, fieldHeaderSuspended, 1)
	}
	b = appendText(b, fieldHeaderName, i.name)
	b = appendText(b, fieldHeaderVersion, i.version)
	b = appendUint(b, fieldHeaderStatusEvent, i.statusEvent)
	for key, value := range i.tags {
		b = appendPair(b, fieldHeaderTag, key, func(b []byte) []byte { return appendText(b, fieldSecond, value) })
	}
	b = appendUint(b, fieldHeaderFirst, i.first)
	if i.parent != nil {
		b = protowire.AppendTag(b, fieldHeaderParent, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(i.parent.size()))
		b = i.parent.encode(b)
	}
	b = appendText(b, fieldHeaderRequest, i.requestID)
	b = appendUint(b, fieldHeaderCreated, uint64(i.created))
	b = appendUint(b, fieldHeaderUpdated, uint64(i.updated))
	b = appendUint(b, fieldHeaderIncarnation, i.incarnation)
	b = appendText(b, fieldHeaderSummary, i.summary)
	b = appendText(b, fieldHeaderErrorCode, i.errorCode)
	b = appendUint(b, fieldHeaderCopied, i.copiedEvent)
	return i.publishedState.appendTo(b)
}

func (op *operation) appendTo(b []byte) []byte {
	return appendNested(b, fieldHeaderOperation, func(b []byte) []byte {
		b = appendUint(b, fieldFirst, op.id)
		b = appendUint(b, fieldSecond, uint64(op.eventType))
		b = appendUint(b, fieldThird, uint64(op.fireAt))
		b = appendText(b, fieldFourth, op.target)
		b = appendText(b, fieldFifth, op.name)
		b = appendUint(b, fieldSixth, uint64(op.since))
		if op.control.held {
			b = appendUint(b, fieldOperationHeld, 1)
		}
		b = appendUint(b, fieldOperationRetryNow, uint64(op.control.retryNow))
		return appendUint(b, fieldOperationAdjustedBy, op.control.adjustedBy)
	})
}

// appendUint appends a field, unless it is 0.
func appendUint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// appendText appends a field, unless it is empty.
func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func appendPair(b []byte, field protowire.Number, key string, value func([]byte) []byte) []byte {
	return appendNested(b, field, func(b []byte) []byte { return value(appendText(b, fieldFirst, key)) })
}

// appendNested appends a nested message. It reserves one byte for the length, which most need, and
// moves longer messages to make room.
func appendNested(b []byte, field protowire.Number, fill func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	start := len(b)
	b = fill(append(b, 0))
	size := len(b) - start - 1
	if reserved := protowire.SizeVarint(uint64(size)); reserved > 1 {
		b = append(b, make([]byte, reserved-1)...)
		copy(b[start+reserved:], b[start+1:start+1+size])
	}
	protowire.AppendVarint(b[:start], uint64(size))
	return b
}

// parseHeader decodes the header of an instance from the store. The instance has no events in
// memory and is not dirty.
func parseHeader(id string, record []byte) (*instance, error) {
	in := &instance{id: id}
	wellFormed := true
	ok := eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch wire {
		case protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			in.setHeaderNumber(number, v)
		case protowire.Fixed64Type:
			if number == fieldHeaderChainHash {
				in.chainHash, _ = protowire.ConsumeFixed64(value)
			}
		case protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			wellFormed = in.setHeaderBytes(number, v) && wellFormed
		}
	})
	if !ok || !wellFormed || in.instanceNumber == 0 || in.execution == 0 || in.last == 0 {
		return nil, fmt.Errorf("decode header of instance %q: %w", id, ErrCorrupt)
	}
	in.storedState.markStored(in)
	return in, nil
}

func (in *instance) setHeaderNumber(field protowire.Number, v uint64) {
	switch field {
	case fieldHeaderNumber:
		in.instanceNumber = v
	case fieldHeaderChunks:
		in.chunks = v
	case fieldHeaderExecution:
		in.execution = v
	case fieldHeaderLast:
		in.last = v
	case fieldHeaderStatus:
		in.status = journalpb.Status(v)
	case fieldHeaderSuspended:
		in.suspended = v != 0
	case fieldHeaderStatusEvent:
		in.statusEvent = v
	case fieldHeaderFirst:
		in.first = v
	case fieldHeaderCreated:
		in.created = int64(v)
	case fieldHeaderUpdated:
		in.updated = int64(v)
	case fieldHeaderIncarnation:
		in.incarnation = v
	case fieldHeaderIndexed:
		in.indexedIn = v
	case fieldHeaderCopied:
		in.copiedEvent = v
	}
}

func (in *instance) setHeaderBytes(field protowire.Number, v []byte) (ok bool) {
	switch field {
	case fieldHeaderName:
		in.name = string(v)
	case fieldHeaderVersion:
		in.version = string(v)
	case fieldHeaderRequest:
		in.requestID = string(v)
	case fieldHeaderSummary:
		in.summary = string(v)
	case fieldHeaderErrorCode:
		in.errorCode = string(v)
	case fieldHeaderTag:
		return in.addTag(v)
	case fieldHeaderParent:
		in.parent = &operationRef{}
		return in.parent.parse(v)
	case fieldHeaderOperation:
		return in.addOperation(v)
	case fieldHeaderBuffered:
		return in.addBuffered(v)
	case fieldHeaderAttempt:
		return in.addAttempt(v)
	case fieldHeaderCondition:
		return in.restoreCondition(v) == nil
	case fieldHeaderAttribute:
		return in.addAttribute(v)
	case fieldHeaderValue:
		return in.addValue(v)
	}
	return true
}

func (in *instance) addTag(b []byte) bool {
	key, _ := stringField(b, fieldFirst)
	value, ok := stringField(b, fieldSecond)
	if in.tags == nil {
		in.tags = map[string]string{}
	}
	in.tags[key] = value
	return ok
}

func (in *instance) addBuffered(b []byte) bool {
	name, _ := stringField(b, fieldFirst)
	count, ok := intField(b, fieldSecond)
	if in.bufferedEvents == nil {
		in.bufferedEvents = map[string]int{}
	}
	in.bufferedEvents[name] = int(count)
	return ok
}

func (in *instance) addOperation(b []byte) bool {
	id, _ := intField(b, fieldFirst)
	eventType, _ := intField(b, fieldSecond)
	fireAt, _ := intField(b, fieldThird)
	held, _ := intField(b, fieldOperationHeld)
	retryNow, _ := intField(b, fieldOperationRetryNow)
	adjustedBy, _ := intField(b, fieldOperationAdjustedBy)
	target, ok := stringField(b, fieldFourth)
	name, nameOK := stringField(b, fieldFifth)
	since, _ := intField(b, fieldSixth)
	in.open = append(in.open, operation{
		id: uint64(id), eventType: int(eventType), fireAt: fireAt, target: target, name: name, since: since,
		control: control{held: held != 0, retryNow: uint32(retryNow), adjustedBy: uint64(adjustedBy)},
	})
	return ok && nameOK
}

func (in *instance) addAttempt(b []byte) bool {
	a := &journalpb.Attempt{}
	if proto.Unmarshal(b, a) != nil {
		return false
	}
	in.setAttempt(a.GetRef().GetEventId(), a.Failed, append([]byte(nil), b...))
	return true
}
