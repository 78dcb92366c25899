package pebblestore

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	iofs "io/fs"
	"strings"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// The directory of a store holds the databases, of which the file current names
// the one that counts. Another one is what an Install was writing, or has left
// behind, when the process ended.
const (
	currentFile    = "current"
	damagedFile    = "damaged"
	databasePrefix = "db-"
)

// Open opens the store in o.Dir, or creates it. An error that wraps
// store.ErrCorrupt says that the store is damaged, or was found to be when it was
// used last: it is of no use any more, see Discard. The store must be closed.
func Open(o Options) (*Store, error) {
	s := newStore(o.withDefaults())
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	return s, nil
}

func (s *Store) open() error {
	fs, dir := s.options.FS, s.options.Dir
	if err := errors.Join(fs.MkdirAll(dir, 0o700), syncDir(fs, parent(fs, dir))); err != nil {
		return err
	}
	if reason, err := readFile(fs, fs.PathJoin(dir, damagedFile)); err == nil {
		return fmt.Errorf("%s: %s: %w", dir, strings.TrimSpace(string(reason)), store.ErrCorrupt)
	}
	name, err := s.currentName()
	if err != nil {
		return err
	}
	if err := s.removeOthers(name); err != nil {
		return err
	}
	db, err := s.openDatabase(name)
	if err != nil {
		return err
	}
	return s.replace(db, func() {})
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

// Install implements store.Store.
func (s *Store) Install(fill func(dir string) error, read func(store.Reader) error, taken func()) error {
	old, err := s.current("install")
	if err != nil {
		return err
	}
	fresh, err := s.install(fill, read)
	if err != nil {
		return err
	}
	if err := s.replace(fresh, taken); err != nil {
		return s.Fail("close the store before", err)
	}
	if err := s.options.FS.RemoveAll(s.options.FS.PathJoin(s.options.Dir, old.name)); err != nil {
		s.options.Logger.Warn("the state before was not removed", "error", err)
	}
	return nil
}

// install fills and opens a new database, and makes it the one that counts.
func (s *Store) install(fill func(dir string) error, read func(store.Reader) error) (*database, error) {
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
	fresh, err := trial.openRead(name, read)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(trial.closeDatabase(fresh), syncDir(fs, path), syncDir(fs, dir)); err != nil {
		return nil, err
	}
	if fresh, err = s.openRead(name, read); err != nil {
		return nil, err
	}
	if err := writeSynced(fs, dir, currentFile, []byte(name+"\n")); err != nil {
		return nil, errors.Join(err, s.closeDatabase(fresh))
	}
	return fresh, nil
}

// openRead opens a database and has it read.
func (s *Store) openRead(name string, read func(store.Reader) error) (*database, error) {
	db, err := s.openDatabase(name)
	if err != nil {
		return nil, err
	}
	if err := s.guarded("read the store", func() error { return read(reader{s, db}) }); err != nil {
		return nil, errors.Join(err, s.closeDatabase(db))
	}
	return db, nil
}

// currentName returns the name of the database that counts; a new one in an
// empty directory.
func (s *Store) currentName() (string, error) {
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
		return "", fmt.Errorf("%s names %q: %w", currentFile, content, store.ErrCorrupt)
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
func (s *Store) removeOthers(name string) error {
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
