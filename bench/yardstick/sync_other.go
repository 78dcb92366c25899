//go:build !linux

package yardstick

import "os"

// syncData writes a file to the disk; fdatasync is there on Linux only.
func syncData(file *os.File) error { return file.Sync() }
