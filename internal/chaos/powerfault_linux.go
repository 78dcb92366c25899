package main

import (
	"os"
	"syscall"
	"unsafe"
)

func shutDown(mount *os.File) error {
	how := uint32(noLogFlush)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, mount.Fd(), extShutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		return errno
	}
	return nil
}
