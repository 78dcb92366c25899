// Package proof writes what a cluster has recorded of an instance to a file that is checked without
// the cluster.
//
// The leader signs a statement: cluster, lineage, partition, index and time, the instance, and of each
// of its executions the number of events and their SHA-256. The key (Ed25519) is derived from the
// cluster's completion key, so every node has it, and so has a backup. It never changes. A proof shows
// that a node of the cluster made the statement, not that the cluster was honest.
//
// # The bytes
//
// Integers, and the lengths before bytes, take eight bytes, big-endian:
//
//	proof = "tenuto proof 1", 0x0A, statement, signature, key, execution, count, event*, SHA-256 of all before
//
// Each of statement, signature, key and event is preceded by its length; events are encoded
// tenuto.journal.v1.Event. The signature is of the statement, which begins with "tenuto statement 1",
// 0x00. [Check] accepts no other bytes.
package proof
