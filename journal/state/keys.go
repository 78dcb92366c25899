package state

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
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
