package state

import (
	"errors"
	"fmt"
	"math"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// Open returns the machine whose state is in s, as of Applied; an empty store yields an empty
// machine. The machine owns the store, and the caller must close the machine. After an error the
// store is already closed. An error that wraps ErrCorrupt means that the store is damaged and
// unusable. A *FormatError means that another version wrote it.
func Open(s store.Store, o Options) (*Machine, error) {
	m := New()
	m.store, m.options = &recordStore{s}, o.withDefaults()
	var fresh storedContents
	if err := s.View("read the store", fresh.read); err != nil {
		return nil, fmt.Errorf("open state: %w", errors.Join(err, s.Close()))
	}
	m.replaceContents(&fresh)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.startFlushIfDue() // to build the index
	return m, nil
}

// storedContents is the part of a store that a machine keeps in memory.
type storedContents struct {
	dbNumber uint64
	meta     storeMeta
	contents contents
	index    indexState
}

func (s *storedContents) read(from store.Reader) (err error) {
	s.dbNumber = from.DatabaseNumber()
	if s.meta, err = readStoreMeta(from); err != nil {
		return err
	}
	s.contents = newContents()
	s.contents.facets.tracksDirty = true
	s.contents.epoch, s.contents.metadata = s.meta.epoch, s.meta.metadata
	if s.index, err = readIndexState(from, &s.meta, &s.contents.facets); err != nil {
		return err
	}
	return scanRecords(from, []byte{keyChained}, endOfKind(keyChained), func(key, record []byte) (bool, error) {
		var c chainedStart
		if err := c.parse(append([]byte(nil), record...)); err != nil {
			return false, err
		}
		s.contents.chainedStarts[c.target] = c
		return true, nil
	})
}

// replaceContents replaces everything in memory by what a newly opened store holds.
func (m *Machine) replaceContents(k *storedContents) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contents = k.contents
	m.dbNumber = k.dbNumber
	m.flushState.reset(k.meta)
	m.indexState = k.index
}

// reset sets the flush state to that of a newly opened store.
func (f *flushState) reset(m storeMeta) {
	f.index, f.term, f.durable, f.lastNumber = m.index, m.term, m.index, m.lastNumber
	f.partial = false
	f.generation++
	f.commits++
	f.entries, f.dirtyBytes = 0, 0
	f.dirty, f.removals, f.chainedChanges = nil, nil, nil
	f.purged, f.idle = map[string]uint64{}, idleList{}
	f.notifyWaiters()
}

// Applied returns index and term of the last entry passed to Advance, or after Open of the last
// entry in the store.
func (m *Machine) Applied() (index, term uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.index, m.term
}

// Failed returns a channel that is closed when the store fails; nil for a machine without a store.
func (m *Machine) Failed() <-chan struct{} {
	if m.store == nil {
		return nil
	}
	return m.store.Failed()
}

// Err returns a *StoreError once the store has failed, nil before.
func (m *Machine) Err() error {
	if m.store == nil {
		return nil
	}
	return m.store.Err()
}

// DisablePacing makes flushes run without pauses from now on, because the machine is about to be
// closed.
func (m *Machine) DisablePacing() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unpaced = true
}

// Close writes all pending changes and closes the store. The caller must not apply anything
// afterwards; a later read finds only what is in memory. Close may be called more than once.
func (m *Machine) Close() error {
	if m.store == nil {
		return nil
	}
	m.DisablePacing()
	m.mu.Lock()
	if m.index > m.durable {
		m.waiters = append(m.waiters, waiter{m.index, make(chan struct{})})
		m.startFlushIfDue()
	}
	m.mu.Unlock()
	m.flushes.Wait()
	return m.store.Close()
}

// CheckpointInfo describes a checkpoint.
type CheckpointInfo struct {
	Index, Term uint64 // of the last entry in it
	// Database names the database. Files of the same name in two checkpoints of one database are
	// identical.
	Database string
}

// Checkpoint creates the directory dir with a copy of the store as of the last flush. dir must not
// exist and must be on the same file system. The copy costs only hard links. The error is a
// *StoreError.
func (m *Machine) Checkpoint(dir string) (CheckpointInfo, error) {
	release, err := m.blockFlushes()
	if err != nil {
		return CheckpointInfo{}, err
	}
	defer release()
	var at storeMeta
	err = m.store.view("make a checkpoint", 0, func(from store.Reader) (err error) {
		at, err = readStoreMeta(from)
		return err
	})
	if err != nil {
		return CheckpointInfo{}, err
	}
	database, err := m.store.Checkpoint(dir)
	if err != nil {
		return CheckpointInfo{}, err
	}
	return CheckpointInfo{at.index, at.term, database}, nil
}

// blockFlushes waits for the flush in progress and prevents the next one until release is called.
func (m *Machine) blockFlushes() (release func(), err error) {
	blocker := &flush{generation: math.MaxUint64, done: make(chan struct{})} // a generation that no instance has
	m.mu.Lock()
	m.blockers++
	for m.current != nil {
		inFlight := m.current
		m.mu.Unlock()
		select {
		case <-inFlight.done:
		case <-m.store.Failed():
			return nil, m.store.Err()
		}
		m.mu.Lock()
	}
	m.blockers--
	m.current = blocker
	m.flushes.Add(1)
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		m.current = nil
		m.startFlushIfDue()
		m.mu.Unlock()
		close(blocker.done)
		m.flushes.Done()
	}, m.store.Err()
}

// Install replaces the state by that of a checkpoint. fill must write its files into a new
// directory and sync them. Install opens that database and then replaces the old one atomically,
// even across a crash. If fill fails or the checkpoint cannot be opened, the machine is unchanged.
// Install must not be called while Apply runs. It wakes all watchers.
func (m *Machine) Install(fill func(dir string) error) error {
	release, err := m.blockFlushes()
	if err != nil {
		return err
	}
	defer release()
	var fresh storedContents
	// Store and memory change together. A reader that has an old position of a history does not
	// find it in the new store, and looks up the position again.
	if err := m.store.Install(fill, fresh.read, func() { m.replaceContents(&fresh) }); err != nil {
		return fmt.Errorf("install state: %w", err)
	}
	m.watchers.notifyAll()
	return nil
}

// Options bound the memory of a machine with a store, and set when it flushes. Zero values mean the
// defaults.
type Options struct {
	// MemoryBytes bounds the memory of clean instances, whose latest state is in the store. They
	// stay in memory so that an append need not read them. Defaults to 128 MiB.
	MemoryBytes int
	// FlushBytes is the number of bytes of records, and of the instances that they change, at which
	// a flush begins. A restart applies the records again that were not flushed. When twice as many
	// bytes wait in memory, Advance blocks. Defaults to 64 MiB.
	FlushBytes int
	// FlushEntries is the maximum number of calls of Advance between two flushes. Defaults to
	// 32768.
	FlushEntries int
	// FlushShare scales FlushBytes and FlushEntries, above 0 and up to 1. Replicas with different
	// shares do not all flush at the same moment. Defaults to 1.
	FlushShare float64

	indexStep     int // how many instances a flush adds to an incomplete index; 8192 if 0
	searchDivisor int // divides what the search for a page may cost; 1 if 0
	countPageRows int // how many rows are counted at a time; 8192 if 0
	pageBytesMax  int // after how many bytes of rows a page ends, about; index.PageBytesMax if 0
	// How many dirty instances there may be before a flush begins if there are searches, which
	// examine each of them; 16384 if 0.
	searchedMax int
}

func (o Options) withDefaults() Options {
	setDefault(&o.MemoryBytes, 128<<20)
	setDefault(&o.FlushBytes, 64<<20)
	setDefault(&o.FlushEntries, 32<<10)
	setDefault(&o.indexStep, 8<<10)
	setDefault(&o.searchDivisor, 1)
	setDefault(&o.countPageRows, 8<<10)
	setDefault(&o.pageBytesMax, index.PageBytesMax)
	setDefault(&o.searchedMax, 16<<10)
	if o.FlushShare > 0 {
		o.FlushBytes = max(int(o.FlushShare*float64(o.FlushBytes)), 1)
		o.FlushEntries = max(int(o.FlushShare*float64(o.FlushEntries)), 1)
	}
	return o
}

func setDefault(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}
