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

// The directory of a store holds databases, and the file current names the one in use. Any other is
// left over from an Install that was interrupted.
const (
	currentFile    = "current"
	damagedFile    = "damaged"
	databasePrefix = "db-"
)

// Open opens the store in o.Dir, or creates it. An error that wraps store.ErrCorrupt means that the
// store is damaged, or was found damaged when it was last used; see Discard. The caller must close
// the store.
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

// Discard removes the store in o.Dir and nothing else. The store must not be open. The next Open
// creates an empty one.
func Discard(o Options) error {
	o = o.withDefaults()
	// In this order, so that damaged data is never used again.
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
func (s *Store) Install(fill func(dir string) error, read func(store.Reader) error, onInstalled func()) error {
	old, err := s.writableDatabase("install")
	if err != nil {
		return err
	}
	fresh, err := s.install(fill, read)
	if err != nil {
		return err
	}
	if err := s.replace(fresh, onInstalled); err != nil {
		return s.Fail("close the previous database", err)
	}
	if err := s.options.FS.RemoveAll(s.options.FS.PathJoin(s.options.Dir, old.name)); err != nil {
		s.options.Logger.Warn("cannot remove the previous state database", "error", err)
	}
	return nil
}

// install fills and opens a new database, and makes it the current one.
func (s *Store) install(fill func(dir string) error, read func(store.Reader) error) (*database, error) {
	fs, dir := s.options.FS, s.options.Dir
	name := newDatabaseName()
	path := fs.PathJoin(dir, name)
	if err := fs.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	if err := fill(path); err != nil {
		return nil, err
	}
	candidate := newStore(s.options)
	candidate.isCandidate = true
	fresh, err := candidate.openAndRead(name, read)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(candidate.closeDatabase(fresh), syncDir(fs, path), syncDir(fs, dir)); err != nil {
		return nil, err
	}
	if fresh, err = s.openAndRead(name, read); err != nil {
		return nil, err
	}
	if err := writeSynced(fs, dir, currentFile, []byte(name+"\n")); err != nil {
		return nil, errors.Join(err, s.closeDatabase(fresh))
	}
	return fresh, nil
}

// openAndRead opens a database and calls read with it.
func (s *Store) openAndRead(name string, read func(store.Reader) error) (*database, error) {
	db, err := s.openDatabase(name)
	if err != nil {
		return nil, err
	}
	if err := s.runGuarded("read the store", func() error { return read(reader{s, db}) }); err != nil {
		return nil, errors.Join(err, s.closeDatabase(db))
	}
	return db, nil
}

// currentName returns the name of the current database; a new one in an empty directory.
func (s *Store) currentName() (string, error) {
	fs, dir := s.options.FS, s.options.Dir
	content, err := readFile(fs, fs.PathJoin(dir, currentFile))
	if errors.Is(err, iofs.ErrNotExist) {
		// Other databases were never used, or were discarded.
		if err := s.removeOthers(""); err != nil {
			return "", err
		}
		name := newDatabaseName()
		return name, writeSynced(fs, dir, currentFile, []byte(name+"\n"))
	}
	if err != nil {
		return "", err
	}
	name := strings.TrimSuffix(string(content), "\n")
	if !isDatabaseName(name) {
		return "", fmt.Errorf("%s names %q: %w", currentFile, content, store.ErrCorrupt)
	}
	return name, nil
}

// newDatabaseName returns a random name. It must be unique, because files of the same name in
// checkpoints of one database are taken to be identical.
func newDatabaseName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return databasePrefix + hex.EncodeToString(b[:])
}

// isDatabaseName reports whether a name is that of a database.
func isDatabaseName(name string) bool {
	digits, ok := strings.CutPrefix(name, databasePrefix)
	b, err := hex.DecodeString(digits)
	return ok && err == nil && len(b) == 8
}

// removeOthers removes all databases but one.
func (s *Store) removeOthers(name string) error {
	fs, dir := s.options.FS, s.options.Dir
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, other := range names {
		if other != name && isDatabaseName(other) {
			if err := fs.RemoveAll(fs.PathJoin(dir, other)); err != nil {
				return err
			}
		}
	}
	return nil
}
