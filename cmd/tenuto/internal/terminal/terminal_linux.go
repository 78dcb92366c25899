package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// Is reports whether the file is a terminal.
func Is(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
