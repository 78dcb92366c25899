//go:build unix

package transport

import "syscall"

// brokenConnectionErrors returns the errors of a connection that the other side has closed.
func brokenConnectionErrors() []error { return []error{syscall.EPIPE, syscall.ECONNRESET} }
