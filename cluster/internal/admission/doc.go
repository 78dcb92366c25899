// Package admission decides whether a call may be sent to the leader now, must wait, or is
// rejected, and when a rejected call is sent again.
//
// # Where each bound applies
//
// On the node or remote client that makes a call, in this order:
//
//   - request.go of package cluster rejects requests that are too long, at the caller and again at
//     every node that receives them.
//   - [StartLimiter], for starts only: as many per interval as the leader accepts. Up to 65,536
//     wait; while more arrive than are admitted, all but 128 are rejected after 2 s ([BoundQueue]).
//   - [CallLimiter]: 1,024 calls per partition in flight to its leader, or waiting for one. Others
//     wait 0.5 s for a slot ([BoundCalls]).
//   - [BatchQueue]: starts and messages that wait to be sent together. The CallLimiter bounds
//     starts, and open operations bound messages.
//
// On the node that receives a call:
//
//   - package transport: connections, concurrent handshakes, bytes of a request.
//   - package actors: turns and messages in flight per partition and per instance, and the delay of
//     starts (actors.BoundInFlight, BoundInstance, BoundDelay).
//   - package journal: records that wait for an entry (actors.BoundJournal).
//   - [AnswerLimiter]: 256 MiB of long answers in flight ([BoundAnswers]).
//
// A [Retrier] sends a rejected call again until its context ends; a [RetryBudget] bounds how many
// do so as soon as the leader allows.
//
// # Guarantees
//
//  1. A rejection says that nothing was done, which bound rejected, and when to retry.
//  2. A call is sent again only if that is safe: requests carry request IDs.
//  3. After an answer that may hide an effect, no later rejection is reported as the outcome.
//
// # What may not be assumed
//
//   - That starts are admitted in the order of arrival: a long queue serves the newest first.
package admission
