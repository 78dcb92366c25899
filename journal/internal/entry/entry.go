package entry

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// currentFormat is the number in Entry.format.
const currentFormat = 1

// The field numbers of Entry.
const (
	fieldEntryFormat  = 1
	fieldEntryRecords = 2
)

// The field numbers of Record.
const (
	commandAppend   = 1
	commandEpoch    = 2
	commandAttempt  = 3
	commandPurge    = 4
	commandMetadata = 5

	commandCondition = 6
	commandCopy      = 7
)

// A record is encoded once, in the caller's goroutine, as the complete field Entry.records; packing
// is then a copy. It is encoded by hand because generated code would build four messages around
// bytes that are encoded already.

// EncodeAppend returns the field Entry.records of an Append.
func EncodeAppend(a *journalpb.Append) []byte {
	body := sizeAppend(a)
	return EncodeRecord(commandAppend, body, func(b []byte) []byte { return appendAppend(b, a) })
}

// EncodeEpoch returns the field Entry.records of an Epoch.
func EncodeEpoch(node string, clock int64, protocol uint32) []byte {
	size := 1 + protowire.SizeBytes(len(node)) + 1 + protowire.SizeVarint(uint64(clock)) + 2 + protowire.SizeVarint(uint64(protocol))
	return EncodeRecord(commandEpoch, size, func(b []byte) []byte {
		b = protowire.AppendTag(b, 1, protowire.BytesType)
		b = protowire.AppendString(b, node)
		b = protowire.AppendTag(b, 2, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(clock))
		b = protowire.AppendTag(b, 44, protowire.VarintType)
		return protowire.AppendVarint(b, uint64(protocol))
	})
}

// EncodeMetadataChange returns the field Entry.records of a MetadataChange. It returns an error if
// a text in it is not UTF-8.
func EncodeMetadataChange(c *journalpb.MetadataChange) ([]byte, error) {
	body, err := proto.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode metadata change: %w", err)
	}
	return EncodeRecord(commandMetadata, len(body), func(b []byte) []byte { return append(b, body...) }), nil
}

// EncodeAttempt returns the field Entry.records of an Attempt. It returns an error if a text in it
// is not UTF-8.
func EncodeAttempt(a *journalpb.Attempt) ([]byte, error) {
	body, err := proto.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode attempt: %w", err)
	}
	return EncodeRecord(commandAttempt, len(body), func(b []byte) []byte { return append(b, body...) }), nil
}

// EncodeSetCondition returns the field Entry.records of a SetCondition. It returns an error if a
// text in it is not UTF-8.
func EncodeSetCondition(c *journalpb.SetCondition) ([]byte, error) {
	body, err := proto.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode condition: %w", err)
	}
	return EncodeRecord(commandCondition, len(body), func(b []byte) []byte { return append(b, body...) }), nil
}

// EncodeCopyHistory returns the field Entry.records of a CopyHistory. It returns an error if a text
// in it is not UTF-8.
func EncodeCopyHistory(c *journalpb.CopyHistory) ([]byte, error) {
	body, err := proto.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode copy of a history: %w", err)
	}
	return EncodeRecord(commandCopy, len(body), func(b []byte) []byte { return append(b, body...) }), nil
}

// EncodePurge returns the field Entry.records of a Purge.
func EncodePurge(p *journalpb.Purge) []byte {
	size := 1 + protowire.SizeVarint(p.Epoch)
	for _, id := range p.Instances {
		size += 1 + protowire.SizeBytes(len(id))
	}
	return EncodeRecord(commandPurge, size, func(b []byte) []byte {
		b = protowire.AppendTag(b, 1, protowire.VarintType)
		b = protowire.AppendVarint(b, p.Epoch)
		for _, id := range p.Instances {
			b = protowire.AppendTag(b, 2, protowire.BytesType)
			b = protowire.AppendString(b, id)
		}
		return b
	})
}

// ConcernsMetadata reports whether an encoded Record is a MetadataChange or an Epoch.
func ConcernsMetadata(record []byte) bool {
	number, _, _ := protowire.ConsumeTag(record)
	return number == commandMetadata || number == commandEpoch
}

// EncodeRecord returns the field Entry.records with one command. fill appends the command's body of
// size bytes.
func EncodeRecord(command protowire.Number, size int, fill func([]byte) []byte) []byte {
	record := protowire.SizeTag(command) + protowire.SizeBytes(size)
	sealed := state.ChecksummedSize(record)
	b := make([]byte, 0, protowire.SizeTag(fieldEntryRecords)+protowire.SizeBytes(sealed))
	b = protowire.AppendTag(b, fieldEntryRecords, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(sealed))
	return state.AppendChecksummed(b, record, func(b []byte) []byte {
		b = protowire.AppendTag(b, command, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(size))
		return fill(b)
	})
}

func sizeAppend(a *journalpb.Append) int {
	n := 1 + protowire.SizeBytes(len(a.Instance)) + 1 + protowire.SizeVarint(a.Epoch)
	for _, s := range a.Segments {
		n += 1 + protowire.SizeBytes(sizeSegment(s))
	}
	return n
}

func appendAppend(b []byte, a *journalpb.Append) []byte {
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, a.Instance)
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	b = protowire.AppendVarint(b, a.Epoch)
	for _, s := range a.Segments {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeSegment(s)))
		b = appendSegment(b, s)
	}
	return b
}

func sizeSegment(s *journalpb.Segment) int {
	n := 1 + protowire.SizeVarint(s.Execution) + 1 + protowire.SizeVarint(s.FirstEventId)
	for _, event := range s.Events {
		n += 1 + protowire.SizeBytes(len(event))
	}
	return n
}

func appendSegment(b []byte, s *journalpb.Segment) []byte {
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, s.Execution)
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	b = protowire.AppendVarint(b, s.FirstEventId)
	for _, event := range s.Events {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendBytes(b, event)
	}
	return b
}

// Pack returns an encoded Entry of encoded records.
func Pack(records ...[]byte) []byte {
	size := 2 // the format
	for _, r := range records {
		size += len(r)
	}
	b := make([]byte, 0, size)
	b = protowire.AppendTag(b, fieldEntryFormat, protowire.VarintType)
	b = protowire.AppendVarint(b, currentFormat)
	for _, r := range records {
		b = append(b, r...)
	}
	return b
}

// Unpack appends the records of an encoded Entry to records. It returns a *diskfile.FormatError if
// another version wrote the entry, or an error that wraps state.ErrCorrupt if the entry is damaged.
func Unpack(records [][]byte, entry []byte) ([][]byte, error) {
	format := uint64(0)
	for b := entry; len(b) > 0; {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("read entry: %w", state.ErrCorrupt)
		}
		b = b[n:]
		switch {
		case number == fieldEntryFormat && wire == protowire.VarintType:
			if format, n = protowire.ConsumeVarint(b); n >= 0 && format != currentFormat {
				return nil, &diskfile.FormatError{Path: "an entry of the log", Want: fmt.Sprint(currentFormat), Have: fmt.Sprint(format)}
			}
		case number == fieldEntryRecords && wire == protowire.BytesType:
			var sealed []byte
			if sealed, n = protowire.ConsumeBytes(b); n >= 0 {
				record, err := state.ParseChecksummed(sealed)
				if err != nil {
					return nil, fmt.Errorf("record %d: %w", len(records), err)
				}
				records = append(records, record)
			}
		default:
			return nil, fmt.Errorf("unknown field %d: %w", number, state.ErrCorrupt)
		}
		if n < 0 {
			return nil, fmt.Errorf("read entry: %w", state.ErrCorrupt)
		}
		b = b[n:]
	}
	if format == 0 {
		return nil, fmt.Errorf("entry without format: %w", state.ErrCorrupt)
	}
	return records, nil
}
