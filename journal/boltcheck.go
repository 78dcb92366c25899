package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// The head of a bolt file: two pages that each begin with a page header and a
// meta record, of which the newer valid one counts. All integers are in the
// machine's byte order.
const (
	boltMagic      = 0xED0CDAED
	boltPageHeader = 16
	boltMetaSize   = 64
	boltPageMax    = 64 << 10
)

// checkBolt makes sure that bolt may open the file at path: it maps the file and
// follows page numbers, so a truncated one would end the process with a signal
// that nothing can recover from. A file that is absent or empty is in order.
func checkBolt(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("check log: %w", err)
	}
	if info.Size() == 0 {
		return nil
	}
	needed, err := boltSize(f)
	if err != nil {
		return fmt.Errorf("check log: %w", err)
	}
	switch {
	case needed == 0:
		return &DamagedError{Path: path, Reason: "no valid meta page"}
	case info.Size() < needed:
		return &DamagedError{Path: path, Reason: fmt.Sprintf("%d bytes where %d are in use", info.Size(), needed)}
	}
	return nil
}

// boltSize returns how many bytes of a bolt file are in use, 0 if it has no
// valid meta page.
func boltSize(f io.ReaderAt) (int64, error) {
	var needed int64
	newest := uint64(0)
	// The second meta page stands one page in, and only a meta page says how
	// large a page is: look at every size that there is.
	for at := int64(0); at <= boltPageMax; at = max(2*at, 1<<10) {
		var page [boltPageHeader + boltMetaSize]byte
		if _, err := f.ReadAt(page[:], at); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
		meta := page[boltPageHeader:]
		pageSize := int64(binary.NativeEndian.Uint32(meta[8:]))
		highest := int64(binary.NativeEndian.Uint64(meta[40:]))
		txid := binary.NativeEndian.Uint64(meta[48:])
		if validBoltMeta(meta) && txid >= newest {
			needed, newest = highest*pageSize, txid
		}
	}
	return needed, nil
}

func validBoltMeta(meta []byte) bool {
	sum := fnv.New64a()
	sum.Write(meta[:boltMetaSize-8])
	return binary.NativeEndian.Uint32(meta) == boltMagic &&
		binary.NativeEndian.Uint64(meta[boltMetaSize-8:]) == sum.Sum64()
}
