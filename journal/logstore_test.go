package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// testLogs is a log store below Raft, as a journal opens it.
type testLogs struct {
	*checkedLogs
	close func() error
}

func openLogs(dir string) (*testLogs, error) { return openLogsWith(Config{Dir: dir}) }

func openLogsWith(c Config) (*testLogs, error) {
	c.Node, c.Logger = "n1", slog.New(slog.DiscardHandler)
	c = c.withDefaults()
	stores, err := openStores(&c, &directory{}, raftLogger(c.Logger, true))
	if err != nil {
		return nil, err
	}
	d := newDisk(time.Hour, func(time.Duration) {}, func(time.Duration) {})
	logs, _, err := stores.openChecked(newFailStop(func(*NodeFailedError) {}, func(*NodeFailedError) {}), d, 1<<30)
	if err != nil {
		return nil, errors.Join(err, stores.close())
	}
	return &testLogs{logs.checked, stores.close}, nil
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

// testEntry is the test entry at an index. Sizes vary, and some have extensions.
func testEntry(index uint64) *raft.Log {
	r := rand.New(rand.NewPCG(index, 7))
	log := &raft.Log{
		Index: index, Term: 1 + index/10, Type: raft.LogCommand,
		Data: make([]byte, r.IntN(3000)), AppendedAt: time.Unix(1700000000, int64(index)).UTC(),
	}
	for i := range log.Data {
		log.Data[i] = byte(r.Uint32())
	}
	if index%5 == 0 {
		log.Extensions = []byte("extension")
	}
	return log
}

func testEntries(first, last uint64) []*raft.Log {
	var all []*raft.Log
	for i := first; i <= last; i++ {
		all = append(all, testEntry(i))
	}
	return all
}

// mustStore stores entries, a few at a time.
func (l *testLogs) mustStore(t testing.TB, first, last uint64) {
	t.Helper()
	for chunk := range slices.Chunk(testEntries(first, last), 3) {
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
		want := testEntry(i)
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
	for _, name := range filesOf(t, dir) {
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

// filesOf lists the non-empty files below a directory.
func filesOf(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		names = append(names, strings.TrimPrefix(path, dir+string(filepath.Separator)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
