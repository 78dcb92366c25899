package diskfile

import (
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// WriteAtomic writes a file completely or not at all.
func WriteAtomic(dir, name string, content []byte) (err error) {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return SyncDir(vfs.Default, dir)
}

// Write writes a file and syncs it, but not the directory.
func Write(files vfs.FS, path string, content []byte) error {
	f, err := files.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// Read returns the content of a file.
func Read(files vfs.FS, path string) (content []byte, err error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(f)
}

// Checksum returns the size and the CRC-32C of a file.
func Checksum(files vfs.FS, path string) (size int64, sum uint32, err error) {
	f, err := files.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := crc32.New(castagnoli)
	size, err = io.Copy(h, f)
	return size, h.Sum32(), err
}

// SyncDir syncs the names in a directory. On Windows it does nothing, because programs cannot sync
// a directory there: NTFS keeps names in its own journal.
func SyncDir(files vfs.FS, dir string) error {
	d, err := files.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
