// Package proof writes what a cluster has recorded of an instance to a file that is checked without
// the cluster.
//
// Leaders compare the replicas of their partitions. If all replicas of a range of instances that
// take part agree, and they are a majority of the voters, the leader signs a statement with the
// root of a Merkle tree (RFC 9162, SHA-256), cluster, lineage, partition, index and time. A proof
// has the events, the path from the instance to the root, and the signed statement. Other instances
// have proofs with the same root, so a leader cannot sign for one reader alone. If the latest root
// is older than the history, the leader compares a range that begins with the instance, and signs
// another.
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
//	proof     = "tenuto proof 1", 0x0A, statement, signature, key, instance, executions, position, path, number, event*, SHA-256 of all before
//	statement = "tenuto statement 1", 0x00, cluster, lineage, partition, index, time, from, to, instances, root, replicas, voters
//	executions = count, then of each: number, count of events, digest
//	path       = count, then the hashes from the leaf to the root
//	leaf hash  = SHA-256 of 0x00 and of the SHA-256 of "tenuto history 1", 0x00, instance, executions
//	digest     = SHA-256 of "tenuto execution 1", 0x00, instance, number, event*, count of events
//
// Each text, each event, and statement, signature and key in the proof are preceded by their
// length. Events are encoded tenuto.journal.v1.Event, as stored. position counts, from 0, the
// leaves before that of the instance: the statement covers the instances with IDs from "from" up to
// but not including "to", in order. number is that of the execution whose events follow. The
// signature is of the statement. [Check] accepts no other bytes.
package proof
