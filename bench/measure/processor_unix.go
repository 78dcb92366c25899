//go:build unix

package measure

import (
	"syscall"
	"time"
)

// ProcessorTime returns how long this process has had processors, its own code
// and the system's on its behalf.
func ProcessorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
