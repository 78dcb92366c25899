// Package replay is the API for writing durable orchestrations. An orchestration is an ordinary Go
// function. The engine records its durable calls, so the function continues where it was after a
// crash.
//
// Declare each handle once and bind a function body to it:
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
//  1. An orchestration sees the results of its operations in the order of its
//     history, live and on every replay.
//  2. An operation is scheduled when it is called, not when it is awaited. Its
//     effect begins only after its schedule is committed.
//  3. Coroutines of one instance run one at a time, in an order that depends only
//     on the history. Orchestration code needs no locks.
//  4. The code receives the decoded copy of each recorded value, live and on
//     replay. The same holds for the error of an operation.
//  5. Code that disagrees with its history is detected at the first event that
//     differs (see [Mismatch]). The history is never overwritten.
//  6. A panic in orchestration code fails only that instance and records the stack.
//  7. A value that is larger than the cluster allows (by default [PayloadMax]), or not of the
//     handle's type, causes a [*PayloadError], live and on replay. An execution keeps the bound
//     with which it began.
//  8. A message to another instance ([EventHandle.SendTo], [CancelInstance]) is recorded there
//     once, or the call returns an error.
//  9. With a [Codec], the engine records, logs and shows (in a [Mismatch], for
//     example) payloads and errors of user code only in encoded form or by size.
//
// Callers must not assume:
//
//   - that orchestration code runs once. It runs again whenever the instance is
//     loaded into memory, so it must be deterministic: no clock except
//     [Context.Now], no randomness, no goroutines, no I/O outside activities;
//   - that orchestration code may start goroutines. A durable call on such a goroutine ends it and
//     stalls the instance (see [ForeignGoroutine]);
//   - that a future or a [Semaphore] may be used by another execution. That
//     execution stalls (see [ForeignFuture]);
//   - that orchestration code may block outside durable calls. The instance makes
//     no progress meanwhile. If the instance is ended, the goroutine remains until
//     the code returns;
//   - that an activity runs once. It runs at least once;
//   - that deferred functions run only at the end. They also run when an instance
//     is evicted from memory; then every durable call returns [ErrEvicting].
//
// The package holds what authors write with. Package engine executes it; nodes, tests and tools use
// that. Methods named Host are for package engine. The package imports only the standard library,
// so a package of orchestrations builds neither the engine nor protobuf.
package replay
