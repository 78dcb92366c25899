// Package engine executes orchestrations written with package replay: it turns the history of one
// execution and new messages into the events to append.
//
// The caller keeps an [Execution] for each instance in memory. It calls [Execution.Replay] with the
// recorded history, then [Execution.Turn] with messages, and appends the events of each [Turn]. A
// [Registry] holds the code and runs attempts of activities.
//
// The package guarantees:
//
//  1. The events of a turn depend only on the history, the messages and the time that it is given.
//     It does no I/O and reads no clock.
//  2. A replay of the history runs the same code as live turns and brings the execution to the
//     same state, or returns a [*replay.Mismatch]. It never changes the history.
//  3. Orchestration code cannot end the caller's goroutine: it runs in others, one at a time
//     for each execution. [Execution.Evict] ends them all.
//  4. With a codec, events, errors and mismatches hold values of user code only in encoded form or
//     by size.
//
// Callers must not assume:
//
//   - that the methods of an Execution may be called concurrently; only those of its [Monitor] may;
//   - that a turn has taken effect before its events are committed. If they cannot be committed,
//     the execution must be evicted;
//   - that a call returns soon: user code may block. A Monitor reports progress and can abandon the
//     execution.
//
// The package does not import Raft, an actor library or gRPC.
package engine
