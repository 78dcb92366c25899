package transport

import "golang.org/x/sys/windows"

// brokenConnectionErrors returns the errors of a connection that the other side has closed.
func brokenConnectionErrors() []error {
	return []error{windows.WSAECONNRESET, windows.WSAECONNABORTED, windows.ERROR_NETNAME_DELETED}
}
