package pebblestore

import (
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// rejectWritesOnceFailed returns a file system that rejects writes after the store has failed, so
// that a broken database cannot change the files.
func (s *Store) rejectWritesOnceFailed(fs vfs.FS) vfs.FS {
	failingFS := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return s.Err()
		}
		return nil
	}))
	return &goexitFS{failingFS, s}
}

// goexitFS ends the goroutine that cannot sync a directory, as Fatalf does. Pebble would panic in
// that goroutine.
type goexitFS struct {
	vfs.FS
	store *Store
}

// OpenDir implements vfs.FS.
func (fs *goexitFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &goexitDir{f, fs.store}, nil
}

type goexitDir struct {
	vfs.File
	store *Store
}

// Sync implements vfs.File.
func (d *goexitDir) Sync() error {
	if err := d.File.Sync(); err != nil {
		d.store.failAndExit("sync a directory", err)
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

// writeSynced writes a file atomically and syncs it.
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

// parent returns the directory that contains dir.
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
