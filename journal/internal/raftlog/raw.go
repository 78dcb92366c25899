package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

// Raw is a log store as its library returns it: not verified.
type Raw struct {
	raft.LogStore
	path       string
	closeStore func() error

	once     sync.Once
	panicked chan struct{} // closed when the store has panicked
}

// NewRaw returns a log store that is not verified. closeStore closes the store.
func NewRaw(store raft.LogStore, path string, closeStore func() error) *Raw {
	return &Raw{LogStore: store, path: path, closeStore: closeStore, panicked: make(chan struct{})}
}

// Close closes the store. A store that has panicked stays open until the process ends: closing it
// might wait for a lock forever.
func (r *Raw) Close() error {
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
func (r *Raw) call(f func() error) error {
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

func (r *Raw) panickedError() error {
	return &diskfile.DamagedError{Path: r.path, Reason: "the log store has panicked"}
}

// OpenFiles opens or creates the log and the stable file in a directory. created means that both
// were created before, so that a missing one was lost. The caller records the creation afterwards;
// both are on disk by then. The stable file is created last. So if it is missing and the log has
// entries, it was lost, even without a record.
func OpenFiles(dir string, created, noSync bool) (*Raw, *StableFile, error) {
	path := filepath.Join(dir, FileName)
	stable, err := openStableFile(dir)
	fresh := errors.Is(err, os.ErrNotExist)
	if err != nil && !fresh {
		return nil, nil, err
	}
	if err := checkLogExists(dir, created, fresh); err != nil {
		if stable != nil {
			err = errors.Join(err, stable.Close())
		}
		return nil, nil, err
	}
	var raw *Raw
	err = recoverPanics(path, func() {}, func() (err error) {
		raw, err = openBolt(path, noSync)
		return err
	})
	if err == nil && fresh {
		stable, err = createStableIfLogEmpty(dir, raw)
	}
	if err == nil && !created {
		err = diskfile.SyncDir(vfs.Default, dir)
	}
	if err != nil {
		if raw != nil {
			err = errors.Join(err, raw.Close())
		}
		if stable != nil {
			err = errors.Join(err, stable.Close())
		}
		return nil, nil, err
	}
	return raw, stable, nil
}

// checkLogExists returns a *diskfile.DamagedError if the log or the stable file must exist and does
// not.
func checkLogExists(dir string, created, noStable bool) error {
	path := filepath.Join(dir, FileName)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && (!noStable || created) {
		return &diskfile.DamagedError{Path: path, Reason: MissingReason}
	}
	if noStable && created {
		return &diskfile.DamagedError{Path: filepath.Join(dir, StableFileName), Reason: MissingReason}
	}
	return nil
}

func createStableIfLogEmpty(dir string, raw *Raw) (*StableFile, error) {
	last, err := raw.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	if last > 0 {
		return nil, &diskfile.DamagedError{Path: filepath.Join(dir, StableFileName), Reason: MissingReason}
	}
	return createStableFile(dir)
}

// recoverPanics calls f, which calls into a log store, and onPanic if f panics. A store follows
// pointers on disk. Damage makes it panic or access memory that is not mapped. SetPanicOnFault
// turns such an access into a panic; otherwise it would end the process.
func recoverPanics(path string, onPanic func(), f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			onPanic()
			err = &diskfile.DamagedError{Path: path, Reason: fmt.Sprint("the log store panicked: ", r)}
		}
	}()
	return f()
}

// Reasons of a *diskfile.DamagedError for files that must exist.
const (
	// MissingReason says what is lost and what to do.
	MissingReason = "the file is missing; it recorded the votes of this node and the entries that it has acknowledged. " + MissingRemedy
	// MissingRemedy says what to do.
	MissingRemedy = "If it was moved, put it back. " +
		"If it is lost, empty the whole directory of the node and start the node again: it then has another identity, " +
		"which the cluster rejects until it has adopted it (tenuto adopt NODE IDENTITY). " +
		"Or replace the node by one of another name (Config.Join)"
)
