package main

import "syscall"

// Windows cannot pause a process: to send these signals is an error.
const (
	addressInUse  = syscall.Errno(10048) // WSAEADDRINUSE
	pauseSignal   = syscall.Signal(19)
	unpauseSignal = syscall.Signal(18)
)
