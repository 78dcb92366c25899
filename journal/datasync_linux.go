package journal

import (
	"errors"
	"os"
	"syscall"
)

// syncData syncs the data of a file and the metadata needed to read it. For a file of constant
// length that omits the modification time, for which a file system may need its own transaction.
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
