package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

// Overhead is how many bytes a frame has besides its content.
const Overhead = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes frames. After an error it writes nothing more.
type Writer struct {
	to  io.Writer
	sum uint32 // of all bytes

	combiner Combiner
	err      error
}

// NewWriter returns a Writer.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Err returns the first error.
func (w *Writer) Err() error { return w.err }

// Frame writes a frame, and returns the checksum of its content.
func (w *Writer) Frame(b []byte) uint32 {
	var number [4]byte
	binary.LittleEndian.PutUint32(number[:], uint32(len(b)))
	w.Bytes(number[:])
	sum := crc32.Checksum(b, castagnoli)
	w.write(b, w.combiner.Combine(w.sum, sum, int64(len(b)))) // reads b once
	binary.LittleEndian.PutUint32(number[:], sum)
	w.Bytes(number[:])
	return sum
}

// Bytes writes bytes outside of any frame.
func (w *Writer) Bytes(b []byte) { w.write(b, crc32.Update(w.sum, castagnoli, b)) }

// write writes bytes, after which the checksum of all is sum.
func (w *Writer) write(b []byte, sum uint32) {
	if w.err == nil {
		w.sum = sum
		var n int
		if n, w.err = w.to.Write(b); n < len(b) && w.err == nil {
			w.err = io.ErrShortWrite
		}
	}
}

// Trailer ends a stream of frames.
func (w *Writer) Trailer() {
	w.Bytes(binary.LittleEndian.AppendUint32(make([]byte, 4), w.sum))
}

// Reader reads and verifies frames.
type Reader struct {
	from   io.Reader
	sum    hash.Hash32
	buffer []byte
}

// NewReader returns a Reader.
func NewReader(from io.Reader) *Reader { return &Reader{from: from, sum: crc32.New(castagnoli)} }

// Bytes reads bytes outside of any frame.
func (r *Reader) Bytes(b []byte) error {
	if _, err := io.ReadFull(r.from, b); err != nil {
		return fmt.Errorf("read frame: %w", err)
	}
	r.sum.Write(b)
	return nil
}

// Frame reads one frame of up to bytesMax; the bytes are valid until the next call.
func (r *Reader) Frame(bytesMax uint32) ([]byte, error) {
	var number [4]byte
	if err := r.Bytes(number[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(number[:])
	if size == 0 || size > bytesMax {
		return nil, fmt.Errorf("invalid frame size of %d bytes", size)
	}
	if uint32(cap(r.buffer)) < size {
		r.buffer = make([]byte, size)
	}
	b := r.buffer[:size]
	if err := errors.Join(r.Bytes(b), r.Bytes(number[:])); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(number[:]) != crc32.Checksum(b, castagnoli) {
		return nil, errors.New("checksum mismatch in a frame")
	}
	return b, nil
}

// Trailer reads and verifies the end of a stream of frames.
func (r *Reader) Trailer() error {
	want := r.sum.Sum32()
	var trailer [8]byte
	if err := r.Bytes(trailer[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(trailer[:]) != 0 || binary.LittleEndian.Uint32(trailer[4:]) != want {
		return errors.New("checksum mismatch in the trailer")
	}
	return nil
}

// End returns an error if bytes follow.
func (r *Reader) End() error {
	var more [1]byte
	switch _, err := io.ReadFull(r.from, more[:]); {
	case err == io.EOF:
		return nil
	case err != nil:
		return fmt.Errorf("read the end: %w", err)
	}
	return errors.New("bytes follow the end")
}
