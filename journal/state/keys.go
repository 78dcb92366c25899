package state

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
)

// The first byte of a key is its kind. The package comment describes the rest of the keys, and the
// values.
const (
	keyMeta      = 'm'
	keyInstance  = 'i'
	keyHistory   = 'h'
	keyBusy      = 'b'
	keyUnbegun   = 'u'
	keyChild     = 'c'
	keyCondition = 'd'
	keyTimer     = 't'
	keyChained   = 'x'
	keyFacet     = 'n' // package index has the other keys of the index
)

// idKey returns the key of a record that is identified by an ID.
func idKey(b []byte, kind byte, id string) []byte {
	b = append(b, kind)
	return append(b, id...)
}

// endOfKind returns the first key after all keys of a kind.
func endOfKind(kind byte) []byte { return []byte{kind + 1} }

// chunkKey is the key of a chunk of a history.
type chunkKey struct {
	instanceNumber uint64 // of the instance in the store
	execution      uint64
	first          uint64 // event_id
}

const historyKeySize = 1 + 3*8

func (c chunkKey) appendTo(b []byte) []byte {
	b = append(b, keyHistory)
	b = binary.BigEndian.AppendUint64(b, c.instanceNumber)
	b = binary.BigEndian.AppendUint64(b, c.execution)
	return binary.BigEndian.AppendUint64(b, c.first)
}

// parse decodes the key of a chunk.
func (c *chunkKey) parse(key []byte) error {
	if len(key) != historyKeySize || key[0] != keyHistory {
		return fmt.Errorf("invalid history key of %d bytes: %w", len(key), ErrCorrupt)
	}
	c.instanceNumber = binary.BigEndian.Uint64(key[1:])
	c.execution = binary.BigEndian.Uint64(key[9:])
	c.first = binary.BigEndian.Uint64(key[17:])
	return nil
}

// timerKey is an open timer in the index of timers.
type timerKey struct {
	fireAt    int64
	execution uint64
	event     uint64
	instance  string
}

// signBit is the bit to invert so that signed integers sort as unsigned ones.
const signBit = 1 << 63

// compareByEvent orders the timers of one instance.
func (t timerKey) compareByEvent(other timerKey) int {
	return cmp.Or(cmp.Compare(t.execution, other.execution), cmp.Compare(t.event, other.event))
}

// compareByTime orders timers as their keys are ordered.
func (t timerKey) compareByTime(other timerKey) int {
	return cmp.Or(cmp.Compare(t.fireAt, other.fireAt), t.compareByEvent(other), cmp.Compare(t.instance, other.instance))
}

func (t *timerKey) appendTo(b []byte) []byte {
	b = timerKeyAt(b, t.fireAt)
	b = binary.BigEndian.AppendUint64(b, t.execution)
	b = binary.BigEndian.AppendUint64(b, t.event)
	return append(b, t.instance...)
}

// timerKeyAt returns the first possible key of a timer that is due at a time.
func timerKeyAt(b []byte, at int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, keyTimer), uint64(at)^signBit)
}

func (t *timerKey) parse(key []byte) error {
	if len(key) < historyKeySize || key[0] != keyTimer {
		return fmt.Errorf("invalid timer key of %d bytes: %w", len(key), ErrCorrupt)
	}
	t.fireAt = int64(binary.BigEndian.Uint64(key[1:]) ^ signBit)
	t.execution = binary.BigEndian.Uint64(key[9:])
	t.event = binary.BigEndian.Uint64(key[17:])
	t.instance = string(key[25:])
	return nil
}

const checksumSize = 4

// appendValueChecksum appends to the value b[start:] the CRC-32C of its key and of itself.
func appendValueChecksum(b []byte, start int, key []byte) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, b[start:])
	return binary.LittleEndian.AppendUint32(b, sum)
}

// verifyValue returns the part of a value before its checksum.
func verifyValue(key, value []byte) ([]byte, error) {
	end := len(value) - checksumSize
	if end < 0 || binary.LittleEndian.Uint32(value[end:]) != crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[:end]) {
		return nil, fmt.Errorf("verify value checksum of key %q: %w", key, ErrCorrupt)
	}
	return value[:end:end], nil
}

// chunkBytesMax is the maximum size in bytes of a chunk with more than one event. It bounds what a
// reader of a few events reads and discards.
const chunkBytesMax = 64 << 10

// The fields of a chunk.
const (
	fieldChunkHashBefore = 1
	fieldChunkHashAfter  = 2
	fieldChunkEvent      = 3
)

// chunk is a stored sequence of events of one execution. A flush writes the new events of an
// instance as one or more chunks.
type chunk struct {
	hashBefore uint64 // the hash before the first event
	hashAfter  uint64 // the hash of the last event
	events     [][]byte
}

// nextChunk splits off the events that go into one chunk, at least one.
func nextChunk(events [][]byte) (head, rest [][]byte) {
	size := 0
	for i, event := range events {
		if size += len(event); i > 0 && size > chunkBytesMax {
			return events[:i], events[i:]
		}
	}
	return events, nil
}

// countChunks returns the number of chunks that the events need.
func countChunks(events [][]byte) (n uint64) {
	for len(events) > 0 {
		_, events = nextChunk(events)
		n++
	}
	return n
}

func (c *chunk) appendTo(b []byte) []byte {
	b = protowire.AppendTag(b, fieldChunkHashBefore, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, c.hashBefore)
	b = protowire.AppendTag(b, fieldChunkHashAfter, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, c.hashAfter)
	for _, event := range c.events {
		b = protowire.AppendTag(b, fieldChunkEvent, protowire.BytesType)
		b = protowire.AppendBytes(b, event)
	}
	return b
}

// parse decodes a chunk and verifies its events against the hash chain. The events are parts of
// record.
func (c *chunk) parse(record []byte) error {
	ok := eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == fieldChunkHashBefore && wire == protowire.Fixed64Type:
			c.hashBefore, _ = protowire.ConsumeFixed64(value)
		case number == fieldChunkHashAfter && wire == protowire.Fixed64Type:
			c.hashAfter, _ = protowire.ConsumeFixed64(value)
		case number == fieldChunkEvent && wire == protowire.BytesType:
			event, _ := protowire.ConsumeBytes(value)
			c.events = append(c.events, event[:len(event):len(event)])
		}
	})
	if !ok || len(c.events) == 0 || hashEvents(c.hashBefore, c.events) != c.hashAfter {
		return fmt.Errorf("verify chunk of %d events: %w", len(c.events), ErrCorrupt)
	}
	return nil
}
