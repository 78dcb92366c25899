// Package raftlog stores the log, the term and the vote of one Raft node.
//
// # Guarantees
//
//  1. An entry with any checksum mismatch is never returned. Each entry has a CRC-32C over itself
//     and the checksum of the entry before it. OpenFiles and Open verify the whole log.
//  2. An entry that was on disk and is missing is found when the log is opened. The stable file
//     holds the tail of the log, which is never newer than the log. So an entry that is missing
//     before it was lost, and one after it was never acknowledged.
//  3. Neither a damaged file nor a panic of the store ends the process. The node fails (FailStop).
//  4. A full disk does not fail the node. If Raft then assumes entries that are gone, the log
//     rejects writes and asks to be reopened (Checked.ReopenDue).
//  5. A write that takes longer than its limit is reported as a stall while it lasts (Disk).
//
// # What may not be assumed
//
// A store that has panicked stays open until the process ends, and goroutines that call it may
// never return: it may hold locks.
package raftlog
