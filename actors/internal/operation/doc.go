// Package operation identifies operations in memory.
//
// Keys of equal references are equal. A key says nothing about whether its operation is open, or
// was ever scheduled.
package operation
