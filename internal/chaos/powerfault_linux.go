package main

import (
	"os"

	"golang.org/x/sys/unix"
)

func shutDown(mount *os.File) error {
	return unix.IoctlSetPointerInt(int(mount.Fd()), extShutdown, noLogFlush)
}
