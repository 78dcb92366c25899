// Package goroutine identifies goroutines.
//
// It guarantees that [ID] returns the same number for as long as a goroutine runs, and different
// numbers to goroutines that run at the same time. A goroutine that begins after another has ended
// may get the same number.
//
// The runtime has no such function. On amd64 and arm64 the number is the address of the runtime's g
// structure, which the compiler keeps in a register or in thread-local storage. Elsewhere ID reads
// the number from the header of the goroutine's stack trace, which takes about a microsecond.
package goroutine
