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

// failure is the first thing that went wrong with a store. Behind it nothing is
// written any more.
type failure struct {
	failed chan struct{} // closed
	once   sync.Once
	err    *store.Error
}

// Fail implements store.Store. It notes what went wrong, marks a store that is
// damaged, and returns the first thing that did.
func (s *Store) Fail(op string, err error) error {
	var before *store.Error
	if errors.As(err, &before) && !errors.Is(err, store.ErrCorrupt) {
		return err // closed, or noted already
	}
	var unmarked error
	s.failure.once.Do(func() {
		if pebble.IsCorruptionError(err) {
			err = errors.Join(store.ErrCorrupt, err)
		}
		s.failure.err = &store.Error{Dir: s.options.Dir, Op: op, Err: err}
		if errors.Is(err, store.ErrCorrupt) && !s.trial {
			unmarked = writeSynced(s.options.FS, s.options.Dir, damagedFile, []byte(err.Error()+"\n"))
		}
		close(s.failure.failed)
	})
	if unmarked != nil { // not in Do, where others would wait for the log
		s.options.Logger.Error("the damaged state could not be marked", "error", unmarked)
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

// guarded runs something that may write, in a goroutine of its own, and returns
// an error when it has returned or the store has failed: the database ends the
// goroutine that meets an error behind which it cannot go on, whosever it is,
// and others may then wait for it in vain.
func (s *Store) guarded(op string, f func() error) error {
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

// quiet drops what a store that has failed says in the end.
func (s *Store) quiet(err error) error {
	if s.Err() != nil {
		return nil
	}
	return err
}

// pebbleLogger hands on what the database says, and ends the goroutine that
// cannot go on.
type pebbleLogger struct{ *Store }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.options.Logger.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.options.Logger.Warn(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// Fatalf must not return: the database would go on with what it knows to be
// wrong. Ending the goroutine unwinds it and lets go of its locks.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	fatal := &fatalError{text: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			fatal.causes = append(fatal.causes, err)
		}
	}
	l.breakDown("keep the database", fatal)
}

// A fatalError is what the database says last, with the errors that it names in that.
type fatalError struct {
	text   string
	causes []error
}

func (e *fatalError) Error() string   { return e.text }
func (e *fatalError) Unwrap() []error { return e.causes }

// backgroundError ends the goroutine of a flush or a compaction that has failed:
// the database would try again at once, for ever, unless it is being closed.
func (s *Store) backgroundError(err error) {
	if s.closing.Load() {
		_ = s.Fail("write in the background", err)
		return
	}
	s.breakDown("write in the background", err)
}

// breakDown fails the store and ends the goroutine.
func (s *Store) breakDown(op string, err error) {
	_ = s.Fail(op, err)
	runtime.Goexit()
}

// damage marks an error of opening a database that is not one of the system: a
// file that is missing or says what no other file agrees with is not always
// called corrupt.
func damage(err error) error {
	var system syscall.Errno
	if errors.As(err, &system) && !errors.Is(system, iofs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrCorrupt, err)
}
