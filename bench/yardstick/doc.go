// Package yardstick measures what the engine is held against: the disk, and the
// Raft library with nothing of Tenuto around it.
//
// It sets the library up as package journal does, on the same store with the
// same settings; only the state machine does nothing. It is the one package
// beside journal that imports the library.
package yardstick
