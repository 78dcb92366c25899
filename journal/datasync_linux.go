package journal

import (
	"errors"
	"os"
	"syscall"
)

// syncData writes to the disk what was written to a file and is needed to read it. Of
// a file that keeps its length that leaves out when it was changed, for which a file
// system may have a transaction of its own.
func syncData(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for failed = syscall.EINTR; errors.Is(failed, syscall.EINTR); {
			failed = syscall.Fdatasync(int(fd))
		}
	})
	return errors.Join(err, os.NewSyscallError("fdatasync", failed))
}
