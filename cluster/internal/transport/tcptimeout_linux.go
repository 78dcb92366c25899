package transport

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// setTCPUserTimeout makes the kernel close a connection after sent data was not acknowledged for
// UnackedTimeMax (TCP_USER_TIMEOUT, RFC 5482). Accepted connections inherit the option from the
// listening socket.
func setTCPUserTimeout(_, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(UnackedTimeMax.Milliseconds()))
	})
	return errors.Join(failed, err)
}
