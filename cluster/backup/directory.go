package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// A Directory is a [Sink] that stores each backup as a file. The directory is created when a backup
// is stored. It should be on another disk than those of the nodes, and on one that all nodes reach.
type Directory string

const (
	// partialSuffix ends the name of a file that is being written.
	partialSuffix = ".partial"
	// partialAgeMax is how old a file with that suffix must be to be taken for one that a crash
	// left.
	partialAgeMax = 24 * time.Hour
)

// Put implements [Sink]. It writes a file with another name, syncs it, and renames it. Files that a
// crash has left are removed after a day.
func (d Directory) Put(ctx context.Context, name string, content io.Reader) (err error) {
	path, err := d.path(name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return errors.Join(invalid("name", fmt.Sprintf("is %s, which exists", name)), err)
	}
	d.removePartial()
	file, err := os.CreateTemp(string(d), name+".*"+partialSuffix)
	if err != nil {
		return err
	}
	written := file.Name()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(written))
		}
	}()
	err = writeSteadily(file, &contextReader{ctx, content})
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(written, path); err != nil {
		return err
	}
	written = path
	return syncDirectory(string(d))
}

// writeBytes is how much is written at once, and how much is on its way to the disk at a time.
const writeBytes = 4 << 20

// writeSteadily writes content to a new file. The disk begins to write at once: otherwise the
// system would keep gigabytes in memory until the sync at the end, behind which the nodes' syncs
// would wait if they use the same disk.
func writeSteadily(to *os.File, content io.Reader) error {
	buffer := make([]byte, writeBytes)
	for offset := int64(0); ; offset += writeBytes {
		n, isEnd, err := fill(buffer, content)
		if err != nil {
			return err
		}
		if _, err := to.Write(buffer[:n]); err != nil || isEnd {
			return err
		}
		writeBack(to, offset, writeBytes)
	}
}

// fill reads until a buffer is full or content ends. Only io.EOF itself is the end: an error that
// wraps it, or io.ErrUnexpectedEOF, is one of content, which is then not complete.
func fill(buffer []byte, content io.Reader) (n int, isEnd bool, err error) {
	for n < len(buffer) {
		read, err := content.Read(buffer[n:])
		if n += read; err == io.EOF {
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}

// syncDirectory syncs the names in a directory, which is not possible on Windows: NTFS keeps names
// in its own journal.
func syncDirectory(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Open implements [Sink].
func (d Directory) Open(_ context.Context, name string) (io.ReadCloser, error) {
	path, err := d.path(name)
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}

// List implements [Sink].
func (d Directory) List(ctx context.Context) (map[string]int64, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	sizes := make(map[string]int64)
	for _, entry := range entries {
		info, infoErr := entry.Info()
		if infoErr != nil || !info.Mode().IsRegular() || strings.HasSuffix(entry.Name(), partialSuffix) || !isName(entry.Name()) {
			continue // removed meanwhile, or no backup
		}
		sizes[entry.Name()] = info.Size()
	}
	return sizes, errors.Join(err, ctx.Err())
}

// Remove implements [Sink].
func (d Directory) Remove(_ context.Context, name string) error {
	path, err := d.path(name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// path returns the path of a backup, which cannot lead outside of the directory.
func (d Directory) path(name string) (string, error) {
	if !isName(name) || strings.HasSuffix(name, partialSuffix) {
		return "", invalid("name", fmt.Sprintf("is %.100q", name))
	}
	return filepath.Join(string(d), name), nil
}

// removePartial removes files that a crash has left.
func (d Directory) removePartial() {
	entries, _ := os.ReadDir(string(d))
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && strings.HasSuffix(entry.Name(), partialSuffix) && time.Since(info.ModTime()) > partialAgeMax {
			_ = os.Remove(filepath.Join(string(d), entry.Name())) // the next call tries again
		}
	}
}

// A contextReader returns the error of a context that has ended.
type contextReader struct {
	ctx  context.Context
	from io.Reader
}

// Read implements io.Reader.
func (r *contextReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(b)
}
