package pebblestore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// compactionPacer pauses the compactions of a database between their writes. The more sublevels
// level 0 has, the shorter the pauses. They end long before writes would have to wait, and when the
// database is being closed. (RocksDB similarly tunes the rate of its compactions by their backlog.)
type compactionPacer struct {
	failed  <-chan struct{}
	stopped chan struct{} // closed by stopPausing
	once    sync.Once
	db      atomic.Pointer[pebble.DB] // nil until it is open

	mu      sync.Mutex
	checked time.Time
	share   float64 // of a full pause
}

const (
	// Compactions begin at l0CompactionThreshold/2 sublevels. They take full pauses up to
	// fullPauseSublevels, and none from noPauseSublevels on, because a lookup must check each
	// sublevel. The number of sublevels is read every sublevelCheckInterval.
	fullPauseSublevels    = l0CompactionThreshold/2 + 1
	noPauseSublevels      = l0CompactionThreshold
	sublevelCheckInterval = 100 * time.Millisecond

	compactionCategory = "pebble-compaction" // Pebble's write category for compactions
)

func newCompactionPacer(failed <-chan struct{}) *compactionPacer {
	return &compactionPacer{failed: failed, stopped: make(chan struct{}), share: 1}
}

// stopPausing ends all pauses.
func (p *compactionPacer) stopPausing() { p.once.Do(func() { close(p.stopped) }) }

// pauseShare returns the share of a full pause that compactions may take, from 0 to 1.
func (p *compactionPacer) pauseShare() float64 {
	db := p.db.Load()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); db != nil && now.Sub(p.checked) >= sublevelCheckInterval {
		p.checked, p.share = now, pauseShareAt(int(db.Metrics().Levels[0].Sublevels))
	}
	return p.share
}

// pauseShareAt returns pauseShare for a number of sublevels in level 0.
func pauseShareAt(sublevels int) float64 {
	return min(max(float64(noPauseSublevels-sublevels)/(noPauseSublevels-fullPauseSublevels), 0), 1)
}

// pacedFS paces what compactions write.
type pacedFS struct {
	vfs.FS
	pacer *compactionPacer
}

// Create implements vfs.FS.
func (fs *pacedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	if err != nil || category != compactionCategory {
		return f, err
	}
	return &pacedFile{f, fs.pacer, store.StartPacer()}, nil
}

// pacedFile is a table that a compaction writes block by block.
type pacedFile struct {
	vfs.File
	compaction *compactionPacer
	pacer      store.Pacer
}

// Write implements vfs.File.
func (f *pacedFile) Write(block []byte) (int, error) {
	n, err := f.File.Write(block)
	if err == nil {
		f.pacer.Pause(f.compaction.pauseShare, f.compaction.stopped, f.compaction.failed)
	}
	return n, err
}
