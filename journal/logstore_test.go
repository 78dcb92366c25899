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

// openedLogs is a log below Raft, as a journal opens it.
type openedLogs struct {
	*checkedLogs
	close func() error
}

func openLogs(dir string) (*openedLogs, error) { return openLogsWith(Config{Dir: dir}) }

func openLogsWith(c Config) (*openedLogs, error) {
	c.Node, c.Logger = "n1", slog.New(slog.DiscardHandler)
	c = c.withDefaults()
	stores, err := openStores(&c, &directory{}, raftLogger(c.Logger, true))
	if err != nil {
		return nil, err
	}
	d := newDisk(time.Hour, func(time.Duration) {}, func(time.Duration) {})
	logs, _, err := stores.checked(newFence(func(*FencedError) {}, func(*FencedError) {}), d, 1<<30)
	if err != nil {
		return nil, errors.Join(err, stores.close())
	}
	return &openedLogs{logs.checked, stores.close}, nil
}

func mustOpenLogs(t testing.TB, dir string) *openedLogs {
	t.Helper()
	l, err := openLogs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *openedLogs) mustClose(t testing.TB) {
	t.Helper()
	if err := l.close(); err != nil {
		t.Error(err)
	}
}

// entry is the entry of the tests with an index: its size differs, some have
// extensions.
func entry(index uint64) *raft.Log {
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

func entries(first, last uint64) []*raft.Log {
	var all []*raft.Log
	for i := first; i <= last; i++ {
		all = append(all, entry(i))
	}
	return all
}

// store stores entries, a few at a time.
func (l *openedLogs) mustStore(t testing.TB, first, last uint64) {
	t.Helper()
	for chunk := range slices.Chunk(entries(first, last), 3) {
		if err := l.StoreLogs(chunk); err != nil {
			t.Fatal(err)
		}
	}
}

// wantEntries checks that a log is exactly these entries.
func (l *openedLogs) wantEntries(t testing.TB, first, last uint64) {
	t.Helper()
	if err := l.sameEntries(first, last); err != nil {
		t.Error(err)
	}
}

func (l *openedLogs) sameEntries(first, last uint64) error {
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
		want := entry(i)
		if got.Index != want.Index || got.Term != want.Term || got.Type != want.Type || !got.AppendedAt.Equal(want.AppendedAt) ||
			!bytes.Equal(got.Data, want.Data) || !bytes.Equal(got.Extensions, want.Extensions) {
			return fmt.Errorf("entry %d differs", i)
		}
	}
	return nil
}

func TestLogStoreKeepsWhatItIsGiven(t *testing.T) {
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
	size := l.replayable
	reopen()
	l.wantEntries(t, 1, 60)
	if size == 0 || l.replayable != size {
		t.Errorf("%d bytes to replay, %d before", l.replayable, size)
	}
	remove(1, 20) // behind a snapshot
	l.wantEntries(t, 21, 60)
	remove(50, 60) // another leader knew better
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

func TestLogOpensAtEveryMomentOfItsGrowth(t *testing.T) {
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
			continue // a segment that is just being removed
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

// filesOf lists the files below a directory, those with content.
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
