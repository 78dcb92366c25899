//go:build !linux

package raftlog

import "os"

// syncData syncs the data of a file.
func syncData(file *os.File) error { return file.Sync() }
