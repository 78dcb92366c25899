package pebblestore

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// failure is the first error of a store. After it nothing is written any more.
type failure struct {
	failed chan struct{} // closed after the first error
	once   sync.Once
	err    *store.Error
}

// Fail implements store.Store. It records the first error. If that error means corruption, Fail
// marks the store as damaged.
func (s *Store) Fail(op string, err error) error {
	var before *store.Error
	if errors.As(err, &before) && !errors.Is(err, store.ErrCorrupt) {
		return err // closed, or recorded already
	}
	var markErr error
	s.failure.once.Do(func() {
		if pebble.IsCorruptionError(err) {
			err = errors.Join(store.ErrCorrupt, err)
		}
		s.failure.err = &store.Error{Dir: s.options.Dir, Op: op, Err: err}
		if errors.Is(err, store.ErrCorrupt) && !s.isCandidate {
			markErr = writeSynced(s.options.FS, s.options.Dir, damagedFile, []byte(err.Error()+"\n"))
		}
		close(s.failure.failed)
	})
	if markErr != nil { // after Do, so that concurrent callers do not wait for the log
		s.options.Logger.Error("cannot mark the state as damaged", "error", markErr)
	}
	return s.failure.err
}

// Failed implements store.Store.
func (s *Store) Failed() <-chan struct{} { return s.failure.failed }

// Err implements store.Store.
func (s *Store) Err() error {
	select {
	case <-s.failure.failed:
		return s.failure.err
	default:
		return nil
	}
}

// runGuarded runs f in a goroutine of its own, and returns when f has returned or the store has
// failed. A fatal error ends the goroutine in which it occurs. Other goroutines of Pebble may then
// wait for it forever.
func (s *Store) runGuarded(op string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		err := error(nil)
		returned := false
		defer func() {
			if !returned {
				err = s.Err()
			}
			result <- err
		}()
		err = f()
		returned = true
	}()
	select {
	case err := <-result:
		if err != nil {
			return s.Fail(op, err)
		}
		return nil
	case <-s.failure.failed:
		return s.failure.err
	}
}

// unlessFailed returns err, or nil if the store has failed already.
func (s *Store) unlessFailed(err error) error {
	if s.Err() != nil {
		return nil
	}
	return err
}

// pebbleLogger forwards Pebble's log, and ends the goroutine on a fatal error.
type pebbleLogger struct{ *Store }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.options.Logger.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.options.Logger.Warn(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// Fatalf must not return: Pebble would continue on data that it found wrong. Ending the
// goroutine unwinds its stack and releases its locks.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	fatal := &fatalError{text: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			fatal.causes = append(fatal.causes, err)
		}
	}
	l.failAndExit("run the database", fatal)
}

// fatalError is the argument of Fatalf, with the errors in it.
type fatalError struct {
	text   string
	causes []error
}

func (e *fatalError) Error() string   { return e.text }
func (e *fatalError) Unwrap() []error { return e.causes }

// backgroundError ends the goroutine of a flush or compaction that has failed, because Pebble would
// retry at once and forever. While the database is being closed, it only records the error.
func (s *Store) backgroundError(err error) {
	if s.closing.Load() {
		_ = s.Fail("write in the background", err)
		return
	}
	s.failAndExit("write in the background", err)
}

// failAndExit fails the store and ends the goroutine.
func (s *Store) failAndExit(op string, err error) {
	_ = s.Fail(op, err)
	runtime.Goexit()
}

// markCorrupt marks an error of opening a database as corruption, unless it comes from the
// operating system. Pebble does not always classify missing or inconsistent files as corrupt.
func markCorrupt(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) && !errors.Is(errno, iofs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrCorrupt, err)
}
