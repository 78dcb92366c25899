// Package worker runs the bodies of attempts in the slots of a node, for leaders on other nodes and
// for the partitions that the node leads itself.
//
// It guarantees:
//
//  1. While the worker keeps an attempt, it does not run it again if this or a later leader assigns
//     it again. After a cancellation it runs the attempt again only when the canceled body has
//     returned or was abandoned.
//  2. A result is kept, and offered in each session, until a leader acknowledges it or cancels the
//     attempt.
//  3. An attempt keeps its slot until its body has returned, even if it is canceled, or until its
//     CancelGrace has passed after the cancellation: then its body is abandoned. At most
//     [Config].Slots other bodies run at once, and of each name at most its limit.
//  4. A body that panics or ends its goroutine frees its slot.
//
// A body that ignores its context keeps running, because goroutines cannot be ended.
//
// Callers must not assume that a result is sent in the session in which its attempt was assigned,
// or that results and attempts survive the end of the process.
package worker
