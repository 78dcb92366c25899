// Package replay is what an author of durable orchestrations writes with: an
// orchestration is an ordinary Go function whose calls are remembered, so that
// it goes on where it was after any crash.
//
// Handles are declared, bodies are bound:
//
//	var (
//		Greet = replay.Activity[string, string]("greet")
//		Hello = replay.Orchestration[string, string]("hello")
//	)
//
//	func hello(ctx *replay.Context, name string) (string, error) {
//		return Greet.Call(ctx, name)
//	}
//
//	definitions := []replay.Definition{Greet.Bind(greet), Hello.Bind(hello)}
//
// The package guarantees:
//
//  1. An orchestration sees the results of its operations in the order in which
//     they stand in its history, live and on every replay alike.
//  2. An operation is scheduled when it is called, never by awaiting it, and its
//     effect begins only after its schedule is committed.
//  3. Coroutines of one instance run one at a time, in an order that depends on
//     the history alone: orchestration code needs no locks.
//  4. What the code gets is the decoded copy of what was recorded, live as on
//     replay; the error of an operation likewise.
//  5. Code that disagrees with its history is found at the first event that
//     differs (see [Mismatch]); the history is never written over.
//  6. A panic in orchestration code fails that instance with its stack, and
//     nothing else.
//  7. A value that does not fit, because it is larger than [Payloads.Max] or
//     not of the type that a handle says, is a [*PayloadError], live and on
//     replay alike.
//  8. With a [Codec], the engine records, logs and shows (in a [Mismatch], for
//     example) no payload and no error of user code as it is.
//
// What may not be assumed: that orchestration code runs once (it runs again
// whenever the instance is brought back to memory, so it must be
// deterministic: no clock but [Context.Now], no randomness, no goroutine of its
// own, no I/O outside activities); that it may start goroutines (a durable call on
// one ends that goroutine and stalls the instance, see [CalledOutside]); that a future or a [Semaphore]
// may be kept outside of its execution (another that uses it stalls, see [ForeignFuture]); that it
// may block anywhere but in a durable call (its instance does nothing meanwhile,
// and when it has to end it is ended without the code: the goroutine stays behind
// until the code returns); that an activity runs once (it runs at least once);
// that deferred functions run only at the end (they run, too, while an instance is
// dropped from memory, where every durable call returns [ErrDehydrating]).
//
// The package imports neither Raft nor an actor library nor gRPC.
package replay
