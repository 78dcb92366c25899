package raftlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// If a log file is truncated or overwritten while it is open and mapped, readers and writers get an
// error. They read what was written or nothing, and the process continues.
func TestLog_CorruptedWhileOpenReturnsError(t *testing.T) {
	overwrite := func(f *os.File, fill func(b []byte)) error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		b := make([]byte, info.Size())
		if _, err = f.ReadAt(b, 0); err != nil {
			return err
		}
		fill(b)
		_, err = f.WriteAt(b, 0)
		return err
	}
	r := rand.New(rand.NewPCG(4, 2))
	random := func(b []byte) {
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	}
	pages := func(fill func(b []byte)) func(f *os.File) error {
		return func(f *os.File) error { return overwrite(f, func(b []byte) { fill(b[min(8192, len(b)):]) }) }
	}
	for name, rot := range map[string]func(f *os.File) error{
		"cut to nothing":          func(f *os.File) error { return f.Truncate(0) },
		"cut to a page":           func(f *os.File) error { return f.Truncate(4096) },
		"cut to its head":         func(f *os.File) error { return f.Truncate(8192) },
		"cut in the middle":       func(f *os.File) error { return f.Truncate(40 << 10) },
		"zeroed":                  func(f *os.File) error { return overwrite(f, func(b []byte) { clear(b) }) },
		"zeroed behind its head":  pages(func(b []byte) { clear(b) }),
		"random":                  func(f *os.File) error { return overwrite(f, random) },
		"random behind its head":  pages(random),
		"ones behind its head":    pages(func(b []byte) { fillWith(b, 0xff) }),
		"the heads of its pages":  pages(func(b []byte) { forEachPage(b, func(p []byte) { random(p[:16]) }) }),
		"the bodies of its pages": pages(func(b []byte) { forEachPage(b, func(p []byte) { random(p[16:]) }) }),
		"its pages exchanged":     pages(swapPages),
	} {
		t.Run(name, func(t *testing.T) {
			for _, use := range []func(l *testLogs) error{readAll, storeMore, deleteFirst, deleteLast} {
				// What is left of a failed store may continue to write while the directory is
				// removed.
				dir, err := os.MkdirTemp("", "rot")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.RemoveAll(dir) })
				l := mustOpenLogs(t, dir)
				l.mustStore(t, 1, 60)
				for _, name := range logFiles(t, l.path) {
					f, err := os.OpenFile(name, os.O_RDWR, 0)
					if err == nil {
						err = errors.Join(rot(f), f.Close())
					}
					if err != nil && !errors.Is(err, os.ErrNotExist) { // the next segment is being created
						t.Fatal(err)
					}
				}
				rotted := make(chan error, 2)
				go func() {
					rotted <- use(l)
					rotted <- readAll(l)
					_ = l.close() // it may fail
					close(rotted)
				}()
				for range 3 {
					if err := waittest.Receive(t, "the store returns", rotted); err != nil {
						wantDefiniteError(t, name, err)
					}
				}
			}
		})
	}
}

// readAll reads every entry, and returns the last error.
func readAll(l *testLogs) (err error) {
	last, _ := l.LastIndex()
	for i := uint64(1); i <= last; i++ {
		var log raft.Log
		switch failed := l.GetLog(i, &log); {
		case errors.Is(failed, raft.ErrLogNotFound): // it was deleted
		case failed != nil:
			err = failed
		case string(log.Data) != string(raftlogtest.Entry(i).Data) || log.Term != raftlogtest.Entry(i).Term:
			return fmt.Errorf("entry %d differs", i)
		}
	}
	return err
}

func storeMore(l *testLogs) error {
	for i := uint64(61); i <= 70; i++ {
		if err := l.StoreLog(raftlogtest.Entry(i)); err != nil {
			return err
		}
	}
	return nil
}

func deleteFirst(l *testLogs) error { return l.DeleteRange(1, 30) }
func deleteLast(l *testLogs) error  { return l.DeleteRange(31, 60) }

func fillWith(b []byte, value byte) {
	for i := range b {
		b[i] = value
	}
}

func forEachPage(b []byte, f func(page []byte)) {
	for ; len(b) >= 4096; b = b[4096:] {
		f(b[:4096])
	}
}

func swapPages(b []byte) {
	for i := 0; i+8192 <= len(b); i += 8192 {
		page := append([]byte(nil), b[i:i+4096]...)
		copy(b[i:], b[i+4096:i+8192])
		copy(b[i+4096:], page)
	}
}

// logFiles are the files in which a log store keeps its entries.
func logFiles(t testing.TB, path string) []string {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !info.IsDir() {
		return []string{path}
	}
	var files []string
	for _, name := range raftlogtest.FilesOf(t, path) {
		files = append(files, path+"/"+name)
	}
	return files
}
