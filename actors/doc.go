// Package actors runs live instances: those that have an actor in memory. The actor owns the
// history and the cursor of its instance. The package also fires timers and delivers messages
// between instances. Package activity schedules activities.
//
// The package guarantees:
//
//  1. [Partition.Deliver] is the only way to send a message to an instance. An instance takes
//     messages in the order of delivery, up to 1,024 in one turn. While it is stalled it takes only
//     a termination.
//  2. Effects follow the commit: an activity, a timer or a child starts, and a caller gets an
//     answer, only after the events that record it are committed.
//  3. Every message is answered once. An answer without an error means that the message is
//     recorded, or that nothing is left to record for it.
//  4. The actors repeat their own messages (completions, timers, starts and ends of children, what
//     instances send each other) until these are answered without an error or the partition is
//     closed. [System.Lead] recovers all open operations from the journal, which suffices after a
//     crash.
//  5. A panic in an instance stops only that instance's actor. The next message makes a new
//     actor, which loads the instance from the journal.
//  6. At most one attempt of an activity counts at a time. The first end of that attempt decides
//     its outcome: a result, an error, a timeout, a completion from outside
//     ([Partition.CompleteActivity]) or a cancellation. What the body returns later is dropped.
//  7. An attempt runs on this node or on a worker registered through [Partition.ServeWorker].
//     The worker keeps a result until this or a later leader says that it is recorded or no
//     longer wanted. If two results arrive for one attempt, the first counts.
//  8. An external message rejected with a [BusyError] has had no effect. Completions,
//     timers, starts and ends of children are never rejected.
//
// Callers must not assume that an activity runs once, that a message is recorded before its
// answer says so, or that an idle instance is in memory.
package actors
