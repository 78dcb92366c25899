// Package raftnode runs the Raft library's node such that it can be reopened.
//
// # Guarantees
//
//  1. Every future of a Node is answered, also if the node is reopened meanwhile. Reopen waits for
//     all futures.
//  2. Observers stay registered over a reopen. A heartbeat that arrives meanwhile is answered.
//
// # What may not be assumed
//
// After a reopen an earlier channel of LeaderCh delivers nothing more; see Reopened.
package raftnode
