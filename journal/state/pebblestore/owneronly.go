package pebblestore

import (
	"errors"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// OwnerOnly is the operating system's file system, with new files readable by the process owner
// only. Pebble itself creates files that everyone can read.
var OwnerOnly vfs.FS = ownerOnlyFS{vfs.Default}

type ownerOnlyFS struct{ vfs.FS }

// Unwrap implements vfs.FS.
func (fs ownerOnlyFS) Unwrap() vfs.FS { return fs.FS }

// Create implements vfs.FS. The mode is set after the creation, because Create replaces an existing
// file. Until then the mode of the directory protects the file.
func (fs ownerOnlyFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, 0o600); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenReadWrite implements vfs.FS.
func (fs ownerOnlyFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, options ...vfs.OpenOption) (vfs.File, error) {
	if err := createIfMissing(name); err != nil {
		return nil, err
	}
	return fs.FS.OpenReadWrite(name, category, options...)
}

// Lock implements vfs.FS.
func (fs ownerOnlyFS) Lock(name string) (io.Closer, error) {
	if err := createIfMissing(name); err != nil {
		return nil, err
	}
	return fs.FS.Lock(name)
}

// createIfMissing creates a file unless it exists, and keeps the contents of one that does.
func createIfMissing(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}
