package store

import (
	"errors"
	"fmt"
)

// ErrCorrupt says that bytes are not what was written.
var ErrCorrupt = errors.New("corrupt")

// ErrClosed says that a store is closed.
var ErrClosed = errors.New("closed")

// Error: a store cannot be read or written, or has been closed. It wraps
// ErrCorrupt if what was read is not what was written: then the store is marked,
// and must be discarded before it is opened again.
type Error struct {
	Dir string
	Op  string // what was being done
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("state in %s: %s: %v", e.Dir, e.Op, e.Err) }
func (e *Error) Unwrap() error { return e.Err }
