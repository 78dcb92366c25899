// Package proof writes what a cluster has recorded of an instance to a file that is checked without
// the cluster.
//
// Leaders compare the replicas of their partitions in rounds. Of each range of instances on which
// all that take part agree, a majority of the voters, the leader signs the root of a Merkle tree
// (RFC 9162, SHA-256) with cluster, lineage, partition, index and time. A proof has the events, the
// path from the instance to the root, and the signed statement. So it does not depend on who asked:
// other instances have proofs of the same root. A history that is newer than the last root waits
// for the next one, of a range that begins with its instance.
//
// The key (Ed25519) is derived from the cluster's completion key, so every node has it, and so has
// a backup. It never changes. A proof shows that a node of the cluster made the statement, not that
// the cluster was honest. Keep in another place the roots that operate.Verify returns: what a
// cluster proves under one of them had been recorded when it was signed.
//
// # The bytes
//
// Integers, and the lengths before bytes, take eight bytes, big-endian:
//
//	proof     = "tenuto proof 1", 0x0A, statement, signature, key, instance, executions, leaf, path, number, event*, SHA-256 of all before
//	statement = "tenuto statement 1", 0x00, cluster, lineage, partition, index, time, from, to, instances, root, replicas, voters
//	executions = count, then of each: number, count of events, digest
//	path       = count, then the hashes from the leaf to the root
//	leaf hash  = SHA-256 of 0x00 and of the SHA-256 of "tenuto history 1", 0x00, instance, executions
//	digest     = SHA-256 of "tenuto execution 1", 0x00, instance, number, event*, count of events
//
// Each text, each event, and statement, signature and key in the proof are preceded by their
// length. Events are encoded tenuto.journal.v1.Event, as stored. leaf is the position of the
// instance among the instances from from up to to, in order of IDs. The signature is of the
// statement. [Check] accepts no other bytes.
package proof
