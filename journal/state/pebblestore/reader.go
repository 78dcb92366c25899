package pebblestore

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// reader is a store.Reader.
type reader struct {
	store *Store
	db    *database
}

// DatabaseNumber implements store.Reader.
func (r reader) DatabaseNumber() uint64 { return r.db.number }

// Get implements store.Reader.
func (r reader) Get(key []byte) ([]byte, error) {
	value, closer, err := r.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return append(make([]byte, 0, len(value)), value...), closer.Close()
}

// Probe implements store.Reader.
func (r reader) Probe(key []byte) ([]byte, error) { return r.store.probe.get(r.db, key) }

// NewIter implements store.Reader.
func (r reader) NewIter(from, to []byte) (store.Iterator, error) {
	iter, err := r.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return nil, err // a nil interface, not a nil *pebble.Iterator
	}
	return iter, nil
}

// probeIter looks up keys that mostly do not exist, with one iterator for as long as the database
// does not change. Unlike Get, an iterator can use the filters of the lowest level.
type probeIter struct {
	mu   sync.Mutex // Write and Sync close the iterator
	iter *pebble.Iterator
}

// get returns a copy of the value of a key, nil if there is none.
func (p *probeIter) get(db *database, key []byte) (value []byte, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.iter == nil {
		if p.iter, err = db.NewIter(&pebble.IterOptions{UseL6Filters: true}); err != nil {
			return nil, err
		}
	}
	if !p.iter.SeekPrefixGE(key) {
		return nil, p.iter.Error()
	}
	value, err = p.iter.ValueAndErr()
	return append(make([]byte, 0, len(value)), value...), err
}

// closeIter releases the memory and files that the iterator holds.
func (p *probeIter) closeIter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.iter == nil {
		return nil
	}
	err := p.iter.Close()
	p.iter = nil
	return err
}
