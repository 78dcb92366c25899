package pebblestore

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// Options configure a store. Zero values mean the defaults.
type Options struct {
	// Dir is the directory of the store, created if missing. Required.
	Dir string
	// FS is the file system. Defaults to OwnerOnly.
	FS vfs.FS
	// Logger gets changes of state and Pebble's warnings. Defaults to slog.Default().
	Logger *slog.Logger
	// CacheBytes bounds the block cache. Defaults to 64 MiB.
	CacheBytes int
	// WriteBytes is about how many bytes one Write contains. They stay in memory until they are on
	// disk. Defaults to 64 MiB.
	WriteBytes int
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = OwnerOnly
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.WriteBytes == 0 {
		o.WriteBytes = 64 << 20
	}
	return o
}

// Store is a store.Store on disk. See Open.
type Store struct {
	options Options

	// mu is held for reading while a database is used, and for writing while it is replaced.
	mu sync.RWMutex
	db *database // nil once closed

	probe         probeIter
	databaseCount atomic.Uint64 // the number opened so far
	isCandidate   bool          // damage in a candidate does not mark the store
	closing       atomic.Bool   // a database is being closed
	failure       failure
}

// database is an open database.
type database struct {
	*pebble.DB
	name   string // its directory inside the store's
	number uint64
	lock   *pebble.Lock
	pacer  *compactionPacer
	// hasManifest is true after openManifest. Only the writer uses it.
	hasManifest bool

	snapshotsMu sync.Mutex
	snapshots   map[*snapshot]struct{} // the open ones
}

func newStore(o Options) *Store {
	return &Store{options: o, failure: failure{failed: make(chan struct{})}}
}

// View implements store.Store.
func (s *Store) View(op string, f func(store.Reader) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return s.closedError(op)
	}
	if err := f(reader{s, s.db}); err != nil {
		return s.Fail(op, err)
	}
	return nil
}

func (s *Store) closedError(op string) error {
	return &store.Error{Dir: s.options.Dir, Op: op, Err: store.ErrClosed}
}

// writableDatabase returns the database, unless the store has failed. Only the writer may call it:
// closing and replacing never run at the same time as a write.
func (s *Store) writableDatabase(op string) (*database, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return nil, s.closedError(op)
	}
	return s.db, nil
}

// Write implements store.Store. It allocates the batch at its full size. Otherwise Pebble would
// copy a full batch into one twice as large. Page faults make that copy slow, and it cannot be
// preempted. A garbage collection that stops the world would wait for the copy and block every
// goroutine.
func (s *Store) Write(op string, sizeHint int, fill func(store.Batch) error) error {
	db, err := s.writableDatabase(op)
	if err != nil {
		return err
	}
	err = s.runGuarded(op, func() error {
		b := db.NewBatchWithSize(batchHeaderBytes + sizeHint)
		if err := fill(batch{b}); err != nil {
			return errors.Join(err, b.Close())
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			return err
		}
		return b.Close()
	})
	if err != nil {
		return err
	}
	return s.resetProbe(op)
}

// batchHeaderBytes is the size of a batch without records.
const batchHeaderBytes = 12

// resetProbe makes the next Probe see the current contents. It releases the batches and files that
// the old iterator holds.
func (s *Store) resetProbe(op string) error {
	if err := s.probe.closeIter(); err != nil {
		return s.Fail(op, err)
	}
	return nil
}

// batch adapts a pebble.Batch to store.Batch.
type batch struct{ *pebble.Batch }

func (b batch) Set(key, value []byte) error       { return b.Batch.Set(key, value, nil) }
func (b batch) Delete(key []byte) error           { return b.Batch.Delete(key, nil) }
func (b batch) DeleteRange(from, to []byte) error { return b.Batch.DeleteRange(from, to, nil) }

// Sync implements store.Store.
func (s *Store) Sync() error {
	db, err := s.writableDatabase("flush")
	if err != nil {
		return err
	}
	var flushed <-chan struct{}
	err = s.runGuarded("flush", func() (err error) {
		flushed, err = db.AsyncFlush()
		return err
	})
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return s.resetProbe("flush")
	case <-s.failure.failed:
		return s.failure.err
	}
}

// Checkpoint implements store.Store.
func (s *Store) Checkpoint(dir string) (name string, err error) {
	db, err := s.writableDatabase("make a checkpoint")
	if err != nil {
		return "", err
	}
	if err := s.openManifest(db); err != nil {
		return "", err
	}
	return db.name, s.runGuarded("make a checkpoint", func() error { return db.Checkpoint(dir) })
}

// openManifest makes Pebble open its manifest, by writing a key again. Pebble opens it when the
// first table is added or removed, which is within Open if there is a log to replay. After a crash
// within Open there may be none. Pebble 2.1.7 then copies an empty manifest into a checkpoint.
func (s *Store) openManifest(db *database) error {
	if db.hasManifest {
		return nil
	}
	if err := s.Write("make a checkpoint", 0, func(b store.Batch) error { return rewriteFirst(db, b) }); err != nil {
		return err
	}
	if err := s.Sync(); err != nil {
		return err
	}
	db.hasManifest = true
	return nil
}

// rewriteFirst adds the first key to a batch as it is. A database without keys is a new one.
func rewriteFirst(db *database, b store.Batch) error {
	iter, err := db.NewIter(nil)
	if err != nil {
		return err
	}
	if iter.First() {
		err = b.Set(iter.Key(), iter.Value())
	}
	return errors.Join(err, iter.Error(), iter.Close())
}

// Metrics returns Pebble's metrics, nil once the store is closed.
func (s *Store) Metrics() *pebble.Metrics {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return nil
	}
	return s.db.Metrics()
}

// Close implements store.Store. The database of a failed store is abandoned, not closed: some of
// its goroutines may have been ended halfway, and none can write to disk.
func (s *Store) Close() error { return s.replace(nil, func() {}) }

// replace replaces the database, calls onInstalled before any reader sees the new one, and closes
// the old one.
func (s *Store) replace(fresh *database, onInstalled func()) error {
	s.mu.Lock()
	err := s.probe.closeIter()
	old := s.db
	s.db = fresh
	onInstalled()
	s.mu.Unlock()
	if old == nil {
		return nil
	}
	return errors.Join(s.unlessFailed(err), s.closeDatabase(old))
}

func (s *Store) closeDatabase(db *database) error {
	db.pacer.stopPausing()
	err := error(nil)
	if s.Err() == nil {
		s.closing.Store(true)
		err = s.unlessFailed(s.runGuarded("close", func() error { return errors.Join(db.closeSnapshots(), db.Close()) }))
		s.closing.Store(false)
	}
	return errors.Join(err, db.lock.Close())
}
