package state

import (
	"errors"
	"fmt"
	"math"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// Open returns the machine whose state is in a store, as it was at Applied; in an
// empty store, an empty one. The store is the machine's from now on, which must be
// closed; after an error it is closed already. An error that wraps ErrCorrupt says
// that what is in the store is damaged: it is of no use any more. A *FormatError
// says that another version has written it.
func Open(s store.Store, o Options) (*Machine, error) {
	m := New()
	m.store, m.options = &records{s}, o.withDefaults()
	var fresh kept
	if err := s.View("read the store", fresh.read); err != nil {
		return nil, fmt.Errorf("open state: %w", errors.Join(err, s.Close()))
	}
	m.adopt(&fresh)
	return m, nil
}

// kept is what a machine keeps in memory of a store.
type kept struct {
	database uint64
	meta     meta
	contents contents
}

func (k *kept) read(from store.Reader) (err error) {
	k.database = from.Database()
	if k.meta, err = readMeta(from); err != nil {
		return err
	}
	k.contents = newContents()
	k.contents.epoch, k.contents.group = k.meta.epoch, k.meta.group
	return scan(from, []byte{keyChained}, afterAll(keyChained), func(key, record []byte) (bool, error) {
		var c chainedStart
		if err := c.parse(append([]byte(nil), record...)); err != nil {
			return false, err
		}
		k.contents.chained[c.target] = c
		return true, nil
	})
}

// adopt forgets what is in memory for what a store has that was just opened.
func (m *Machine) adopt(k *kept) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contents = k.contents
	m.home = k.database
	m.flushes.reset(k.meta)
}

// reset begins anew behind what a store has.
func (f *flushes) reset(m meta) {
	f.index, f.term, f.durable, f.numbers = m.index, m.term, m.index, m.numbers
	f.partial = false
	f.generation++
	f.commits++
	f.entries, f.dirtyBytes = 0, 0
	f.dirty, f.removals, f.rechained = nil, nil, nil
	f.gone, f.rest = map[string]uint64{}, idleList{}
	f.wake()
}

// Applied returns the index and the term of the last entry that Advance has
// named; after Open, of the last that the store has.
func (m *Machine) Applied() (index, term uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.index, m.term
}

// Failed returns a channel that is closed when the store cannot be used any
// more; nil for a machine without one.
func (m *Machine) Failed() <-chan struct{} {
	if m.store == nil {
		return nil
	}
	return m.store.Failed()
}

// Err returns a *StoreError once the store cannot be used any more, nil before.
func (m *Machine) Err() error {
	if m.store == nil {
		return nil
	}
	return m.store.Err()
}

// Hasten has flushes not rest any more, as the machine is about to be closed.
func (m *Machine) Hasten() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hasty = true
}

// Close writes what is not written yet and closes the store. Nothing may be
// applied any more; what is read afterwards and not in memory is not found. It
// may be called more than once.
func (m *Machine) Close() error {
	if m.store == nil {
		return nil
	}
	m.Hasten()
	m.mu.Lock()
	if m.index > m.durable {
		m.waiters = append(m.waiters, waiter{m.index, make(chan struct{})})
		m.beginIfDue()
	}
	m.mu.Unlock()
	m.running.Wait()
	return m.store.Close()
}

// Point is what a checkpoint is of.
type Point struct {
	Index, Term uint64 // of the last entry that is in it
	// Database names the database: of two checkpoints of one, files of the same
	// name are the same.
	Database string
}

// Checkpoint makes the directory dir, on the same file system and not there yet,
// a copy of the store as the last flush has left it, at the cost of links to its
// files. The error is a *StoreError.
func (m *Machine) Checkpoint(dir string) (Point, error) {
	release, err := m.hold()
	if err != nil {
		return Point{}, err
	}
	defer release()
	var at meta
	err = m.store.view("make a checkpoint", 0, func(from store.Reader) (err error) {
		at, err = readMeta(from)
		return err
	})
	if err != nil {
		return Point{}, err
	}
	database, err := m.store.Checkpoint(dir)
	if err != nil {
		return Point{}, err
	}
	return Point{at.index, at.term, database}, nil
}

// hold waits for the flush that is under way and keeps the next from beginning
// until it is released.
func (m *Machine) hold() (release func(), err error) {
	holder := &flush{generation: math.MaxUint64, done: make(chan struct{})} // of nobody's generation
	m.mu.Lock()
	for m.current != nil {
		under := m.current
		m.mu.Unlock()
		select {
		case <-under.done:
		case <-m.store.Failed():
			return nil, m.store.Err()
		}
		m.mu.Lock()
	}
	m.current = holder
	m.running.Add(1)
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		m.current = nil
		m.beginIfDue()
		m.mu.Unlock()
		close(holder.done)
		m.running.Done()
	}, m.store.Err()
}

// Install replaces the state by that of a checkpoint. fill puts its files into a
// new directory, and syncs them; the database in it is opened, and only then
// takes the place of the one before, at once, whatever happens meanwhile. After
// an error of fill, or a checkpoint that does not open, the machine is as it was.
// It must not be called while Apply runs; everybody who watches is woken.
func (m *Machine) Install(fill func(dir string) error) error {
	release, err := m.hold()
	if err != nil {
		return err
	}
	defer release()
	var fresh kept
	// The store and what is in memory change together: who has read in memory where
	// a history is, and does not find it in the store, finds it when it looks again.
	if err := m.store.Install(fill, fresh.read, func() { m.adopt(&fresh) }); err != nil {
		return fmt.Errorf("install state: %w", err)
	}
	m.watchers.notifyAll()
	return nil
}
