package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

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

// openLogStore opens the log and the stable file in c.Dir, which is d, or creates them there
// and has d note that. Both are on disk before it is noted, and it is noted before the node
// takes part in anything: where it is noted and they are gone, they were lost. Before that,
// the stable file is created last, so a log that has entries and no stable file has lost it.
func (d *directory) openLogStore(c *Config) (*rawLogs, *stableFile, error) {
	path := filepath.Join(c.Dir, logFile)
	stable, err := openStableFile(c.Dir)
	fresh := errors.Is(err, os.ErrNotExist)
	if err != nil && !fresh {
		return nil, nil, err
	}
	if err := d.checkLost(path, fresh); err != nil {
		if stable != nil {
			err = errors.Join(err, stable.close())
		}
		return nil, nil, err
	}
	var raw *rawLogs
	err = guarded(path, func() {}, func() (err error) {
		raw, err = openBolt(path, c.tests.noSync)
		return err
	})
	if err == nil && fresh {
		stable, err = createStable(c, raw)
	}
	if err == nil && d.noted&notedLog == 0 {
		if err = syncDir(vfs.Default, c.Dir); err == nil {
			err = d.note(notedLog)
		}
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

// checkLost returns a *DamagedError if the log, or the stable file, must be there and is not.
func (d *directory) checkLost(log string, noStable bool) error {
	if _, err := os.Stat(log); errors.Is(err, os.ErrNotExist) && (!noStable || d.noted&notedLog != 0) {
		return &DamagedError{Path: log, Reason: goneReason}
	}
	if noStable && d.noted&notedLog != 0 {
		return &DamagedError{Path: filepath.Join(d.path, stableFileName), Reason: goneReason}
	}
	return nil
}

func createStable(c *Config, raw *rawLogs) (*stableFile, error) {
	last, err := raw.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	if last > 0 {
		return nil, &DamagedError{Path: filepath.Join(c.Dir, stableFileName), Reason: goneReason}
	}
	return createStableFile(c.Dir)
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
