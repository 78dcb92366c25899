package goroutine

import (
	"bytes"
	"runtime"
)

// idFromStack reads the number from "goroutine 7 [running]:".
func idFromStack() uintptr {
	var header [64]byte
	digits := bytes.TrimPrefix(header[:runtime.Stack(header[:], false)], []byte("goroutine "))
	var id uintptr
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			break
		}
		id = 10*id + uintptr(digit-'0')
	}
	return id
}
