// Package transport carries all connections between nodes, and between clients and nodes, over one
// port: it verifies the identity of the other side and passes each connection to the listener for
// its purpose.
//
// # Guarantees
//
//  1. A connection is used only after both sides have finished the handshake: with TLS 1.3, each
//     has a certificate of the cluster, and a dialed node is the one that was meant. Without TLS,
//     only loopback addresses are dialed.
//  2. A Raft connection comes from a member. An open one is closed within a second after its node
//     was removed, its certificate has expired or it is 10 minutes old.
//  3. Handshakes, connections of each kind and connections of one client are bounded.
//  4. After an [UnreachableError] nothing was sent.
//
// # What may not be assumed
//
//   - That a call may be made because the connection is open: package cluster authorizes calls.
package transport
