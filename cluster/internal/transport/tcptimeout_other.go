//go:build !linux

package transport

import "syscall"

// setTCPUserTimeout does nothing: the kernel decides when to close an unacknowledged connection.
func setTCPUserTimeout(_, _ string, _ syscall.RawConn) error { return nil }
