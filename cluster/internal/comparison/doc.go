// Package comparison compares the replicas of a partition in the background, and repairs those that
// differ.
//
// The leader records a comparison. Each node takes a view of its replica right after that entry,
// and computes digests of ranges of instances on it: it recomputes the hash chain of each history
// and derives each header from its events. Where the digests differ, the leader compares instance
// by instance, then event by event. It acts only on a difference that a second comparison confirms.
//
// # Guarantees
//
//  1. If more than half of the voters agree on an instance, the other replicas are quarantined.
//     Those that contradict themselves do not count: if all other voters agree, these decide,
//     however few. A standby is compared and repaired likewise, and does not count.
//  2. If no majority agrees, the instance is stopped: nothing is appended to it until an operator
//     chooses a replica, or a majority agrees.
//  3. A quarantined node neither leads the partition nor answers reads of the instance. The
//     quarantine ends when a comparison finds that its replica, which is flushed, is like the
//     leader's.
//  4. A replica is copied only from one on which a majority agrees, or that an operator has
//     accepted. Only that of a voter can be accepted. If those of all voters are quarantined, the
//     instance is stopped again.
//  5. If all replicas of a range that take part agree, and they are a majority of the voters, the
//     leader signs the Merkle root of its histories; package cluster/proof describes it.
//  6. In the background a node spends at most a sixteenth of a processor for each partition, and
//     reads at most 4 MiB/s of it.
//
// # What may not be assumed
//
// That the replica of a node that does not answer is compared, or of a standby that lags by more
// than ten seconds. That secondary indexes are compared: they follow from the headers.
package comparison
