// Package journal keeps the histories of a group of nodes: one Raft group, with
// its log, its snapshots and its state on disk.
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
//     goroutine that Open has started, except those of a state store that failed,
//     and, when it returns a *StalledError, those that wait for the disk.
//  9. Memory does not grow with what has been recorded. A state that is damaged
//     is never served. When the journal is opened it is rebuilt from the newest
//     snapshot that checks and the log, or if none does, from one that another node
//     has; if nobody gives one, Open refuses with a *RepairError. Damage or loss of the
//     log, or of the term and the vote, is not repaired: Open refuses with a
//     *DamagedError, and the node has to be replaced under another name, or to
//     begin with an empty directory that the group adopts (AdoptMember).
//  10. Of a time that was d after Now of a leader, at least d - d/2,000 has really
//     passed when Now of any leader has come to it: whatever happens to wall clocks
//     while nodes run, and over a loss of all nodes if of those that then answer the new
//     leader fewer than half have a wall clock that was set forward meanwhile.
//
// # What may not be assumed
//
// Reads without Barrier may be old. A node that IsLeader may have lost
// leadership without knowing yet: only a committed record tells. Records of
// different goroutines have no order among each other. ErrUnknownOutcome does
// not mean that a record is not still to be committed. A purge takes data out of
// what is read at once, and from disk only when the log and the snapshots that
// hold it have been replaced and the state store has compacted it away. A
// directory that was set back to an earlier state must not come back, since it could
// vote twice; an empty one in place of one that was lost takes part under the same
// node name once it is adopted (AdoptMember). The Network is trusted entirely.
// Windows cannot sync a directory: there a power cut may undo the creation or the
// replacement of a file, and with it guarantee 1.
//
// # The bytes on disk
//
// The directory holds "lock" (locked while open), "identity" (text: format and
// node), "directory-id" (a sector of 512 bytes that ends with its CRC-32C: the identity of
// the directory, how often it was opened, and whether the log, and the other groups, were
// created; see identity.go), "raft.db" (a bbolt file) with Raft's log, "raft.stable" (two such sectors: term and vote; mark of the log),
// "founding" (a frame, as below, of JSON: the founders to which this one has agreed; only
// where several founded the group), "state" (the store whose bytes package state
// documents), "snapshots" and "clock" (see clockmark.go; it may be missing). The data of a
// Raft log entry is
//
//	entry  = 0x08 0x01 record*                    // Entry.format 1
//	record = 0x12, length of sealed, sealed       // Entry.records
//	sealed = 0x0A, length of m, m, 0x15, CRC-32C of m (4 bytes, little-endian)
//
// with lengths as unsigned varints and m an encoded protobuf Record.
//
// A snapshot is a directory, named by index and term in hexadecimal digits, with
// the directory "state", which holds the files of a checkpoint of the state
// store, tables as links to those in use, and the file
//
//	manifest = JSON, 0x0A, CRC-32C of the JSON in 8 hexadecimal digits, 0x0A
//
// whose JSON names its format (1), the node that took it, what Raft wants to know
// (id, version, index, term, members, members_index), the last entry in the files
// (applied, applied_term), their database, and of each file its name, size and
// CRC-32C. A name that ends with ".tmp" is a snapshot that was not finished, one
// with ".damaged" was found not to check. A follower that is behind is sent
//
//	stream  = "tenuto-1" frame(manifest) (frame(256 KiB or the rest of a file)* for each file) trailer
//	frame   = length (not 0), the bytes, their CRC-32C   // both 4 bytes, little-endian
//	trailer = 0, CRC-32C of all bytes before it          // both 4 bytes, little-endian
//
// and a node that has lost its snapshots asks another one for that by
//
//	ask    = "tenuto-ask-1" frame(JSON with cluster, node and the least index)
//	answer = frame(JSON with refusal) stream             // no stream if refused
//
// as a leader that has heard of no time since its start asks the others for that:
//
//	ask    = "tenuto-now-1" frame(JSON with cluster and node)
//	answer = frame(JSON with time, epoch and kept)
package journal
