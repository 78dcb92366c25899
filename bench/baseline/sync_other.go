//go:build !linux

package baseline

import "os"

// syncData writes a file to disk. Only Linux has fdatasync.
func syncData(file *os.File) error { return file.Sync() }
