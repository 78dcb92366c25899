package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

// Is reports whether the file is a terminal.
func Is(f *os.File) bool {
	var mode uint32
	return windows.GetConsoleMode(windows.Handle(f.Fd()), &mode) == nil
}
