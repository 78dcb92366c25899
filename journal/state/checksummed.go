package state

import (
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
)

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
