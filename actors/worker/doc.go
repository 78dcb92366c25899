// Package worker runs attempts for the leaders of other nodes.
//
// It guarantees:
//
//  1. While the worker keeps an attempt, it does not make it again if this or a later leader
//     assigns it again.
//  2. A result is kept, and offered in each session, until a leader acknowledges it or cancels the
//     attempt.
//  3. An attempt keeps its slot until its body has returned, even if it is canceled.
//
// Callers must not assume that a result is sent in the session in which its attempt was assigned,
// or that results and attempts survive the end of the process.
package worker
