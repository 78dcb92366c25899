package state

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The directory of a store holds the databases, of which the file current names
// the one that counts. Another one is what an Install was writing, or has left
// behind, when the process ended.
const (
	currentFile    = "current"
	damagedFile    = "damaged"
	databasePrefix = "db-"
)

// Open opens the store in o.Dir, or creates it, and returns the machine as it was
// at Applied. An error that wraps ErrCorrupt says that the store is damaged, or
// was found to be when it was used last: it is of no use any more, see Discard. A
// *FormatError says that another version has written it. The machine must be
// closed.
func Open(o Options) (*Machine, error) {
	o = o.withDefaults()
	m := New()
	m.store = newStore(o)
	if err := m.open(); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	return m, nil
}

func (m *Machine) open() error {
	s := m.store
	fs, dir := s.options.FS, s.options.Dir
	if err := errors.Join(fs.MkdirAll(dir, 0o700), syncDir(fs, parent(fs, dir))); err != nil {
		return err
	}
	if reason, err := readFile(fs, fs.PathJoin(dir, damagedFile)); err == nil {
		return fmt.Errorf("%s: %s: %w", dir, strings.TrimSpace(string(reason)), ErrCorrupt)
	}
	name, err := s.currentName()
	if err != nil {
		return err
	}
	if err := s.removeOthers(name); err != nil {
		return err
	}
	fresh, err := s.openContents(name)
	if err != nil {
		return err
	}
	return m.adopt(fresh)
}

// opened is a database with what a machine keeps of it in memory.
type opened struct {
	name     string
	db       *pebble.DB
	lock     *pebble.Lock
	meta     meta
	contents contents
}

// openContents opens a database and reads what is kept in memory of it.
func (s *store) openContents(name string) (*opened, error) {
	db, lock, err := s.open(name)
	if err != nil {
		return nil, err
	}
	o := &opened{name: name, db: db, lock: lock, contents: newContents()}
	err = s.guarded("read the store", func() error { return o.read(s.options.Dir) })
	if err != nil {
		return nil, errors.Join(err, s.closeDatabase(db, lock))
	}
	return o, nil
}

func (o *opened) read(dir string) (err error) {
	if o.meta, err = readMeta(o.db, dir); err != nil {
		return err
	}
	o.contents.epoch, o.contents.group = o.meta.epoch, o.meta.group
	return scan(o.db, []byte{keyChained}, afterAll(keyChained), func(key, record []byte) (bool, error) {
		var c chainedStart
		if err := c.parse(append([]byte(nil), record...)); err != nil {
			return false, err
		}
		o.contents.chained[c.target] = c
		return true, nil
	})
}

// adopt takes a database into use, in the place of the one there was.
func (m *Machine) adopt(o *opened) error {
	// First the store, then what is in memory: what is read in between is older,
	// or what is to come, and never what was purged.
	err := m.store.replace(o.db, o.lock, o.name)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contents = o.contents
	m.flushes.reset(o.meta)
	return err
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

// Discard removes the store in o.Dir, which nobody may have open: the next Open
// begins with an empty one. It removes nothing else.
func Discard(o Options) error {
	o = o.withDefaults()
	// In this order: what is damaged is never believed again.
	for _, name := range []string{currentFile, damagedFile} {
		if err := o.FS.Remove(o.FS.PathJoin(o.Dir, name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return fmt.Errorf("discard state: %w", err)
		}
		if err := syncDir(o.FS, o.Dir); err != nil {
			return fmt.Errorf("discard state: %w", err)
		}
	}
	return nil
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
	return m.store.failure.failed
}

// Err returns a *StoreError once the store cannot be used any more, nil before.
func (m *Machine) Err() error {
	if m.store == nil {
		return nil
	}
	return m.store.err()
}

// Close writes what is not written yet and closes the store. Nothing may be
// applied any more; what is read afterwards and not in memory is not found. It
// may be called more than once.
func (m *Machine) Close() error {
	if m.store == nil {
		return nil
	}
	m.mu.Lock()
	if m.index > m.durable {
		m.waiters = append(m.waiters, waiter{m.index, make(chan struct{})})
		m.beginIfDue()
	}
	m.mu.Unlock()
	m.running.Wait()
	return m.store.close()
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
	db := m.store.current()
	if db == nil {
		return Point{}, &StoreError{Dir: m.store.options.Dir, Op: "make a checkpoint", Err: errClosed}
	}
	var at meta
	err = m.store.guarded("make a checkpoint", func() (err error) {
		if at, err = readMeta(db, m.store.options.Dir); err == nil {
			err = db.Checkpoint(dir)
		}
		return err
	})
	if err != nil {
		return Point{}, err
	}
	return Point{at.index, at.term, m.store.name}, nil
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
		case <-m.store.failure.failed:
			return nil, m.store.err()
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
	}, m.store.err()
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
	s := m.store
	old := s.name
	fresh, err := s.install(fill)
	if err != nil {
		return fmt.Errorf("install state: %w", err)
	}
	if err := m.adopt(fresh); err != nil {
		return s.fail("close the store before", err)
	}
	m.watchers.notifyAll()
	if err := s.options.FS.RemoveAll(s.options.FS.PathJoin(s.options.Dir, old)); err != nil {
		s.options.Logger.Warn("the state before was not removed", "error", err)
	}
	return nil
}

// install fills and opens a new database, and makes it the current one.
func (s *store) install(fill func(dir string) error) (*opened, error) {
	fs, dir := s.options.FS, s.options.Dir
	name := freshName()
	path := fs.PathJoin(dir, name)
	if err := fs.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	if err := fill(path); err != nil {
		return nil, err
	}
	trial := newStore(s.options)
	trial.trial = true
	fresh, err := trial.openContents(name)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(trial.closeDatabase(fresh.db, fresh.lock), syncDir(fs, path), syncDir(fs, dir)); err != nil {
		return nil, err
	}
	if fresh, err = s.openContents(name); err != nil {
		return nil, err
	}
	if err := writeSynced(fs, dir, currentFile, []byte(name+"\n")); err != nil {
		return nil, errors.Join(err, s.closeDatabase(fresh.db, fresh.lock))
	}
	return fresh, nil
}

// currentName returns the name of the database that counts; a new one in an
// empty directory.
func (s *store) currentName() (string, error) {
	fs, dir := s.options.FS, s.options.Dir
	content, err := readFile(fs, fs.PathJoin(dir, currentFile))
	if errors.Is(err, iofs.ErrNotExist) {
		// What others there are was never used, or was discarded.
		if err := s.removeOthers(""); err != nil {
			return "", err
		}
		name := freshName()
		return name, writeSynced(fs, dir, currentFile, []byte(name+"\n"))
	}
	if err != nil {
		return "", err
	}
	name := strings.TrimSuffix(string(content), "\n")
	if !isDatabase(name) {
		return "", fmt.Errorf("%s names %q: %w", currentFile, content, ErrCorrupt)
	}
	return name, nil
}

// freshName returns the name of a database that there has never been: what is
// known of the files of one is known by its name.
func freshName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return databasePrefix + hex.EncodeToString(b[:])
}

// isDatabase reports whether a name is that of a database.
func isDatabase(name string) bool {
	digits, ok := strings.CutPrefix(name, databasePrefix)
	b, err := hex.DecodeString(digits)
	return ok && err == nil && len(b) == 8
}

// removeOthers removes the databases that do not count.
func (s *store) removeOthers(name string) error {
	fs, dir := s.options.FS, s.options.Dir
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, other := range names {
		if other != name && isDatabase(other) {
			if err := fs.RemoveAll(fs.PathJoin(dir, other)); err != nil {
				return err
			}
		}
	}
	return nil
}

func readFile(fs vfs.FS, path string) (content []byte, err error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(f)
}

// writeSynced writes a file such that it is there whole or not at all.
func writeSynced(fs vfs.FS, dir, name string, content []byte) error {
	path := fs.PathJoin(dir, name)
	f, err := fs.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

// parent returns the directory that a directory is in.
func parent(fs vfs.FS, dir string) string {
	if p := fs.PathDir(dir); p != "" {
		return p
	}
	return "."
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
