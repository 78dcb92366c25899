//go:build !linux

package journal

import "os"

// syncData writes to the disk what was written to a file.
func syncData(file *os.File) error { return file.Sync() }
