package diskfile

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// TryLock locks a file against other processes until it is closed. held reports whether the error
// is that another process has locked it.
func TryLock(file *os.File) (held bool, err error) {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err = windows.LockFileEx(windows.Handle(file.Fd()), flags, 0, 1, 0, new(windows.Overlapped))
	return errors.Is(err, windows.ERROR_LOCK_VIOLATION), err
}

// diskFullErrors returns the errors of a write for which the disk or a quota has no room. The first
// is Go's own on Windows, and what tests return.
func diskFullErrors() []error {
	return []error{
		syscall.ENOSPC, windows.ERROR_DISK_FULL, windows.ERROR_HANDLE_DISK_FULL, windows.ERROR_DISK_QUOTA_EXCEEDED,
	}
}
