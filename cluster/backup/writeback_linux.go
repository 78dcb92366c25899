package backup

import (
	"os"

	"golang.org/x/sys/unix"
)

// writeBack lets the disk write a part of a file that was just written, waits for the part of the
// same size before it, and removes that from the cache, where the nodes' files are of more use. It
// is no sync; an error is one of a later sync, too.
func writeBack(file *os.File, offset, size int64) {
	descriptor := int(file.Fd())
	_ = unix.SyncFileRange(descriptor, offset, size, unix.SYNC_FILE_RANGE_WRITE)
	if offset < size {
		return
	}
	const wait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	_ = unix.SyncFileRange(descriptor, offset-size, size, wait)
	_ = unix.Fadvise(descriptor, offset-size, size, unix.FADV_DONTNEED)
}
