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

// rawLogs is a log store as its library returns it: not verified.
type rawLogs struct {
	raft.LogStore
	path       string
	closeStore func() error

	once     sync.Once
	panicked chan struct{} // closed when the store has panicked
}

func newRawLogs(store raft.LogStore, path string, closeStore func() error) *rawLogs {
	return &rawLogs{LogStore: store, path: path, closeStore: closeStore, panicked: make(chan struct{})}
}

// close closes the store. A store that has panicked stays open until the process ends: closing it
// might wait for a lock forever.
func (r *rawLogs) close() error {
	select {
	case <-r.panicked:
		return nil
	default:
		return r.call(r.closeStore)
	}
}

// call calls f, which calls the store, in a separate goroutine. It returns when f has returned, or
// when this or another call has panicked. A store that has panicked is not called again, and calls
// in progress are abandoned, because they may wait forever for its locks. So f must not access what
// its caller uses after an error.
func (r *rawLogs) call(f func() error) error {
	select {
	case <-r.panicked:
		return r.panickedError()
	default:
	}
	result := make(chan error, 1)
	go func() {
		result <- recoverPanics(r.path, func() { r.once.Do(func() { close(r.panicked) }) }, f)
	}()
	select {
	case err := <-result:
		return err
	case <-r.panicked:
		return r.panickedError()
	}
}

func (r *rawLogs) panickedError() error {
	return &DamagedError{Path: r.path, Reason: "the log store has panicked"}
}

// openLogStore opens or creates the log and the stable file in c.Dir, which is d, and records the
// creation in d. Both are on disk before the record, and the record is on disk before the node
// votes or acknowledges anything. So a recorded file that is missing was lost. The stable file is
// created last. So if it is missing and the log has entries, it was lost, even without a record.
func (d *directory) openLogStore(c *Config) (*rawLogs, *stableFile, error) {
	path := filepath.Join(c.Dir, logFile)
	stable, err := openStableFile(c.Dir)
	fresh := errors.Is(err, os.ErrNotExist)
	if err != nil && !fresh {
		return nil, nil, err
	}
	if err := d.checkLogExists(path, fresh); err != nil {
		if stable != nil {
			err = errors.Join(err, stable.close())
		}
		return nil, nil, err
	}
	var raw *rawLogs
	err = recoverPanics(path, func() {}, func() (err error) {
		raw, err = openBolt(path, c.tests.noSync)
		return err
	})
	if err == nil && fresh {
		stable, err = createStableIfLogEmpty(c, raw)
	}
	if err == nil && d.created&createdLog == 0 {
		if err = syncDir(vfs.Default, c.Dir); err == nil {
			err = d.recordCreated(createdLog)
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

// checkLogExists returns a *DamagedError if the log or the stable file must exist and does not.
func (d *directory) checkLogExists(log string, noStable bool) error {
	if _, err := os.Stat(log); errors.Is(err, os.ErrNotExist) && (!noStable || d.created&createdLog != 0) {
		return &DamagedError{Path: log, Reason: missingReason}
	}
	if noStable && d.created&createdLog != 0 {
		return &DamagedError{Path: filepath.Join(d.path, stableFileName), Reason: missingReason}
	}
	return nil
}

func createStableIfLogEmpty(c *Config, raw *rawLogs) (*stableFile, error) {
	last, err := raw.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	if last > 0 {
		return nil, &DamagedError{Path: filepath.Join(c.Dir, stableFileName), Reason: missingReason}
	}
	return createStableFile(c.Dir)
}

// recoverPanics calls f, which calls into a log store, and onPanic if f panics. A store follows
// pointers on disk. Damage makes it panic or access memory that is not mapped. SetPanicOnFault
// turns such an access into a panic; otherwise it would end the process.
func recoverPanics(path string, onPanic func(), f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			onPanic()
			err = &DamagedError{Path: path, Reason: fmt.Sprint("the log store panicked: ", r)}
		}
	}()
	return f()
}
