// Package transport connects Raft with the nodes of a partition.
//
// # Guarantees
//
//  1. A malformed or misdirected message never reaches Raft: Verified checks the sender of each
//     message, and that entries have no gaps.
//  2. While the node is muted, nothing leaves it. After Streams.Disconnect no connection exists.
//  3. A follower commits only entries that a message of the leader has compared.
//  4. A follower learns of the last commit within about a millisecond (commit notices).
//  5. A follower that returns gets entries at its first answer to a heartbeat: Acked hides failures
//     of messages about entries from Raft, and sends probes.
//  6. Acks counts an answer as a confirmation only for the RPC that it answers, by when it began.
//  7. Stuck connections are closed after IOTimeout, with all idle ones to the same node.
//
// # What may not be assumed
//
// A message may be sent twice. The name in a message is trusted if neither the connection nor a
// handshake proves it.
package transport
