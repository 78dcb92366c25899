// Package server receives the calls of other nodes and of remote clients over gRPC.
//
// # Guarantees
//
//  1. Only members, or any local peer without TLS, open streams.
//  2. Calls in progress end when the server is closed, and Close waits for their handlers.
//  3. With a [Recoverer], a panic in a call fails only that call.
//
// # What may not be assumed
//
//   - That a caller has the right to make its call: the [Node] decides.
package server
