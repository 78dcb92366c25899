package state

import (
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The field numbers of Sealed.
const (
	fieldSealedRecord = 1
	fieldSealedCRC    = 2
)

// SealedSize returns the length in bytes of a Sealed around a record of size
// bytes.
func SealedSize(size int) int {
	return protowire.SizeTag(fieldSealedRecord) + protowire.SizeBytes(size) +
		protowire.SizeTag(fieldSealedCRC) + protowire.SizeFixed32()
}

// AppendSealed appends to dst an encoded Sealed: the record of size bytes that
// fill appends to what it is given, and its CRC-32C.
func AppendSealed(dst []byte, size int, fill func([]byte) []byte) []byte {
	dst = protowire.AppendTag(dst, fieldSealedRecord, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	start := len(dst)
	dst = fill(dst)
	sum := crc32.Checksum(dst[start:], castagnoli)
	dst = protowire.AppendTag(dst, fieldSealedCRC, protowire.Fixed32Type)
	return protowire.AppendFixed32(dst, sum)
}

// Unseal returns the record in an encoded Sealed, a part of the bytes given, or
// an error that wraps ErrCorrupt if its checksum is absent or wrong.
func Unseal(sealed []byte) (record []byte, err error) {
	var sum uint32
	var summed bool
	ok := each(sealed, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == fieldSealedRecord && wire == protowire.BytesType:
			record, _ = protowire.ConsumeBytes(value)
		case number == fieldSealedCRC && wire == protowire.Fixed32Type:
			sum, _ = protowire.ConsumeFixed32(value)
			summed = true
		}
	})
	if !ok || !summed || crc32.Checksum(record, castagnoli) != sum {
		return nil, fmt.Errorf("check record: %w", ErrCorrupt)
	}
	return record, nil
}
