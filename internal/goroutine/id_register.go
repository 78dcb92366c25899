//go:build gc && (amd64 || arm64)

package goroutine

// ID returns a number that no other running goroutine has.
func ID() uintptr
