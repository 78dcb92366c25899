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

// written writes a table in blocks, each of which takes a while, and returns how long it
// has taken beyond that.
func written(t *testing.T, p *pacer, category vfs.DiskWriteCategory, blocks int, each time.Duration) time.Duration {
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

func TestOnlyCompactionsRestAndNotWhenTheDatabaseIsClosedOrHasFailed(t *testing.T) {
	const blocks, each = 100, store.PaceWork
	for name, c := range map[string]struct {
		category vfs.DiskWriteCategory
		change   func(*pacer)
		want     time.Duration
	}{
		"a compaction": {compactionWrites, func(*pacer) {}, blocks * store.PaceRest * each},
		"a flush":      {"pebble-memtable-flush", func(*pacer) {}, 0},
		"in haste":     {compactionWrites, func(p *pacer) { p.share = 0 }, 0},
		"closed":       {compactionWrites, func(p *pacer) { p.hurry(); p.hurry() }, 0},
		"failed":       {compactionWrites, func(p *pacer) { failed := make(chan struct{}); close(failed); p.failed = failed }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPacer(nil)
				c.change(p)
				if rested := written(t, p, c.category, blocks, each); rested != c.want {
					t.Errorf("rested for %v, not %v", rested, c.want)
				}
			})
		})
	}
}

func TestRestsGetShorterAsTablesPileUpAndEndBeforeWritesWouldWait(t *testing.T) {
	last := 1.0
	for tables := range l0StopWritesThreshold {
		share := restShareAt(tables)
		if share > last || share < 0 {
			t.Errorf("at %d tables %v, after %v", tables, share, last)
		}
		last = share
	}
	if from, until := restShareAt(paceFrom), restShareAt(paceUntil); from != 1 || until != 0 || paceUntil >= l0StopWritesThreshold {
		t.Errorf("%v at %d, %v at %d", from, paceFrom, until, paceUntil)
	}
}

// categoriesFS notes what files are created for.
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

func (fs *categoriesFS) created(category vfs.DiskWriteCategory) int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.seen[category]
}

func TestTheTablesThatACompactionWritesAreThosePaced(t *testing.T) {
	fs := &categoriesFS{FS: vfs.NewMem(), seen: make(map[vfs.DiskWriteCategory]int)}
	s := opened(t, fs)
	for _, value := range []string{"first", "second"} {
		if err := errors.Join(s.Write("write", 0, set("key", value)), s.Sync()); err != nil {
			t.Fatal(err)
		}
	}
	if n := fs.created(compactionWrites); n != 0 {
		t.Errorf("%d tables were compacted", n)
	}
	if err := s.inUse.Compact(t.Context(), []byte("a"), []byte("z"), false); err != nil {
		t.Fatal(err)
	}
	if fs.created(compactionWrites) == 0 {
		t.Error("what a compaction writes is called something else")
	}
}
