// Package journalpb defines the schemas of everything that Tenuto keeps on disk: events, the
// records that carry them through the Raft log, and snapshots.
//
// Guarantees:
//
//  1. Every release reads what earlier releases have written. Fields are added, never renumbered,
//     and never change their meaning.
//  2. A build preserves fields that it does not know when it reads and writes a message.
//
// As with Protocol Buffers in general, two encodings of the same message may differ in their bytes.
package journalpb
