package main

import "syscall"

// Windows cannot pause a process: sending these signals returns an error.
const (
	addressInUse  = syscall.Errno(10048) // WSAEADDRINUSE
	pauseSignal   = syscall.Signal(19)
	unpauseSignal = syscall.Signal(18)
)
