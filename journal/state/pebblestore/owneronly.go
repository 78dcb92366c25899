package pebblestore

import (
	"errors"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// OwnerOnly is the file system of the machine, on which only the owner of the process can
// read what is created. The database asks for files that everybody can read.
var OwnerOnly vfs.FS = ownerOnlyFS{vfs.Default}

type ownerOnlyFS struct{ vfs.FS }

// Unwrap implements vfs.FS.
func (fs ownerOnlyFS) Unwrap() vfs.FS { return fs.FS }

// Create implements vfs.FS. It removes a file that is there, so the mode is set afterwards;
// until then the mode of the directory protects it.
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
	if err := ensure(name); err != nil {
		return nil, err
	}
	return fs.FS.OpenReadWrite(name, category, options...)
}

// Lock implements vfs.FS.
func (fs ownerOnlyFS) Lock(name string) (io.Closer, error) {
	if err := ensure(name); err != nil {
		return nil, err
	}
	return fs.FS.Lock(name)
}

// ensure creates a file if it is not there. One that is there keeps what is in it.
func ensure(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}
