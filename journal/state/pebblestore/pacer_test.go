package pebblestore

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// writeBlocks writes a table in blocks, each of which takes a while, and returns how much longer it
// took.
func writeBlocks(t *testing.T, p *compactionPacer, category vfs.DiskWriteCategory, blocks int, each time.Duration) time.Duration {
	t.Helper()
	f, err := (&pacedFS{vfs.NewMem(), p}).Create("table", category)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for range blocks {
		time.Sleep(each)
		if _, err := f.Write([]byte("block")); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(begin) - time.Duration(blocks)*each
}

func TestCompactionPacer_PausesOnlyCompactions(t *testing.T) {
	const blocks, each = 100, store.PacerWork
	for name, c := range map[string]struct {
		category vfs.DiskWriteCategory
		change   func(*compactionPacer)
		want     time.Duration
	}{
		"a compaction": {compactionCategory, func(*compactionPacer) {}, blocks * store.PacerPauseRatio * each},
		"a flush":      {"pebble-memtable-flush", func(*compactionPacer) {}, 0},
		"in haste":     {compactionCategory, func(p *compactionPacer) { p.share = 0 }, 0},
		"closed":       {compactionCategory, func(p *compactionPacer) { p.stopPausing(); p.stopPausing() }, 0},
		"failed":       {compactionCategory, func(p *compactionPacer) { failed := make(chan struct{}); close(failed); p.failed = failed }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newCompactionPacer(nil)
				c.change(p)
				if paused := writeBlocks(t, p, c.category, blocks, each); paused != c.want {
					t.Errorf("paused for %v, not %v", paused, c.want)
				}
			})
		})
	}
}

func TestCompactionPacer_PauseShrinksWithSublevels(t *testing.T) {
	last := 1.0
	for sublevels := range l0StopWritesThreshold {
		share := pauseShareAt(sublevels)
		if share > last || share < 0 {
			t.Errorf("at %d tables %v, after %v", sublevels, share, last)
		}
		last = share
	}
	if from, until := pauseShareAt(fullPauseSublevels), pauseShareAt(noPauseSublevels); from != 1 || until != 0 || noPauseSublevels >= l0StopWritesThreshold {
		t.Errorf("%v at %d, %v at %d", from, fullPauseSublevels, until, noPauseSublevels)
	}
}

// categoriesFS records the write categories of created files.
type categoriesFS struct {
	vfs.FS
	mu   sync.Mutex
	seen map[vfs.DiskWriteCategory]int
}

func (fs *categoriesFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	fs.mu.Lock()
	fs.seen[category]++
	fs.mu.Unlock()
	return fs.FS.Create(name, category)
}

func (fs *categoriesFS) count(category vfs.DiskWriteCategory) int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.seen[category]
}

func TestCompactionPacer_MatchesWriteCategory(t *testing.T) {
	fs := &categoriesFS{FS: vfs.NewMem(), seen: make(map[vfs.DiskWriteCategory]int)}
	s := openStore(t, fs)
	for _, value := range []string{"first", "second"} {
		if err := errors.Join(s.Write("write", 0, setKey("key", value)), s.Sync()); err != nil {
			t.Fatal(err)
		}
	}
	if n := fs.count(compactionCategory); n != 0 {
		t.Errorf("%d tables were compacted", n)
	}
	if err := s.db.Compact(t.Context(), []byte("a"), []byte("z"), false); err != nil {
		t.Fatal(err)
	}
	if fs.count(compactionCategory) == 0 {
		t.Error("compactions write with another category")
	}
}
