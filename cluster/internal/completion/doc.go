// Package completion serves completions of activities by signed tokens over HTTP.
//
// # Guarantees
//
//  1. A body is read only after the signature and the expiry of the token were verified, if this is a
//     node.
//  2. At most 128 requests are served concurrently, 4 for one instance, each with a body of bounded
//     size that arrives within 10 s and a call of at most 10 s. Further requests are rejected
//     immediately.
//  3. No answer contains a token or an error of the cluster.
//
// # What may not be assumed
//
//   - That a token is valid because Verify accepts it: the leader decides when it records the
//     completion.
package completion
