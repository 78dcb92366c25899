package store

import (
	"errors"
	"fmt"
)

// ErrCorrupt means that the bytes read are not those that were written.
var ErrCorrupt = errors.New("corrupt")

// ErrClosed means that the store is closed.
var ErrClosed = errors.New("closed")

// Error reports that a store cannot be read or written, or is closed. It wraps ErrCorrupt if the
// data read is not the data written; the store is then marked as damaged, and must be discarded
// before it is opened again.
type Error struct {
	Dir string
	Op  string // the operation that failed
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("state in %s: %s: %v", e.Dir, e.Op, e.Err) }
func (e *Error) Unwrap() error { return e.Err }
