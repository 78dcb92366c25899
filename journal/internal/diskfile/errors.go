package diskfile

import (
	"errors"
	"fmt"
	"slices"
)

// DamagedError: a file is missing or damaged.
type DamagedError struct {
	Path   string
	Index  uint64 // of the damaged or missing log entry; 0 if it is not an entry
	Reason string
}

// Error implements error.
func (e *DamagedError) Error() string {
	if e.Index > 0 {
		return fmt.Sprintf("%s is damaged: entry %d: %s", e.Path, e.Index, e.Reason)
	}
	return fmt.Sprintf("%s is damaged: %s", e.Path, e.Reason)
}

// FormatError: a file, or data received from another node, has a format that this version does not
// read.
type FormatError struct {
	Path string
	Want string // what this version reads
	Have string // what was found
}

// Error implements error.
func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has format %q, but this version reads %q: run the version that wrote it, or a later one",
		e.Path, e.Have, e.Want)
}

// IsFull reports whether an error is that of a full disk, which may have room again.
func IsFull(err error) bool {
	return slices.ContainsFunc(diskFullErrors(), func(full error) bool { return errors.Is(err, full) })
}
