//go:build unix

package journal

import (
	"errors"
	"os"
	"syscall"
)

// tryLock locks a file against other processes until it is closed. held reports whether the
// error is that another process has locked it.
func tryLock(file *os.File) (held bool, err error) {
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return errors.Is(err, syscall.EWOULDBLOCK), err
}

// fullDisk returns the errors of a write for which the disk, or the owner's share of it, has
// no room.
func fullDisk() []error { return []error{syscall.ENOSPC, syscall.EDQUOT} }

// brokenConnection returns the errors of a connection that the other side has ended.
func brokenConnection() []error { return []error{syscall.EPIPE, syscall.ECONNRESET} }
