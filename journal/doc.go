// Package journal keeps the histories of a group of nodes: one Raft group, with
// its log and snapshots on disk and its state in memory.
//
// # Guarantees
//
//  1. A record (an append, an attempt or a purge) whose done was called with
//     nil is on the disks of a majority and is applied on this node. It survives
//     the crash of any minority, any number of kills, and a power cut of all
//     nodes at once.
//  2. Records are applied in one order, the same on every node, each whole or
//     not at all, by the rules of package state.
//  3. done is called exactly once for every record, also when the journal is
//     closed or fenced, and never while a lock is held.
//  4. Every error of Append, Attempt and Purge says whether nothing happened or
//     whether the outcome is unknown.
//  5. Lead is called once for each epoch that this node leads in, with
//     everything of earlier epochs applied, and never twice at the same time.
//     Records of an epoch are refused once a later one is committed, whatever
//     their proposer believes.
//  6. When Barrier returns nil, reads on this node show everything that was
//     acknowledged anywhere before the call.
//  7. An entry of which anything does not check is not applied, not even in
//     part. The node that meets it fences itself: it falls silent towards the
//     others, refuses what is asked of it with a *FencedError and goes on
//     serving reads of what it applied before. Neither that nor an error of
//     its disk ends the process.
//  8. Every queue is bounded; a full one answers ErrBusy. Close ends every
//     goroutine that Open has started.
//
// # What may not be assumed
//
// Reads without Barrier may be old. A node that IsLeader may have lost
// leadership without knowing yet: only a committed record tells. Records of
// different goroutines have no order among each other. ErrUnknownOutcome does
// not mean that a record is not still to be committed. A purge takes data out of
// what is read at once, and from disk only when the log and the snapshots that
// hold it have been replaced. A directory that was lost or set back to an
// earlier state must not come back under the same node name, since it could vote
// twice. The Network is trusted entirely.
//
// # The bytes on disk
//
// The directory holds "lock" (locked while open), "identity" (text: format and
// node), "raft.db" (a bbolt file with Raft's log, term and votes), and
// "snapshots" (the Raft library's, each with the bytes that package state
// documents). The data of a Raft log entry is
//
//	entry  = 0x08 0x01 record*                    // Entry.format 1
//	record = 0x12, length of sealed, sealed       // Entry.records
//	sealed = 0x0A, length of m, m, 0x15, CRC-32C of m (4 bytes, little-endian)
//
// with lengths as unsigned varints and m an encoded protobuf Record.
package journal
