package state

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// recordStore reads and writes the records of a machine. Only the flush in progress writes; any
// goroutine may read.
type recordStore struct{ store.Store }

// view calls f with a reader. f must be brief and must not call user code. dbNumber is the database
// of the instance numbers that f uses, 0 if it uses none.
func (s *recordStore) view(op string, dbNumber uint64, f func(store.Reader) error) error {
	replaced := false
	err := s.View(op, func(from store.Reader) error {
		if replaced = dbNumber != 0 && dbNumber != from.DatabaseNumber(); replaced {
			return nil
		}
		return f(from)
	})
	if err == nil && replaced {
		return errDatabaseReplaced
	}
	return err
}

// errDatabaseReplaced reports that an instance number belongs to a database that was replaced.
var errDatabaseReplaced = errors.New("the store was replaced")

// getRecord returns a verified copy of the record of a key, nil if there is none.
func getRecord(from store.Reader, key []byte) (record []byte, err error) {
	value, err := from.Get(key)
	if value == nil || err != nil {
		return nil, err
	}
	return verifyValue(key, value)
}

// scanRecords visits the verified records of the keys in [from, to), in order, until visit returns
// false. Key and record are valid only during the call.
func scanRecords(r store.Reader, from, to []byte, visit func(key, record []byte) (more bool, err error)) (err error) {
	iter, err := r.NewIter(from, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iter.Close()) }()
	return forEachRecord(iter, visit)
}

// forEachRecord visits the verified records of an iterator.
func forEachRecord(iter store.Iterator, visit func(key, record []byte) (more bool, err error)) error {
	for ok := iter.First(); ok; ok = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		record, err := verifyValue(iter.Key(), value)
		if err != nil {
			return err
		}
		more, err := visit(iter.Key(), record)
		if err != nil || !more {
			return err
		}
	}
	return iter.Error()
}

// lastStoredEvent returns the event_id of the last event of an execution, 0 if the store has none.
func (s *recordStore) lastStoredEvent(dbNumber, number, execution uint64) (last uint64, err error) {
	err = s.view("read a history", dbNumber, func(from store.Reader) (err error) {
		end := chunkKey{number, execution, math.MaxUint64}.appendTo(nil)
		iter, err := from.NewIter(chunkKey{number, execution, 0}.appendTo(nil), end)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		if !iter.Last() {
			return iter.Error()
		}
		c, at, err := readChunk(iter)
		last = at.first + uint64(len(c.events)) - 1
		return err
	})
	return last, err
}

// readChunk reads and verifies the chunk at the iterator's position. Its events are copies.
func readChunk(iter store.Iterator) (c chunk, at chunkKey, err error) {
	if err = at.parse(iter.Key()); err != nil {
		return c, at, err
	}
	value, err := iter.ValueAndErr()
	if err != nil {
		return c, at, err
	}
	record, err := verifyValue(iter.Key(), value)
	if err != nil {
		return c, at, err
	}
	if err = c.parse(append(make([]byte, 0, len(record)), record...)); err != nil {
		return c, at, fmt.Errorf("read execution %d from event %d: %w", at.execution, at.first, err)
	}
	return c, at, nil
}

// chunkWithEvent returns the chunk that contains the event at. The error is
// errDatabaseReplaced if there is none.
func (s *recordStore) chunkWithEvent(dbNumber uint64, at chunkKey) (c chunk, start uint64, err error) {
	missing := false
	err = s.view("read a history", dbNumber, func(from store.Reader) (err error) {
		lower := chunkKey{at.instanceNumber, at.execution, 0}.appendTo(nil)
		iter, err := from.NewIter(lower, endOfKind(keyHistory))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		next := at
		next.first++
		if missing = !iter.SeekLT(next.appendTo(nil)); missing {
			return iter.Error()
		}
		var found chunkKey
		c, found, err = readChunk(iter)
		start = found.first
		missing = start+uint64(len(c.events)) <= at.first
		return err
	})
	if err == nil && missing {
		err = errDatabaseReplaced
	}
	return c, start, err
}

// removal is an instance to be removed from the store. It has ended, but if no flush has written
// that, the store still has it in sets and its timers as open.
type removal struct {
	id     string
	number uint64
	chunks uint64
	latest uint64 // execution, the only one if there is one chunk
	// As of the last flush.
	sets   memberships
	timers []timerKey
	// Its entries in the index; nil if it has none.
	entries *index.Entries
}

// writeTo deletes an instance from the store.
func (r *removal) writeTo(b store.Batch) error {
	err := b.Delete(idKey(nil, keyInstance, r.id))
	for kind := range r.sets.kinds() {
		err = cmp.Or(err, b.Delete(idKey(nil, kind, r.id)))
	}
	for i := range r.timers {
		err = cmp.Or(err, b.Delete(r.timers[i].appendTo(nil)))
	}
	if err != nil {
		return err
	}
	if r.entries != nil {
		var err error
		r.entries.EachAbsent(r.id, nil, func(key []byte) { err = errors.Join(err, b.Delete(key)) })
		if err != nil {
			return err
		}
	}
	if r.chunks == 1 { // most are short, and range deletions slow down reads
		return b.Delete(chunkKey{r.number, r.latest, 1}.appendTo(nil))
	}
	first, next := chunkKey{instanceNumber: r.number}, chunkKey{instanceNumber: r.number + 1}
	return b.DeleteRange(first.appendTo(nil), next.appendTo(nil))
}

// batchBytes returns an upper bound of the bytes that a removal takes in a batch.
func (r *removal) batchBytes() int {
	records := 2 + r.sets.count() + len(r.timers)
	return records*(recordOverhead+len(r.id)) + historyKeySize + entriesBytes(r.id, nil, r.entries)
}

// storeFormat is the version of every key and value that the package comment describes. It is
// stored in the meta record.
const storeFormat = 1

// storeMeta is the meta record of the store.
type storeMeta struct {
	index      uint64 // of the last entry whose records are in the store
	term       uint64 // of that entry
	epoch      uint64
	metadata   metadata
	lastNumber uint64 // the last number given to an instance
	// The generation of the index that is up to date with the rest. Older builds drop it.
	indexGeneration uint64
}

// The fields of the meta record.
const (
	fieldStoreFormat     = 1
	fieldStoreIndex      = 2
	fieldStoreTerm       = 3
	fieldStoreEpoch      = 4
	fieldStoreLastNumber = 5
	fieldStoreMetadata   = 6
	// The generation of an index in the present format. Builds of the first format have it in field
	// 7, and do not compare formats. Each index.Format needs a field of its own, never used before:
	// builds of other formats then find no generation, and build the index anew.
	fieldStoreIndexed = 8
)

func (m *storeMeta) appendTo(b []byte) []byte {
	b = appendUint(b, fieldStoreFormat, storeFormat)
	b = appendUint(b, fieldStoreIndex, m.index)
	b = appendUint(b, fieldStoreTerm, m.term)
	b = appendUint(b, fieldStoreEpoch, m.epoch)
	b = appendUint(b, fieldStoreLastNumber, m.lastNumber)
	b = appendUint(b, fieldStoreIndexed, m.indexGeneration)
	b = protowire.AppendTag(b, fieldStoreMetadata, protowire.BytesType)
	return protowire.AppendBytes(b, m.metadata.encode())
}

// parse decodes the meta record, or returns a *FormatError.
func (m *storeMeta) parse(record []byte) error {
	format, metadataErr := uint64(0), error(nil)
	ok := eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		v, _ := protowire.ConsumeVarint(value)
		switch {
		case number == fieldStoreMetadata && wire == protowire.BytesType:
			encoded, _ := protowire.ConsumeBytes(value)
			m.metadata, metadataErr = parseMetadata(encoded)
		case wire != protowire.VarintType:
		case number == fieldStoreFormat:
			format = v
		case number == fieldStoreIndex:
			m.index = v
		case number == fieldStoreTerm:
			m.term = v
		case number == fieldStoreEpoch:
			m.epoch = v
		case number == fieldStoreLastNumber:
			m.lastNumber = v
		case number == fieldStoreIndexed:
			m.indexGeneration = v
		}
	})
	if !ok || metadataErr != nil {
		return fmt.Errorf("decode meta record: %w", ErrCorrupt)
	}
	if format != storeFormat {
		return &FormatError{Kind: "state", Format: format, Want: storeFormat}
	}
	return nil
}

// readStoreMeta reads the meta record; it is zero for a new store.
func readStoreMeta(from store.Reader) (m storeMeta, err error) {
	record, err := getRecord(from, []byte{keyMeta})
	if err != nil || record == nil {
		return m, err
	}
	return m, m.parse(record)
}
