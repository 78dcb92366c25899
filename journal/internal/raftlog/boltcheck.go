package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

// A bolt file consists of pages. Pages 0 and 1 each hold a page header and a meta record; the newer
// record is valid. The other pages are a tree of buckets. All integers are in the machine's byte
// order.
const (
	boltMagic       = 0xED0CDAED
	boltVersion     = 2
	boltPageHeader  = 16
	boltMetaSize    = 64
	boltPageMin     = 1 << 10
	boltPageMax     = 64 << 10
	boltNoFreelist  = ^uint64(0)
	boltFlagBranch  = 0x01
	boltFlagLeaf    = 0x02
	boltBucketFlag  = 0x01
	boltBucketSize  = 16 // root page and sequence; an inline bucket's page follows
	boltElementSize = 16 // header of an element of a branch or a leaf
)

// boltError describes damage of a bolt file.
type boltError string

func (e boltError) Error() string { return string(e) }

func boltErrorf(format string, args ...any) error { return boltError(fmt.Sprintf(format, args...)) }

// checkBolt verifies that bolt can open the file at path safely, and that no transaction was lost.
// Bolt maps the file and follows its pointers. In a damaged file it may cause a fatal signal, loop
// forever, or panic in a goroutine of its own, where no caller can recover. checkBolt does not
// verify the entries, which have their own checksums.
//
// Both meta records must be intact and consecutive. Each lies in one sector, which a disk writes
// completely or not at all, so a checksum mismatch is damage. Bolt would silently use the other
// record and lose its last transaction, which may have been acknowledged.
func checkBolt(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("check log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("check log: %w", err)
	}
	c := boltChecker{file: f}
	err = c.check(info.Size())
	var damage boltError
	if errors.As(err, &damage) || errors.Is(err, io.EOF) {
		return &diskfile.DamagedError{Path: path, Reason: err.Error()}
	}
	if err != nil {
		return fmt.Errorf("check log: %w", err)
	}
	return nil
}

// boltMeta is a meta record.
type boltMeta struct {
	pageSize, root, freelist, pages, txid uint64
}

// boltChecker walks the tree of a bolt file, each page once.
type boltChecker struct {
	file     io.ReaderAt
	pageSize int
	pages    uint64
	seen     []bool // by page number
}

func (c *boltChecker) check(size int64) error {
	meta, err := readBoltMeta(c.file)
	if err != nil {
		return err
	}
	if needed := int64(meta.pages) * int64(meta.pageSize); size < needed || needed/int64(meta.pageSize) != int64(meta.pages) {
		return boltErrorf("file of %d bytes, but %d are in use", size, needed)
	}
	if meta.freelist != boltNoFreelist {
		return boltErrorf("unexpected list of free pages")
	}
	c.pageSize, c.pages = int(meta.pageSize), meta.pages
	c.seen = make([]bool, meta.pages)
	c.seen[0], c.seen[1] = true, true
	return c.checkTree(meta.root, true)
}

// readBoltMeta returns the newer meta record.
func readBoltMeta(f io.ReaderAt) (boltMeta, error) {
	first, err := readBoltMetaAt(f, 0, 0)
	if err != nil {
		return boltMeta{}, err
	}
	second, err := readBoltMetaAt(f, int64(first.pageSize), 1)
	if err != nil {
		return boltMeta{}, err
	}
	switch {
	case first.pageSize != second.pageSize:
		return boltMeta{}, boltErrorf("the page sizes in the meta pages differ")
	case first.txid == second.txid+1:
		return first, nil
	case second.txid == first.txid+1:
		return second, nil
	}
	return boltMeta{}, boltErrorf("meta pages of transactions %d and %d are not consecutive", first.txid, second.txid)
}

func readBoltMetaAt(f io.ReaderAt, at int64, page uint64) (boltMeta, error) {
	var b [boltPageHeader + boltMetaSize]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return boltMeta{}, fmt.Errorf("read meta page %d: %w", page, err)
	}
	meta := b[boltPageHeader:]
	sum := fnv.New64a()
	sum.Write(meta[:boltMetaSize-8])
	m := boltMeta{
		pageSize: uint64(binary.NativeEndian.Uint32(meta[8:])),
		root:     binary.NativeEndian.Uint64(meta[16:]),
		freelist: binary.NativeEndian.Uint64(meta[32:]),
		pages:    binary.NativeEndian.Uint64(meta[40:]),
		txid:     binary.NativeEndian.Uint64(meta[48:]),
	}
	switch {
	case binary.NativeEndian.Uint32(meta) != boltMagic,
		binary.NativeEndian.Uint32(meta[4:]) != boltVersion,
		binary.NativeEndian.Uint64(meta[boltMetaSize-8:]) != sum.Sum64(),
		m.txid%2 != page,
		m.pageSize < boltPageMin || m.pageSize > boltPageMax || m.pageSize&(m.pageSize-1) != 0,
		m.pages < 3 || m.pages > 1<<40:
		return boltMeta{}, boltErrorf("meta page %d is not valid: checksum, format, transaction, page size or page count", page)
	}
	return m, nil
}

// checkTree checks the tree of one bucket. All elements of the root bucket are buckets; other
// buckets contain none.
func (c *boltChecker) checkTree(id uint64, root bool) error {
	return c.checkSubtree(id, root, nil, nil)
}

// checkSubtree checks a page and everything below it. Every key must be >= least and < limit; nil
// means no bound. checkSubtree terminates because it rejects a page that occurs twice.
func (c *boltChecker) checkSubtree(id uint64, root bool, least, limit []byte) error {
	page, err := c.readPage(id)
	if err != nil {
		return err
	}
	elements, err := boltElements(page)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if err := checkBoltOrder(elements, least, limit); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	for i, e := range elements {
		switch {
		case e.child != 0:
			next := limit
			if i+1 < len(elements) {
				next = elements[i+1].key
			}
			err = c.checkSubtree(e.child, root, e.key, next)
		case e.bucket != root:
			err = boltErrorf("page %d: unexpected or missing bucket", id)
		case root:
			err = c.checkBucket(e.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkBucket checks the value of an element that is a bucket. The value names the root page of the
// bucket or, for an inline bucket, contains its only page.
func (c *boltChecker) checkBucket(value []byte) error {
	if len(value) < boltBucketSize {
		return boltErrorf("bucket of %d bytes is too short", len(value))
	}
	if id := binary.NativeEndian.Uint64(value); id != 0 {
		return c.checkTree(id, false)
	}
	inline := value[boltBucketSize:]
	elements, err := boltElements(inline)
	if err != nil {
		return fmt.Errorf("inline bucket: %w", err)
	}
	for _, e := range elements {
		if e.child != 0 || e.bucket {
			return boltErrorf("inline bucket refers to pages")
		}
	}
	return checkBoltOrder(elements, nil, nil)
}

// readPage reads a page and its overflow pages.
func (c *boltChecker) readPage(id uint64) ([]byte, error) {
	if id >= c.pages {
		return nil, boltErrorf("page %d is outside the %d pages of the file", id, c.pages)
	}
	at := int64(id) * int64(c.pageSize)
	var head [boltPageHeader]byte
	if _, err := c.file.ReadAt(head[:], at); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	overflow := uint64(binary.NativeEndian.Uint32(head[12:]))
	if binary.NativeEndian.Uint64(head[:]) != id || overflow >= c.pages-id {
		return nil, boltErrorf("page %d has the header of another page, or ends outside the file", id)
	}
	for n := id; n <= id+overflow; n++ {
		if c.seen[n] {
			return nil, boltErrorf("page %d is used twice", n)
		}
		c.seen[n] = true
	}
	page := make([]byte, (int(overflow)+1)*c.pageSize)
	if _, err := c.file.ReadAt(page, at); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return page, nil
}

// boltElement is an element of a page. In a branch it has a child page, in a leaf a value. A value
// may be a bucket.
type boltElement struct {
	key, value []byte
	child      uint64
	bucket     bool
}

// boltElements returns the elements of a page.
func boltElements(page []byte) ([]boltElement, error) {
	if len(page) < boltPageHeader {
		return nil, boltErrorf("page of %d bytes is too short", len(page))
	}
	flags, count := binary.NativeEndian.Uint16(page[8:]), int(binary.NativeEndian.Uint16(page[10:]))
	if flags != boltFlagBranch && flags != boltFlagLeaf {
		return nil, boltErrorf("invalid page flags %#x", flags)
	}
	headersEnd := boltPageHeader + count*boltElementSize
	if headersEnd > len(page) || flags == boltFlagBranch && count == 0 {
		return nil, boltErrorf("invalid number of elements: %d", count)
	}
	elements := make([]boltElement, count)
	for i := range elements {
		at := boltPageHeader + i*boltElementSize
		e, from := boltElementAt(page[at:], flags)
		if at+from < headersEnd || at+from+len(e.key)+len(e.value) > len(page) || len(e.key) == 0 || e.child == 1 {
			return nil, boltErrorf("element %d of %d ends outside its page", i, count)
		}
		elements[i] = e
	}
	return elements, nil
}

// boltElementAt reads the element at the beginning of b. from is the offset of the key; the value
// follows the key. If they are not within b, the key is empty.
func boltElementAt(b []byte, flags uint16) (e boltElement, from int) {
	word := func(i int) int { return int(binary.NativeEndian.Uint32(b[4*i:])) }
	var keySize, valueSize int
	if flags == boltFlagBranch {
		from, keySize = word(0), word(1)
		e.child = max(1, binary.NativeEndian.Uint64(b[8:])) // page 0 is as invalid as page 1
	} else {
		from, keySize, valueSize = word(1), word(2), word(3)
		e.bucket = word(0) == boltBucketFlag
		if word(0) > boltBucketFlag {
			return boltElement{}, from
		}
	}
	if from+keySize+valueSize > len(b) {
		return boltElement{}, from
	}
	e.key, e.value = b[from:from+keySize], b[from+keySize:from+keySize+valueSize]
	return e, from
}

// checkBoltOrder checks the order of keys and their bounds.
func checkBoltOrder(elements []boltElement, least, limit []byte) error {
	for i, e := range elements {
		if i == 0 && least != nil && bytes.Compare(e.key, least) < 0 ||
			i > 0 && bytes.Compare(elements[i-1].key, e.key) >= 0 ||
			limit != nil && bytes.Compare(e.key, limit) >= 0 {
			return boltErrorf("element %d is out of order", i)
		}
	}
	return nil
}
