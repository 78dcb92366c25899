package state

import (
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The field numbers of Record, one for each command.
const (
	commandAppend   = 1
	commandEpoch    = 2
	commandAttempt  = 3
	commandPurge    = 4
	commandMetadata = 5

	commandCondition = 6
	commandCopy      = 7
)

// command is a decoded Record. Its byte slices are parts of the record.
type command struct {
	kind     protowire.Number
	append   appendCommand
	attempt  attemptCommand
	purge    purgeCommand
	metadata metadataChange

	condition setConditionCommand
	copy      copyCommand
}

type appendCommand struct {
	instance []byte
	epoch    uint64
	segments []segment
	// The target instances of its detached starts; see isDetachedStart.
	targets [][]byte
}

// attemptCommand is an Attempt, decoded and encoded.
type attemptCommand struct {
	message *journalpb.Attempt
	encoded []byte
}

type purgeCommand struct {
	epoch     uint64
	instances [][]byte
}

type segment struct {
	execution uint64
	first     uint64
	events    [][]byte
	copied    *copyCommand // by which it was made; nil for that of an Append
}

// parse decodes a Record into c and reuses the slices of c.
func (c *command) parse(record []byte) error {
	number, wire, n := protowire.ConsumeTag(record)
	if n < 0 || wire != protowire.BytesType {
		return fmt.Errorf("read record: %w", ErrCorrupt)
	}
	body, m := protowire.ConsumeBytes(record[n:])
	if m < 0 || n+m != len(record) {
		return fmt.Errorf("read record: %w", ErrCorrupt)
	}
	ok := true
	switch c.kind = number; number {
	case commandAppend:
		ok = c.append.parse(body)
	case commandEpoch:
		ok = c.metadata.parseEpoch(body)
	case commandAttempt:
		ok = c.attempt.parse(body)
	case commandPurge:
		ok = c.purge.parse(body)
	case commandMetadata:
		ok = c.metadata.parse(body)
	case commandCondition:
		ok = c.condition.parse(body)
	case commandCopy:
		ok = c.copy.parse(body)
	default:
		return fmt.Errorf("unknown command %d: %w", number, ErrCorrupt)
	}
	if !ok {
		return fmt.Errorf("read command %d: %w", number, ErrCorrupt)
	}
	return nil
}

// parse decodes the whole message, although the machine reads little of it. A recorded attempt can
// then be decoded later without an error.
func (a *attemptCommand) parse(b []byte) bool {
	a.message, a.encoded = &journalpb.Attempt{}, b
	return proto.Unmarshal(b, a.message) == nil
}

func (p *purgeCommand) parse(b []byte) bool {
	p.epoch, p.instances = 0, nil
	return eachField(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == 1 && wire == protowire.VarintType:
			p.epoch, _ = protowire.ConsumeVarint(value)
		case number == 2 && wire == protowire.BytesType:
			id, _ := protowire.ConsumeBytes(value)
			p.instances = append(p.instances, id)
		}
	})
}

func (a *appendCommand) parse(b []byte) bool {
	a.instance, a.epoch, a.segments = nil, 0, a.segments[:0]
	wellFormed := true
	return eachField(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == 1 && wire == protowire.BytesType:
			a.instance, _ = protowire.ConsumeBytes(value)
		case number == 2 && wire == protowire.VarintType:
			a.epoch, _ = protowire.ConsumeVarint(value)
		case number == 3 && wire == protowire.BytesType:
			body, _ := protowire.ConsumeBytes(value)
			wellFormed = a.nextSegment().parse(body) && wellFormed
		}
	}) && wellFormed
}

// collectTargets collects the targets of the detached starts. The machine must load them before it
// applies the append.
func (a *appendCommand) collectTargets() {
	a.targets = a.targets[:0]
	for i := range a.segments {
		for _, encoded := range a.segments[i].events {
			if e, ok := parseEventFields(encoded); ok && e.isDetachedStart() {
				target, _ := stringField(e.body, fieldChildInstance)
				a.targets = append(a.targets, []byte(target))
			}
		}
	}
}

// nextSegment appends an empty segment that reuses the event slice of an earlier one.
func (a *appendCommand) nextSegment() *segment {
	n := len(a.segments)
	if n < cap(a.segments) {
		a.segments = a.segments[:n+1]
	} else {
		a.segments = append(a.segments, segment{})
	}
	s := &a.segments[n]
	*s = segment{events: s.events[:0]}
	return s
}

func (s *segment) parse(b []byte) bool {
	return eachField(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == 1 && wire == protowire.VarintType:
			s.execution, _ = protowire.ConsumeVarint(value)
		case number == 2 && wire == protowire.VarintType:
			s.first, _ = protowire.ConsumeVarint(value)
		case number == 3 && wire == protowire.BytesType:
			event, _ := protowire.ConsumeBytes(value)
			// Its capacity is its length, so that an append to it cannot overwrite the next event.
			s.events = append(s.events, event[:len(event):len(event)])
		}
	})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The field numbers of ChecksummedRecord.
const (
	fieldChecksummedRecord = 1
	fieldChecksummedCRC    = 2
)

// ChecksummedSize returns the encoded length in bytes of a ChecksummedRecord that holds a record of
// size bytes.
func ChecksummedSize(size int) int {
	return protowire.SizeTag(fieldChecksummedRecord) + protowire.SizeBytes(size) +
		protowire.SizeTag(fieldChecksummedCRC) + protowire.SizeFixed32()
}

// AppendChecksummed appends an encoded ChecksummedRecord to dst: a record and its CRC-32C. fill
// must append the record to its argument, exactly size bytes.
func AppendChecksummed(dst []byte, size int, fill func([]byte) []byte) []byte {
	dst = protowire.AppendTag(dst, fieldChecksummedRecord, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	start := len(dst)
	dst = fill(dst)
	sum := crc32.Checksum(dst[start:], castagnoli)
	dst = protowire.AppendTag(dst, fieldChecksummedCRC, protowire.Fixed32Type)
	return protowire.AppendFixed32(dst, sum)
}

// ParseChecksummed returns the record in an encoded ChecksummedRecord, as a part of the given
// bytes. It returns an error that wraps ErrCorrupt if the checksum is absent or wrong.
func ParseChecksummed(checksummed []byte) (record []byte, err error) {
	var sum uint32
	var hasSum bool
	ok := eachField(checksummed, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == fieldChecksummedRecord && wire == protowire.BytesType:
			record, _ = protowire.ConsumeBytes(value)
		case number == fieldChecksummedCRC && wire == protowire.Fixed32Type:
			sum, _ = protowire.ConsumeFixed32(value)
			hasSum = true
		}
	})
	if !ok || !hasSum || crc32.Checksum(record, castagnoli) != sum {
		return nil, fmt.Errorf("verify record checksum: %w", ErrCorrupt)
	}
	return record, nil
}
