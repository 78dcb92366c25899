package pebblestore

import (
	"errors"
	"runtime"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// openDatabase opens a database in a directory that nobody else uses.
func (s *Store) openDatabase(name string) (*database, error) {
	pacer := newPacer(s.failure.failed)
	fs := vfs.FS(&pacedFS{s.cutOff(s.options.FS), pacer})
	path := fs.PathJoin(s.options.Dir, name)
	if err := errors.Join(s.options.FS.MkdirAll(path, 0o700), syncDir(s.options.FS, s.options.Dir)); err != nil {
		return nil, s.Fail("open", err)
	}
	lock, err := pebble.LockDirectory(path, fs)
	if err != nil {
		return nil, s.Fail("open", err)
	}
	opened := make(chan *pebble.DB, 1)
	err = s.guarded("open", func() error {
		o, gate := s.pebbleOptions(fs, lock), newCompactionGate()
		o.Experimental.CompactionScheduler = gate
		db, err := pebble.Open(path, o)
		if err != nil {
			return damage(err)
		}
		pacer.db.Store(db)
		gate.open()
		opened <- db
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &database{DB: <-opened, name: name, number: s.databases.Add(1), lock: lock, pacer: pacer}, nil
}

const (
	memTableBytes = 8 << 20
	// So many of the newest tables upon each other are twice as many as have them
	// compacted, and so many have writes wait until they are.
	l0CompactionThreshold = 12
	l0StopWritesThreshold = 32
)

// pebbleOptions has what was measured; see DESIGN.md. The database takes what its
// memtables and its large batches weigh off the cache, which must not be empty for
// as long as a flush lasts: each lookup would read a filter from disk.
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

// splitByKind ends a table where the keys of another kind begin: one that holds
// nothing but histories, which are written in order of their keys, is moved down
// the levels, and one that holds a single header among them is written again.
func splitByKind(from []byte) (policy pebble.SpanPolicy, end []byte, err error) {
	if len(from) > 0 {
		end = []byte{from[0] + 1}
	}
	return policy, end, nil
}
