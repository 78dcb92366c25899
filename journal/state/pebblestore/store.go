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

// Options say where a store is. Zero values mean the defaults.
type Options struct {
	// Dir is the directory of the store; it is created if need be. Required.
	Dir string
	// FS is the file system. Defaults to that of the operating system.
	FS vfs.FS
	// Logger gets changes of state and what the database warns of. Defaults to
	// slog.Default().
	Logger *slog.Logger
	// CacheBytes bounds the cache of what was read. Defaults to 64 MiB.
	CacheBytes int
	// WriteBytes is about what is written at a time and held in memory until it is
	// on disk. Defaults to 64 MiB.
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

	// mu is held for reading while a database is used, for writing while it is
	// replaced.
	mu    sync.RWMutex
	inUse *database // nil once closed

	prober    prober
	databases atomic.Uint64 // that have been opened
	trial     bool          // what is wrong with a database is not wrong with what is in use
	closing   atomic.Bool   // a database is being closed
	failure   failure
}

// database is one that is open.
type database struct {
	*pebble.DB
	name   string // its directory, in that of the store
	number uint64
	lock   *pebble.Lock
	pacer  *pacer
}

func newStore(o Options) *Store {
	return &Store{options: o, failure: failure{failed: make(chan struct{})}}
}

// View implements store.Store.
func (s *Store) View(op string, f func(store.Reader) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.inUse == nil {
		return s.closed(op)
	}
	if err := f(reader{s, s.inUse}); err != nil {
		return s.Fail(op, err)
	}
	return nil
}

func (s *Store) closed(op string) error {
	return &store.Error{Dir: s.options.Dir, Op: op, Err: store.ErrClosed}
}

// current returns the database, unless the store has failed. Only who writes may
// use it like that: whoever closes or replaces it does not write.
func (s *Store) current(op string) (*database, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.inUse == nil {
		return nil, s.closed(op)
	}
	return s.inUse, nil
}

// Write implements store.Store. A batch that has no room left is copied into one twice
// as large. Nothing stops a copy: while it waits for memory, of which the system gives out
// a page at a time, whoever would stop the world, as the garbage collector does, has
// everybody wait.
func (s *Store) Write(op string, room int, fill func(store.Batch) error) error {
	db, err := s.current(op)
	if err != nil {
		return err
	}
	err = s.guarded(op, func() error {
		b := db.NewBatchWithSize(batchHeaderBytes + room)
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
	return s.refresh(op)
}

// batchHeaderBytes is what a batch takes without a record.
const batchHeaderBytes = 12

// refresh has the prober look at what the store holds now. It lets go of what it
// has looked at before, batches and files.
func (s *Store) refresh(op string) error {
	if err := s.prober.end(); err != nil {
		return s.Fail(op, err)
	}
	return nil
}

// batch is one of pebble's as a store.Batch.
type batch struct{ *pebble.Batch }

func (b batch) Set(key, value []byte) error       { return b.Batch.Set(key, value, nil) }
func (b batch) Delete(key []byte) error           { return b.Batch.Delete(key, nil) }
func (b batch) DeleteRange(from, to []byte) error { return b.Batch.DeleteRange(from, to, nil) }

// Sync implements store.Store.
func (s *Store) Sync() error {
	db, err := s.current("flush")
	if err != nil {
		return err
	}
	var flushed <-chan struct{}
	err = s.guarded("flush", func() (err error) {
		flushed, err = db.AsyncFlush()
		return err
	})
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return s.refresh("flush")
	case <-s.failure.failed:
		return s.failure.err
	}
}

// Checkpoint implements store.Store.
func (s *Store) Checkpoint(dir string) (name string, err error) {
	db, err := s.current("make a checkpoint")
	if err != nil {
		return "", err
	}
	return db.name, s.guarded("make a checkpoint", func() error { return db.Checkpoint(dir) })
}

// Metrics returns what the database counts of itself, nil once the store is
// closed.
func (s *Store) Metrics() *pebble.Metrics {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.inUse == nil {
		return nil
	}
	return s.inUse.Metrics()
}

// Close implements store.Store. A store that has failed is left behind: some of
// its goroutines may have been ended halfway, and nothing that they do reaches
// the disk.
func (s *Store) Close() error { return s.replace(nil, func() {}) }

// replace puts another database in the place of the one there is, calls taken
// before anybody reads it, and closes the one before.
func (s *Store) replace(fresh *database, taken func()) error {
	s.mu.Lock()
	err := s.prober.end()
	old := s.inUse
	s.inUse = fresh
	taken()
	s.mu.Unlock()
	if old == nil {
		return nil
	}
	return errors.Join(s.quiet(err), s.closeDatabase(old))
}

func (s *Store) closeDatabase(db *database) error {
	db.pacer.hurry()
	err := error(nil)
	if s.Err() == nil {
		s.closing.Store(true)
		err = s.quiet(s.guarded("close", db.Close))
		s.closing.Store(false)
	}
	return errors.Join(err, db.lock.Close())
}
