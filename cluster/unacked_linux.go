package cluster

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// boundUnacked has the kernel end a connection over which nothing was acknowledged for
// unackedMax (TCP_USER_TIMEOUT, RFC 5482). What a listening socket has, those have that
// it accepts.
func boundUnacked(_, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedMax.Milliseconds()))
	})
	return errors.Join(failed, err)
}
