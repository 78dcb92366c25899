package pebblestore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// A pacer has the compactions of a database rest between what they write. They rest less
// the more tables lie upon each other, and not at all before so many do that writes
// would have to wait, nor once the database is being closed. (RocksDB tunes the rate of
// its compactions by what they are behind.)
type pacer struct {
	failed  <-chan struct{}
	hurried chan struct{} // closed by hurry
	once    sync.Once
	db      atomic.Pointer[pebble.DB] // nil until it is open

	mu     sync.Mutex
	looked time.Time
	share  float64 // of a whole rest
}

const (
	// Up to so many tables upon each other a compaction, which begins with
	// l0CompactionThreshold/2, rests for as long as it may, and from so many on not at
	// all, as each has to be asked for every ID; and how often that is looked at.
	paceFrom  = l0CompactionThreshold/2 + 1
	paceUntil = l0CompactionThreshold
	paceEvery = 100 * time.Millisecond

	compactionWrites = "pebble-compaction" // what the database calls them
)

func newPacer(failed <-chan struct{}) *pacer {
	return &pacer{failed: failed, hurried: make(chan struct{}), share: 1}
}

// hurry ends all rests.
func (p *pacer) hurry() { p.once.Do(func() { close(p.hurried) }) }

// restShare returns for which part of a whole rest there is time.
func (p *pacer) restShare() float64 {
	db := p.db.Load()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); db != nil && now.Sub(p.looked) >= paceEvery {
		p.looked, p.share = now, restShareAt(int(db.Metrics().Levels[0].Sublevels))
	}
	return p.share
}

// restShareAt returns restShare when so many tables lie upon each other.
func restShareAt(tables int) float64 {
	return min(max(float64(paceUntil-tables)/(paceUntil-paceFrom), 0), 1)
}

// pacedFS paces what compactions write.
type pacedFS struct {
	vfs.FS
	pacer *pacer
}

// Create implements vfs.FS.
func (fs *pacedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	if err != nil || category != compactionWrites {
		return f, err
	}
	return &pacedFile{f, fs.pacer, store.StartPace()}, nil
}

// pacedFile is a table that a compaction writes, one block after the other.
type pacedFile struct {
	vfs.File
	pacer *pacer
	pace  store.Pace
}

// Write implements vfs.File.
func (f *pacedFile) Write(block []byte) (int, error) {
	n, err := f.File.Write(block)
	if err == nil {
		f.pace.Rest(f.pacer.restShare, f.pacer.hurried, f.pacer.failed)
	}
	return n, err
}
