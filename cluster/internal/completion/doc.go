// Package completion serves completions of activities by signed tokens over HTTP.
//
// # Guarantees
//
//  1. A body is read only after the form of the token was checked and, if this is a node, its
//     signature and its expiry were verified.
//  2. At most 128 requests are served concurrently, each with a body of bounded size that arrives
//     within 10 s and a call of at most 10 s. On a node, 4 of them are for one instance. On a
//     client without a node, 4 are for one token, and 32 from one remote address, or one IPv6
//     network of 64 bits. Further requests are rejected immediately.
//  3. No answer contains a token or an error of the cluster.
//
// # What may not be assumed
//
//   - That a token is valid because Verify accepts it: the leader decides when it records the
//     completion.
//   - That forged tokens cost a client without a node nothing: it reads their bodies and passes
//     them to a node. Requests with forged tokens from four addresses can occupy all 128 slots, and
//     third parties behind one proxy share the 32 of its address. Serve completions on a node if
//     that matters.
package completion
