//go:build !linux && !darwin && !freebsd && !netbsd && !openbsd && !dragonfly && !windows

package terminal

import "os"

// Is returns false: on this system it is not known.
func Is(*os.File) bool { return false }
