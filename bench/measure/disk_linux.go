package measure

import (
	"os"

	"golang.org/x/sys/unix"
)

func dropCached(file *os.File) error {
	return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}
