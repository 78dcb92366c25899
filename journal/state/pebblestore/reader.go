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
func (r reader) Get(key []byte) ([]byte, error) { return get(r.db.DB, key) }

func get(from pebble.Reader, key []byte) ([]byte, error) {
	value, closer, err := from.Get(key)
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
func (r reader) NewIter(from, to []byte) (store.Iterator, error) { return newIter(r.db.DB, from, to) }

func newIter(of pebble.Reader, from, to []byte) (store.Iterator, error) {
	iter, err := of.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
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

// snapshot is a store.Snapshot.
type snapshot struct {
	store *Store
	db    *database
	*pebble.Snapshot
}

// Snapshot implements store.Store.
func (s *Store) Snapshot() (store.Snapshot, error) {
	db, err := s.writableDatabase("take a snapshot")
	if err != nil {
		return nil, err
	}
	db.snapshotsMu.Lock()
	defer db.snapshotsMu.Unlock()
	taken := &snapshot{s, db, db.NewSnapshot()}
	if db.snapshots == nil {
		db.snapshots = make(map[*snapshot]struct{})
	}
	db.snapshots[taken] = struct{}{}
	return taken, nil
}

// View implements store.Snapshot.
func (s *snapshot) View(op string, f func(store.Reader) error) error {
	s.store.mu.RLock()
	defer s.store.mu.RUnlock()
	if s.store.db != s.db {
		return s.store.closedError(op)
	}
	if err := f(snapshotReader{reader{s.store, s.db}, s.Snapshot}); err != nil {
		return s.store.Fail(op, err)
	}
	return nil
}

// Close implements store.Snapshot.
func (s *snapshot) Close() error { return s.db.closeSnapshot(s) }

// closeSnapshot closes a snapshot, unless it is closed already.
func (d *database) closeSnapshot(s *snapshot) error {
	d.snapshotsMu.Lock()
	defer d.snapshotsMu.Unlock()
	if _, open := d.snapshots[s]; !open {
		return nil
	}
	delete(d.snapshots, s)
	return s.Snapshot.Close()
}

// closeSnapshots closes all snapshots, which none may use any more.
func (d *database) closeSnapshots() error {
	d.snapshotsMu.Lock()
	defer d.snapshotsMu.Unlock()
	err := error(nil)
	for s := range d.snapshots {
		err = errors.Join(err, s.Snapshot.Close())
	}
	clear(d.snapshots)
	return err
}

// snapshotReader reads a snapshot.
type snapshotReader struct {
	reader
	of *pebble.Snapshot
}

// Get implements store.Reader.
func (r snapshotReader) Get(key []byte) ([]byte, error) { return get(r.of, key) }

// Probe implements store.Reader.
func (r snapshotReader) Probe(key []byte) ([]byte, error) { return r.Get(key) }

// NewIter implements store.Reader.
func (r snapshotReader) NewIter(from, to []byte) (store.Iterator, error) {
	return newIter(r.of, from, to)
}
