package yardstick

import (
	"os"
	"syscall"
)

// syncData writes a file's data to the disk, and no more of its metadata than is
// needed to read it.
func syncData(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }
