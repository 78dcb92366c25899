package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// LogStore names the store that keeps Raft's log on disk. All guarantees of this
// package hold with either; a directory stays with the one it began with.
type LogStore string

const (
	// LogStoreBolt is one bbolt file, "raft.db", that is written in place. The
	// default. It never shrinks, and it writes and syncs twice for each entry.
	LogStoreBolt LogStore = "bolt"
	// LogStoreWAL is a write-ahead log of segments of 64 MiB each, in "wal". It
	// writes and syncs once for each entry and gives space back when the log is
	// truncated, but takes a whole segment from the start: two at least.
	LogStoreWAL LogStore = "wal"
)

// logStores are the kinds with their numbers in the stable file and the files
// that they keep in the journal's directory.
var logStores = []struct {
	kind   LogStore
	number byte
	file   string
}{
	{LogStoreBolt, 1, logFile},
	{LogStoreWAL, 2, walDir},
}

func (s LogStore) number() byte {
	for _, k := range logStores {
		if k.kind == s {
			return k.number
		}
	}
	return 0
}

func (s LogStore) file() string {
	for _, k := range logStores {
		if k.kind == s {
			return k.file
		}
	}
	return ""
}

// logStoreNumbered returns the kind with a number, empty if there is none.
func logStoreNumbered(n byte) LogStore {
	for _, k := range logStores {
		if k.number == n {
			return k.kind
		}
	}
	return ""
}

// rawLogs is a log store as its library hands it out: not checked.
type rawLogs struct {
	raft.LogStore
	path      string
	closeThis func() error

	once   sync.Once
	gaveUp chan struct{} // closed when the store has panicked
}

func newRawLogs(store raft.LogStore, path string, closeThis func() error) *rawLogs {
	return &rawLogs{LogStore: store, path: path, closeThis: closeThis, gaveUp: make(chan struct{})}
}

// close closes the store. One that has panicked stays open until the process
// ends: it may hold a lock for which closing it would wait.
func (r *rawLogs) close() error {
	select {
	case <-r.gaveUp:
		return nil
	default:
		return r.guarded(r.closeThis)
	}
}

// guarded calls into the store, in a goroutine of its own, and returns when that
// has ended or the store has panicked anywhere. A store that has panicked is not
// called again, and who is in it is left there: it may hold the locks for which
// they wait, and they would wait for ever. So f must not touch what its caller
// goes on to use after an error.
func (r *rawLogs) guarded(f func() error) error {
	select {
	case <-r.gaveUp:
		return r.givenUp()
	default:
	}
	result := make(chan error, 1)
	go func() {
		result <- guarded(r.path, func() { r.once.Do(func() { close(r.gaveUp) }) }, f)
	}()
	select {
	case err := <-result:
		return err
	case <-r.gaveUp:
		return r.givenUp()
	}
}

func (r *rawLogs) givenUp() error {
	return &DamagedError{Path: r.path, Reason: "the store has given up"}
}

// openLogStore opens the log and the stable file in dir, or creates them there.
// The stable file is created last, so a log that has entries and no stable file
// has lost it.
func openLogStore(c *Config, logger hclog.Logger) (*rawLogs, *stableFile, error) {
	path := filepath.Join(c.Dir, c.LogStore.file())
	stable, err := openStableFile(c.Dir)
	fresh := errors.Is(err, os.ErrNotExist)
	if err != nil && !fresh {
		return nil, nil, err
	}
	if err := checkKind(c, stable); err != nil {
		return nil, nil, err
	}
	if !fresh {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil, nil, errors.Join(&DamagedError{Path: path, Reason: "it is gone"}, stable.close())
		}
	}
	var raw *rawLogs
	err = guarded(path, func() {}, func() (err error) {
		raw, err = openRaw(c, path, stable, logger)
		return err
	})
	if err == nil && fresh {
		stable, err = createStable(c, raw)
	}
	if err != nil {
		if raw != nil {
			err = errors.Join(err, raw.close())
		}
		if stable != nil {
			err = errors.Join(err, stable.close())
		}
		return nil, nil, err
	}
	return raw, stable, nil
}

// checkKind refuses a directory whose log is in another kind of store.
func checkKind(c *Config, stable *stableFile) error {
	if stable != nil && stable.kind != c.LogStore {
		return errors.Join(&LogStoreError{Dir: c.Dir, Want: c.LogStore, Have: stable.kind}, stable.close())
	}
	if stable != nil {
		return nil
	}
	for _, other := range logStores {
		if _, err := os.Stat(filepath.Join(c.Dir, other.file)); err == nil && other.kind != c.LogStore {
			return &LogStoreError{Dir: c.Dir, Want: c.LogStore, Have: other.kind}
		}
	}
	return nil
}

// openRaw opens a log, or creates it if there is no stable file.
func openRaw(c *Config, path string, stable *stableFile, logger hclog.Logger) (*rawLogs, error) {
	if c.LogStore == LogStoreWAL {
		synced := func() uint64 { return 0 }
		if stable != nil {
			synced = func() uint64 { return stable.marked().index }
		}
		return openWAL(path, stable == nil, synced, c.tests.segmentBytes, logger)
	}
	return openBolt(path, c.tests.noSync)
}

func createStable(c *Config, raw *rawLogs) (*stableFile, error) {
	last, err := raw.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	if last > 0 {
		return nil, &DamagedError{Path: filepath.Join(c.Dir, stableFileName), Reason: "it is gone"}
	}
	return createStableFile(c.Dir, c.LogStore)
}

// guarded calls into a log store, and gaveUp if that panics. The stores follow what
// is on disk: where it is damaged they panic, or touch a page of a mapped file that
// is not there, which ends the process unless it is asked for as a panic.
func guarded(path string, gaveUp func(), f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			gaveUp()
			err = &DamagedError{Path: path, Reason: fmt.Sprint("the store gave up: ", r)}
		}
	}()
	return f()
}
