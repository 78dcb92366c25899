package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An Entry is an entry of the log that has records.
type Entry struct {
	Index, Term uint64
	// AppendedAt is when the leader appended it, by its wall clock.
	AppendedAt time.Time

	data []byte // encoded; see doc.go
}

// ErrNoEntries means that a log does not have all entries of a range, or that a quarantine ended in
// it: a state from before that may be the damaged one, which no entry repairs.
var ErrNoEntries = errors.New("the log does not have all changes of the state")

// WriteEntries writes the entries after an index up to another one, which this node has applied.
// [ReadEntries] reads them.
//
// Errors: [ErrNoEntries]; a *DamagedError if an entry cannot be read, or one that wraps
// state.ErrCorrupt; the error of ctx, of to, or of the store.
func (c *checkpoints) WriteEntries(ctx context.Context, to io.Writer, after, last uint64) error {
	w := frame.NewWriter(to)
	var buffer []byte
	for index := after + 1; index <= last; index++ {
		var log raft.Log
		err := ctx.Err()
		if err == nil {
			err = c.logs.GetLog(index, &log)
		}
		if errors.Is(err, raft.ErrLogNotFound) {
			return fmt.Errorf("%w: %d is missing", ErrNoEntries, index)
		}
		if err != nil {
			return fmt.Errorf("copy entries: %w", err)
		}
		if log.Type != raft.LogCommand {
			continue
		}
		switch lifts, err := (&Entry{Index: index, data: log.Data}).liftsQuarantine(); {
		case err != nil:
			return fmt.Errorf("copy entries: %w", err)
		case lifts:
			return fmt.Errorf("%w: a quarantine ended with entry %d", ErrNoEntries, index)
		}
		buffer = binary.AppendUvarint(buffer[:0], log.Index)
		buffer = binary.AppendUvarint(buffer, log.Term)
		buffer = binary.AppendVarint(buffer, log.AppendedAt.UnixNano())
		buffer = append(buffer, log.Data...)
		if w.Frame(buffer); w.Err() != nil {
			return w.Err()
		}
	}
	return nil
}

// liftsQuarantine reports whether the entry ends the quarantine of a replica, which was then
// repaired.
func (e *Entry) liftsQuarantine() (lifts bool, err error) {
	err = e.eachRecord(entry.ConcernsMetadata, func(record *journalpb.Record) error {
		lifts = lifts || record.GetMetadataChange().GetLifted() != nil
		return nil
	})
	return lifts, err
}

// ReadEntries yields what WriteEntries has written, size bytes of it, in order. An error, which it
// yields last, is a system error, or wraps state.ErrCorrupt.
func ReadEntries(from io.Reader, size int64) iter.Seq2[*Entry, error] {
	return func(yield func(*Entry, error) bool) {
		r, before := frame.NewReader(from), uint64(0)
		for size > 0 {
			encoded, err := r.Frame(uint32(min(size, math.MaxInt32)))
			var e *Entry
			if err == nil {
				size -= int64(len(encoded)) + frame.Overhead
				e, err = decodeEntry(encoded)
			}
			if err == nil && e.Index <= before {
				err = fmt.Errorf("entry %d follows %d", e.Index, before)
			}
			if _, failed := errors.AsType[*fs.PathError](err); err != nil && !failed {
				err = fmt.Errorf("%w: %w", state.ErrCorrupt, err)
			}
			if err != nil {
				yield(nil, fmt.Errorf("read entries: %w", err))
				return
			}
			before = e.Index
			if !yield(e, nil) {
				return
			}
		}
	}
}

var errTruncated = errors.New("an entry is truncated")

func decodeEntry(b []byte) (*Entry, error) {
	e := new(Entry)
	for _, field := range []*uint64{&e.Index, &e.Term} {
		value, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errTruncated
		}
		*field, b = value, b[n:]
	}
	nanos, n := binary.Varint(b)
	if n <= 0 {
		return nil, errTruncated
	}
	// The state keeps parts of the data.
	e.AppendedAt, e.data = time.Unix(0, nanos), bytes.Clone(b[n:])
	return e, nil
}

// A CutRecord is a record of a cut in an entry. It has no effect if another epoch was the current
// one.
type CutRecord struct {
	Cut uint64
	// Epoch is that of the record, less the epochs that begin earlier in the entry.
	Epoch int64
}

// Cuts returns the records of cuts in the entry, and how many epochs begin in it. The error wraps
// state.ErrCorrupt.
func (e *Entry) Cuts() (cuts []CutRecord, epochs int64, err error) {
	err = e.eachRecord(entry.ConcernsMetadata, func(record *journalpb.Record) error {
		if record.GetEpoch() != nil {
			epochs++
		}
		if c := record.GetMetadataChange(); c.GetCut() > 0 {
			cuts = append(cuts, CutRecord{c.Cut, int64(c.Epoch) - epochs})
		}
		return nil
	})
	return cuts, epochs, err
}

// eachRecord calls visit with each record of the entry that is wanted; nearly all that are not are
// large, and need not be decoded. A nil wanted means all.
func (e *Entry) eachRecord(wanted func(encoded []byte) bool, visit func(*journalpb.Record) error) error {
	records, err := entry.Unpack(nil, e.data)
	if err != nil {
		return fmt.Errorf("entry %d: %w", e.Index, err)
	}
	for _, encoded := range records {
		if wanted != nil && !wanted(encoded) {
			continue
		}
		record := new(journalpb.Record)
		if err := proto.Unmarshal(encoded, record); err != nil {
			return fmt.Errorf("entry %d: decode record: %w: %w", e.Index, state.ErrCorrupt, err)
		}
		if err := visit(record); err != nil {
			return err
		}
	}
	return nil
}

// applyEntries applies committed entries to a machine, as every node does.
func applyEntries(machine *state.Machine, entries iter.Seq2[*Entry, error]) error {
	for e, err := range entries {
		if err != nil {
			return err
		}
		records, err := entry.Unpack(nil, e.data)
		if err != nil {
			return fmt.Errorf("entry %d: %w", e.Index, err)
		}
		for _, record := range records {
			var failed *state.StoreError
			// Any other error rejects the record, as it did or would have done on every node.
			if _, err := machine.Apply(record); errors.Is(err, state.ErrCorrupt) || errors.As(err, &failed) {
				return fmt.Errorf("entry %d: %w", e.Index, err)
			}
		}
		if err := machine.Advance(e.Index, e.Term); err != nil {
			return fmt.Errorf("entry %d: %w", e.Index, err)
		}
	}
	return nil
}
