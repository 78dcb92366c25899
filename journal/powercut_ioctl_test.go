//go:build linux

package journal

import (
	"os"
	"syscall"
	"unsafe"
)

func ioctl(f *os.File, request uintptr, argument *uint32) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(argument)))
	if errno != 0 {
		return errno
	}
	return nil
}
