package pebblestore

import (
	"errors"
	"runtime"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// openDatabase opens the database in a directory that is not in use.
func (s *Store) openDatabase(name string) (*database, error) {
	pacer := newCompactionPacer(s.failure.failed)
	fs := vfs.FS(&pacedFS{s.rejectWritesOnceFailed(s.options.FS), pacer})
	path := fs.PathJoin(s.options.Dir, name)
	if err := errors.Join(s.options.FS.MkdirAll(path, 0o700), syncDir(s.options.FS, s.options.Dir)); err != nil {
		return nil, s.Fail("open", err)
	}
	lock, err := pebble.LockDirectory(path, fs)
	if err != nil {
		return nil, s.Fail("open", err)
	}
	opened := make(chan *pebble.DB, 1)
	err = s.runGuarded("open", func() error {
		o, scheduler := s.pebbleOptions(fs, lock), newCompactionScheduler()
		o.Experimental.CompactionScheduler = scheduler
		db, err := pebble.Open(path, o)
		if err != nil {
			return markCorrupt(err)
		}
		pacer.db.Store(db)
		scheduler.enable()
		opened <- db
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &database{DB: <-opened, name: name, number: s.databaseCount.Add(1), lock: lock, pacer: pacer}, nil
}

const (
	memTableBytes = 8 << 20
	// Compactions start at half of l0CompactionThreshold sublevels in level 0. Writes wait at
	// l0StopWritesThreshold sublevels.
	l0CompactionThreshold = 12
	l0StopWritesThreshold = 32
)

// pebbleOptions returns the options. Pebble takes its memtables and large batches from the cache
// size. The cache must not become empty during a flush, or each lookup would read a filter from
// disk.
func (s *Store) pebbleOptions(fs vfs.FS, lock *pebble.Lock) *pebble.Options {
	o := &pebble.Options{
		FS: fs, Lock: lock, Logger: pebbleLogger{s},
		DisableWAL:                  true,
		CacheSize:                   int64(s.options.CacheBytes + s.options.WriteBytes + 2*memTableBytes),
		FormatMajorVersion:          pebble.FormatTableFormatV6,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: 8,
		L0CompactionThreshold:       l0CompactionThreshold,
		L0StopWritesThreshold:       l0StopWritesThreshold,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                1000,
		EventListener: &pebble.EventListener{
			BackgroundError: s.backgroundError,
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				_ = s.Fail("read "+i.Path, errors.Join(store.ErrCorrupt, i.Details))
			},
			DiskSlow: func(i pebble.DiskSlowInfo) {
				s.options.Logger.Warn("slow disk", "path", i.Path, "duration", i.Duration)
			},
		},
	}
	o.CompactionConcurrencyRange = func() (lower, upper int) { return 1, max(1, runtime.GOMAXPROCS(0)/2) }
	o.Experimental.SpanPolicyFunc = splitByKind
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = 8 << 20 << min(i, 2)
	}
	return o
}

// splitByKind makes each table hold keys of one kind only. Histories are written in key order, so
// Pebble moves a table of histories to lower levels without rewriting it. A single header in the
// table would force a rewrite.
func splitByKind(from []byte) (policy pebble.SpanPolicy, end []byte, err error) {
	if len(from) > 0 {
		end = []byte{from[0] + 1}
	}
	return policy, end, nil
}
