//go:build unix

package diskfile

import (
	"errors"
	"os"
	"syscall"
)

// TryLock locks a file against other processes until it is closed. held reports whether the error
// is that another process has locked it.
func TryLock(file *os.File) (held bool, err error) {
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return errors.Is(err, syscall.EWOULDBLOCK), err
}

// diskFullErrors returns the errors of a write for which the disk or a quota has no room.
func diskFullErrors() []error { return []error{syscall.ENOSPC, syscall.EDQUOT} }
