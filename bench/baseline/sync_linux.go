package baseline

import (
	"os"
	"syscall"
)

// syncData writes a file's data to disk, with only the metadata needed to read it.
func syncData(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }
