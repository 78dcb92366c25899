//go:build unix

package main

import "syscall"

const (
	addressInUse  = syscall.EADDRINUSE
	pauseSignal   = syscall.SIGSTOP
	unpauseSignal = syscall.SIGCONT
)
