package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
)

// testLogs is a log store below Raft, as a journal opens it.
type testLogs struct {
	*Checked
	close func() error
}

func openLogs(dir string) (*testLogs, error) {
	return openLogsWith(dir, func(*Raw, *StableFile) {})
}

// openLogsWith opens the log of a directory after wrap has inserted faults.
func openLogsWith(dir string, wrap func(*Raw, *StableFile)) (*testLogs, error) {
	raw, stable, err := OpenFiles(dir, false, false)
	if err != nil {
		return nil, err
	}
	wrap(raw, stable)
	closeFiles := func() error { return errors.Join(raw.Close(), stable.Close()) }
	d := NewDisk(time.Hour, func(uint64) {}, func(time.Duration) {}, func(time.Duration) {})
	logs, _, err := Open(raw, stable, &testFailStop{}, d, 1<<30)
	if err != nil {
		return nil, errors.Join(err, closeFiles())
	}
	return &testLogs{logs.Checked, closeFiles}, nil
}

// testFailStop is a FailStop that only keeps the failure.
type testFailStop struct {
	cause atomic.Pointer[failure]
}

// failure is the error after a testFailStop has failed.
type failure struct{ cause error }

func (f *failure) Error() string { return "failed: " + f.cause.Error() }
func (f *failure) Unwrap() error { return f.cause }

func (f *testFailStop) Fail(cause error) error {
	f.cause.CompareAndSwap(nil, &failure{cause})
	return f.cause.Load()
}

func (f *testFailStop) Err() error {
	if failed := f.cause.Load(); failed != nil {
		return failed
	}
	return nil
}

func mustOpenLogs(t testing.TB, dir string) *testLogs {
	t.Helper()
	l, err := openLogs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *testLogs) mustClose(t testing.TB) {
	t.Helper()
	if err := l.close(); err != nil {
		t.Error(err)
	}
}

// mustStore stores entries, a few at a time.
func (l *testLogs) mustStore(t testing.TB, first, last uint64) {
	t.Helper()
	for chunk := range slices.Chunk(raftlogtest.Entries(first, last), 3) {
		if err := l.StoreLogs(chunk); err != nil {
			t.Fatal(err)
		}
	}
}

// wantEntries checks that a log holds exactly these entries.
func (l *testLogs) wantEntries(t testing.TB, first, last uint64) {
	t.Helper()
	if err := l.compareEntries(first, last); err != nil {
		t.Error(err)
	}
}

func (l *testLogs) compareEntries(first, last uint64) error {
	gotFirst, err1 := l.FirstIndex()
	gotLast, err2 := l.LastIndex()
	if err := errors.Join(err1, err2); err != nil || gotFirst != first || gotLast != last {
		return fmt.Errorf("entries %d to %d, want %d to %d: %w", gotFirst, gotLast, first, last, err)
	}
	for i := first; i <= last && i > 0; i++ {
		var got raft.Log
		if err := l.GetLog(i, &got); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		want := raftlogtest.Entry(i)
		if got.Index != want.Index || got.Term != want.Term || got.Type != want.Type || !got.AppendedAt.Equal(want.AppendedAt) ||
			!bytes.Equal(got.Data, want.Data) || !bytes.Equal(got.Extensions, want.Extensions) {
			return fmt.Errorf("entry %d differs", i)
		}
	}
	return nil
}

func TestLogStore_ReadsBackEntries(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	reopen := func() {
		l.mustClose(t)
		l = mustOpenLogs(t, dir)
	}
	remove := func(first, last uint64) {
		t.Helper()
		if err := l.DeleteRange(first, last); err != nil {
			t.Fatal(err)
		}
	}
	l.wantEntries(t, 0, 0)
	l.mustStore(t, 1, 60)
	l.wantEntries(t, 1, 60)
	size := l.bytesSinceSnapshot
	reopen()
	l.wantEntries(t, 1, 60)
	if size == 0 || l.bytesSinceSnapshot != size {
		t.Errorf("%d bytes to replay, %d before", l.bytesSinceSnapshot, size)
	}
	remove(1, 20) // covered by a snapshot
	l.wantEntries(t, 21, 60)
	remove(50, 60) // overwritten by another leader
	l.wantEntries(t, 21, 49)
	reopen()
	l.wantEntries(t, 21, 49)
	l.mustStore(t, 50, 70)
	reopen()
	l.wantEntries(t, 21, 70)
	l.mustStore(t, 1000, 1010) // a snapshot has replaced what was there
	l.wantEntries(t, 1000, 1010)
	reopen()
	l.wantEntries(t, 1000, 1010)
	remove(1000, 1010)
	reopen()
	l.wantEntries(t, 0, 0)
	l.mustStore(t, 2000, 2010)
	reopen()
	l.wantEntries(t, 2000, 2010)
	l.mustClose(t)
}

func TestLogStore_OpensCopyTakenDuringWrites(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	for i := uint64(1); i <= 40; i++ {
		l.mustStore(t, i, i)
		// As a kill at this moment would leave it.
		then := copyDir(t, dir)
		again := mustOpenLogs(t, then)
		again.wantEntries(t, 1, i)
		again.mustStore(t, i+1, i+3)
		again.mustClose(t)
		os.RemoveAll(then)
	}
	l.mustClose(t)
}

// copyDir copies a directory's files to a new one.
func copyDir(t testing.TB, dir string) string {
	t.Helper()
	to, err := os.MkdirTemp(t.TempDir(), "copy")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range raftlogtest.FilesOf(t, dir) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a segment that is being removed
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}
