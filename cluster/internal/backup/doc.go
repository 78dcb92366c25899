// Package backup makes a checkpoint of a node's replicas of all partitions at one cut, and serves
// its files while a client copies them.
//
// # Guarantees
//
//  1. If the state of one partition contains the effect of a message from another partition, the
//     state of that other partition contains the message.
//  2. A checkpoint exists until End or Close is called, or until nothing was read from it for
//     [Lease].
//  3. While the node applies entries, a read begins only after a pause of three times as long as it
//     is since the pause before, 25 ms at most.
//
// # What may not be assumed
//
// That a checkpoint survives a crash or a restart of the node: it is not synced to disk, and the
// next start removes it.
package backup
