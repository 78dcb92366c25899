package state

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// The first byte of a key says what it is the key of. The package comment has
// the rest of the keys, and the values.
const (
	keyMeta     = 'm'
	keyInstance = 'i'
	keyHistory  = 'h'
	keyBusy     = 'b'
	keyUnbegun  = 'u'
	keyChild    = 'c'
	keyHeld     = 'd'
	keyTimer    = 't'
	keyChained  = 'x'
)

// idKey returns the key of something that goes by an ID.
func idKey(b []byte, kind byte, id string) []byte {
	b = append(b, kind)
	return append(b, id...)
}

// afterAll returns the first key that comes after all of a kind.
func afterAll(kind byte) []byte { return []byte{kind + 1} }

// place is where a chunk of a history stands.
type place struct {
	number    uint64 // of the instance in the store
	execution uint64
	first     uint64 // event_id
}

const historyKeySize = 1 + 3*8

func (p place) key(b []byte) []byte {
	b = append(b, keyHistory)
	b = binary.BigEndian.AppendUint64(b, p.number)
	b = binary.BigEndian.AppendUint64(b, p.execution)
	return binary.BigEndian.AppendUint64(b, p.first)
}

// parse reads a key of a history.
func (p *place) parse(key []byte) error {
	if len(key) != historyKeySize || key[0] != keyHistory {
		return fmt.Errorf("the key of a history of %d bytes: %w", len(key), ErrCorrupt)
	}
	p.number = binary.BigEndian.Uint64(key[1:])
	p.execution = binary.BigEndian.Uint64(key[9:])
	p.first = binary.BigEndian.Uint64(key[17:])
	return nil
}

// alarm is an open timer, as the index of timers has it.
type alarm struct {
	fireAt    int64
	execution uint64
	event     uint64
	instance  string
}

// signBit turns the order of signed integers into that of unsigned ones.
const signBit = 1 << 63

// order is that of the timers of one instance.
func (a alarm) order(other alarm) int {
	return cmp.Or(cmp.Compare(a.execution, other.execution), cmp.Compare(a.event, other.event))
}

// byTime is the order of their keys.
func (a alarm) byTime(other alarm) int {
	return cmp.Or(cmp.Compare(a.fireAt, other.fireAt), a.order(other), cmp.Compare(a.instance, other.instance))
}

func (a *alarm) key(b []byte) []byte {
	b = dueKey(b, a.fireAt)
	b = binary.BigEndian.AppendUint64(b, a.execution)
	b = binary.BigEndian.AppendUint64(b, a.event)
	return append(b, a.instance...)
}

// dueKey returns the first key of the timers that are due at a time.
func dueKey(b []byte, at int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, keyTimer), uint64(at)^signBit)
}

func (a *alarm) parse(key []byte) error {
	if len(key) < historyKeySize || key[0] != keyTimer {
		return fmt.Errorf("the key of a timer of %d bytes: %w", len(key), ErrCorrupt)
	}
	a.fireAt = int64(binary.BigEndian.Uint64(key[1:]) ^ signBit)
	a.execution = binary.BigEndian.Uint64(key[9:])
	a.event = binary.BigEndian.Uint64(key[17:])
	a.instance = string(key[25:])
	return nil
}

const checksumSize = 4

// appendChecksum ends the value at the end of b, which begins at start, with the
// CRC-32C of its key and of it.
func appendChecksum(b []byte, start int, key []byte) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, b[start:])
	return binary.LittleEndian.AppendUint32(b, sum)
}

// checked returns what stands before the checksum of a value, a part of it.
func checked(key, value []byte) ([]byte, error) {
	end := len(value) - checksumSize
	if end < 0 || binary.LittleEndian.Uint32(value[end:]) != crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[:end]) {
		return nil, fmt.Errorf("check the value of %q: %w", key, ErrCorrupt)
	}
	return value[:end:end], nil
}
