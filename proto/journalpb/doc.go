// Package journalpb holds the schemas of everything that Tenuto keeps on disk:
// events, the records that carry them through the Raft log, snapshots.
//
// It promises:
//
//  1. What one release has written, every later release reads. Fields are
//     added, never renumbered, never given another meaning.
//  2. A field that a build does not know survives being read and written by it.
//
// Nothing may be assumed about the bytes of an encoded message beyond what
// Protocol Buffers promise: two encodings of the same message may differ.
package journalpb
