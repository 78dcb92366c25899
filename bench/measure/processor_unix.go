//go:build unix

package measure

import (
	"syscall"
	"time"
)

// ProcessorTime returns the processor time of this process, user and system.
func ProcessorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
