// Package backup makes a checkpoint of all partitions of a node at one cut, and serves its files while
// a client copies them.
//
// # Guarantees
//
//  1. The checkpoints of the partitions contain no effect of a message between partitions without the
//     message.
//  2. A checkpoint exists until End, Close, or until it was not read for [Lease].
//
// # What may not be assumed
//
// That the checkpoint is complete on disk after a crash: it is not synced, and removed at the next
// start.
package backup
