// Package worker runs attempts for the leaders of other nodes.
//
// It guarantees:
//
//  1. An attempt that the leader assigns again, or that a later leader assigns, is not made twice.
//  2. A result is kept, and offered in each session, until a leader acknowledges it.
//  3. An attempt keeps its slot until its body has returned, even if it is canceled.
//
// Callers must not assume that a result arrives: the next leader asks for it in a session of its
// own.
package worker
