// Package journal stores the histories of one partition: a Raft group with its log, its snapshots
// and its state on disk.
//
// # Guarantees
//
//  1. A record (such as an append, an attempt or a purge) whose done was called with nil is on the
//     disks of a majority and is applied on this node. It survives the crash of any minority, any
//     number of process kills, and a power cut of all nodes at once.
//  2. All nodes apply records in the same order, each whole or not at all, by the rules of package
//     state.
//  3. done is called exactly once for every record, also when the journal is closed or the node
//     has failed. No lock is held during the call.
//  4. Every error of Append, Attempt and Purge says whether nothing happened or the outcome is
//     unknown.
//  5. Lead is called once for each epoch in which this node leads, after everything of earlier
//     epochs is applied. Calls never overlap. Records of an epoch are rejected once a later epoch
//     is committed, even if their proposer still considers itself the leader.
//  6. After Barrier returns nil, reads on this node show everything that any node acknowledged
//     before the call.
//  7. An entry with any checksum mismatch is not applied, not even in part. The node that finds it
//     fails: it sends nothing more, answers calls with a *NodeFailedError, and still serves reads
//     of what it had applied. Neither a mismatch nor a disk error ends the process.
//  8. Every queue is bounded; a full one returns ErrBusy. Close ends every goroutine that Open has
//     started, except those of a state store that failed. When Close returns a *StalledError, those
//     that wait for the disk still run.
//  9. Memory does not grow with what has been recorded. A damaged state is never served: Open
//     rebuilds it from the newest intact snapshot and the log. If this node has no intact
//     snapshot, Open fetches one from another node, or returns a *RepairError. Damage or loss of
//     the log, or of the term and the vote, is not repaired: Open returns a *DamagedError. The
//     node must then be replaced under another name, or start with an empty directory that the
//     partition adopts (AdoptMember).
//  10. If two successive reads of Now on leaders, the same or different ones, differ by d, at least
//     d - d/2,000 of real time has passed between them. This holds whatever happens to wall clocks
//     while nodes run. It also holds across an outage of all nodes if fewer than half of the nodes
//     that then answer the new leader had their wall clock set forward during the outage.
//
// # What may not be assumed
//
// Reads without Barrier may be stale. A node whose IsLeader returns true may have lost leadership
// and not detected it yet; only a committed record proves leadership. The order of records of
// different goroutines is undefined. After ErrUnknownOutcome a record may still be committed later.
// A purge hides data from reads at once; the data leaves the disk only after the log and the
// snapshots with it have been replaced and the state store has compacted it. A directory that was
// restored to an earlier state must not be used, since it could vote twice. A node whose directory
// was lost may return under its name with an empty one, after the partition has adopted it
// (AdoptMember). The Network is fully trusted. Windows cannot sync a directory: a power cut there
// may undo the creation or the replacement of a file, which breaks guarantee 1.
//
// # The bytes on disk
//
// The directory holds:
//
//   - "lock", locked while the journal is open;
//   - "identity", text: format, node, cluster and partition;
//   - "directory-id", a sector of 512 bytes that ends with its CRC-32C: the identity of the
//     directory, how often it was opened, and whether its log was created, in partition 0 also
//     those of all others (see identity.go);
//   - "raft.db", a bbolt file with Raft's log;
//   - "raft.stable", two such sectors: term and vote; the tail of the log;
//   - "founding", a frame (see below) of JSON: the founders that this node has agreed to; only
//     where several nodes founded the partition;
//   - "state", the store whose bytes package state documents;
//   - "snapshots";
//   - "clock", see internal/clock/sample.go; it may be missing;
//   - "retained", JSON: which entries of the log are kept for the next backup; it may be missing.
//
// The data of a Raft log entry is
//
//	entry  = 0x08 0x01 record*                    // Entry.format 1
//	record = 0x12, length of sealed, sealed       // Entry.records
//	sealed = 0x0A, length of m, m, 0x15, CRC-32C of m (4 bytes, little-endian)
//
// with lengths as unsigned varints and m an encoded protobuf Record.
//
// A snapshot is a directory named by index and term in hexadecimal digits. It contains the
// directory "state", with the files of a checkpoint of the state store (tables are links to those
// in use), and the file
//
//	manifest = JSON, 0x0A, CRC-32C of the JSON in 8 hexadecimal digits, 0x0A
//
// The JSON names its format (1), the node that took the snapshot, its cluster and partition
// (group), Raft's metadata (id, version, index, term, members, members_index), the last entry in
// the files (applied, applied_term), the database that the files belong to, and for each file its
// name, size and CRC-32C. The name of an unfinished snapshot ends with ".tmp", that of a damaged
// one with ".damaged". A follower that lags is sent
//
//	stream  = "tenuto-1" frame(manifest) files trailer
//	files   = frame(256 KiB or the rest of a file)*, for each file
//	frame   = length (not 0), the bytes, their CRC-32C   // both 4 bytes, little-endian
//	trailer = 0, CRC-32C of all bytes before it          // both 4 bytes, little-endian
//
// A node that has lost its snapshots requests one from another node with
//
//	ask    = "tenuto-ask-1" frame(JSON with cluster, node and the least index)
//	answer = frame(JSON with rejection) stream             // no stream if rejected
//
// A leader that has received no cluster time since its start requests it from the others with
//
//	ask    = "tenuto-now-1" frame(JSON with cluster and node)
//	answer = frame(JSON with time, epoch and kept)
package journal
