package journal

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// A segment of the write-ahead log is a header and frames, each a type, three
// zeros, and a length or, of a commit, the CRC-32C of everything since the commit
// before; then the content, padded to 8 bytes. An index before a commit seals the
// segment.
const (
	walHeaderSize  = 32
	walFrameHeader = 8
	walFrameEntry  = 1
	walFrameIndex  = 2
	walFrameCommit = 3
)

// walSeal is what was found of a seal.
type walSeal struct {
	index   int64  // where the content of the index begins; 0 if there is none
	entries uint64 // committed with it or before
	// torn says that the index is there and its commit is not: the write was cut
	// off. end is where the commit before ends.
	torn bool
	end  int64
}

// findSeal reads a segment up to the end of what was written.
func findSeal(file io.ReaderAt) (walSeal, error) {
	var seal walSeal
	entries := uint64(0)
	index, from, at := int64(0), int64(0), int64(walHeaderSize)
	for {
		var head [walFrameHeader]byte
		if _, err := file.ReadAt(head[:], at); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return seal, err
		}
		value := binary.LittleEndian.Uint32(head[4:])
		size := int64(0)
		switch head[0] {
		case walFrameEntry:
			size = int64(value)
			entries++
		case walFrameIndex:
			size = int64(value)
			index = at + walFrameHeader
		case walFrameCommit:
			sum, err := sumRange(file, from, at)
			if err != nil {
				return seal, err
			}
			if sum != value {
				seal.torn = index > 0
				return seal, nil
			}
			from = at + walFrameHeader
			seal = walSeal{index: index, entries: entries, end: from}
		default:
			seal.torn = index > seal.index
			return seal, nil
		}
		at += walFrameHeader + (size+7)&^7
	}
	seal.torn = index > seal.index
	return seal, nil
}

func sumRange(file io.ReaderAt, from, to int64) (uint32, error) {
	sum := crc32.New(castagnoli)
	_, err := io.Copy(sum, io.NewSectionReader(file, from, to-from))
	return sum.Sum32(), err
}
