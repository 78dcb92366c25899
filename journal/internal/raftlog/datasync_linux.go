package raftlog

import (
	"errors"
	"os"
	"syscall"
)

// syncData syncs the data of a file and the metadata needed to read it. For a file of constant
// length it does not sync the modification time, which could cost another transaction of the file
// system.
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
