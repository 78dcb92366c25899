// Package baseline measures what the engine is compared with: the disk, and the Raft library
// without Tenuto.
//
// It configures the library like package journal, on the same store, with an empty state
// machine. Besides journal it is the only package that imports the library.
package baseline
