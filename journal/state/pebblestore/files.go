package pebblestore

import (
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// cutOff returns a file system that takes no writes once the store has failed:
// what goes on in a database that is broken must not reach the files.
func (s *Store) cutOff(fs vfs.FS) vfs.FS {
	cut := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return s.Err()
		}
		return nil
	}))
	return &unwindingFS{cut, s}
}

// unwindingFS ends the goroutine that cannot sync a directory, as Fatalf does:
// the database would panic, in whatever goroutine it is.
type unwindingFS struct {
	vfs.FS
	store *Store
}

// OpenDir implements vfs.FS.
func (fs *unwindingFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &unwindingDir{f, fs.store}, nil
}

type unwindingDir struct {
	vfs.File
	store *Store
}

// Sync implements vfs.File.
func (d *unwindingDir) Sync() error {
	if err := d.File.Sync(); err != nil {
		d.store.breakDown("sync a directory", err)
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
