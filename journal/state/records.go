package state

import (
	"errors"
	"fmt"
	"math"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// records are what a machine keeps in a store. It is written by the one flush
// that is under way, and read by anybody.
type records struct{ store.Store }

// view runs something that reads. f must be brief and must not call anybody's
// code. The home is that of the numbers that f uses, 0 if it uses none.
func (s *records) view(op string, home uint64, f func(store.Reader) error) error {
	replaced := false
	err := s.View(op, func(from store.Reader) error {
		if replaced = home != 0 && home != from.Database(); replaced {
			return nil
		}
		return f(from)
	})
	if err == nil && replaced {
		return errReplaced
	}
	return err
}

// errReplaced says that another database has taken the place of the one that
// numbers were read from.
var errReplaced = errors.New("the store was replaced")

// get returns the checked record of a key, nil if there is none. It is a copy.
func get(from store.Reader, key []byte) (record []byte, err error) {
	value, err := from.Get(key)
	if value == nil || err != nil {
		return nil, err
	}
	return checked(key, value)
}

// scan visits the checked records of the keys in a range, in order, until visit
// returns false. Key and record are its own only while it runs.
func scan(r store.Reader, from, to []byte, visit func(key, record []byte) (more bool, err error)) (err error) {
	iter, err := r.NewIter(from, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iter.Close()) }()
	return eachKey(iter, visit)
}

// eachKey visits the checked records that an iterator can reach.
func eachKey(iter store.Iterator, visit func(key, record []byte) (more bool, err error)) error {
	for ok := iter.First(); ok; ok = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		record, err := checked(iter.Key(), value)
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

// lastOf returns the event_id of the last event of an execution, 0 if the store
// has none.
func (s *records) lastOf(home, number, execution uint64) (last uint64, err error) {
	err = s.view("read a history", home, func(from store.Reader) (err error) {
		end := place{number, execution, math.MaxUint64}.key(nil)
		iter, err := from.NewIter(place{number, execution, 0}.key(nil), end)
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

// readChunk reads and verifies the chunk on which an iterator stands. Its events
// are copies.
func readChunk(iter store.Iterator) (c chunk, at place, err error) {
	if err = at.parse(iter.Key()); err != nil {
		return c, at, err
	}
	value, err := iter.ValueAndErr()
	if err != nil {
		return c, at, err
	}
	record, err := checked(iter.Key(), value)
	if err != nil {
		return c, at, err
	}
	if err = c.parse(append(make([]byte, 0, len(record)), record...)); err != nil {
		return c, at, fmt.Errorf("execution %d from event %d on: %w", at.execution, at.first, err)
	}
	return c, at, nil
}

// events returns the chunk in which the event at is. The error is errReplaced if
// it is not there.
func (s *records) events(home uint64, at place) (c chunk, start uint64, err error) {
	missing := false
	err = s.view("read a history", home, func(from store.Reader) (err error) {
		lower := place{at.number, at.execution, 0}.key(nil)
		iter, err := from.NewIter(lower, afterAll(keyHistory))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		next := at
		next.first++
		if missing = !iter.SeekLT(next.key(nil)); missing {
			return iter.Error()
		}
		var found place
		c, found, err = readChunk(iter)
		start = found.first
		missing = start+uint64(len(c.events)) <= at.first
		return err
	})
	if err == nil && missing {
		err = errReplaced
	}
	return c, start, err
}

// removal is what the store has of an instance that is to be removed. In no set
// is it any more, and no timer of it is open.
type removal struct {
	id     string
	number uint64
	chunks uint64
	latest uint64 // execution, the only one if there is one chunk
}

// from takes an instance out of the store.
func (r *removal) from(b store.Batch) error {
	if err := b.Delete(idKey(nil, keyInstance, r.id)); err != nil {
		return err
	}
	if r.chunks == 1 { // most are short, and ranges cost their readers more
		return b.Delete(place{r.number, r.latest, 1}.key(nil))
	}
	first, next := place{number: r.number}, place{number: r.number + 1}
	return b.DeleteRange(first.key(nil), next.key(nil))
}
