// Package actors keeps instances alive: one actor for each live instance, which
// owns its history and its cursor, and around it the actors that run
// activities, ring timers and carry what instances have to say to each other.
//
// It guarantees:
//
//  1. [Partition.Deliver] is the one door into an instance. Messages to one
//     instance are taken in the order in which they were delivered, all that
//     wait in one turn.
//  2. Nothing leaves before it is committed: an activity starts, a timer is
//     armed, a child is started, a caller is answered only when the events that
//     say so are in the journal.
//  3. Every message is answered once. An answer without error means that the
//     message is recorded, or that there is nothing left to record of it.
//  4. What the actors themselves send (completions, timers, starts and ends of
//     children) is repeated until it is answered so, or until the partition is
//     closed; and what is open in the journal is taken up again by
//     [System.Lead]. No other store is needed to go on after a crash.
//  5. A panic in one instance, whosever fault, is the end of its actor and of
//     nothing else. A message to an instance that has no actor makes one, which
//     begins with what the journal has.
//  6. Of the attempts of an activity one counts at a time, and what ends it first
//     is its end: a result, an error, a limit of time, a completion from outside
//     ([Partition.CompleteActivity]), or that it was given up. What the body
//     comes to after that is dropped.
//  7. An attempt runs on this node or on one that [Partition.Employ] has brought.
//     A worker's result is kept by the worker until it is recorded or not wanted,
//     across leaders; of two that come for one attempt the first counts.
//  8. A message from outside that is refused with a [BusyError] has left nothing
//     behind. What the actors send each other is never refused.
//
// What may not be assumed: that an activity runs once; that a message is
// recorded because it was delivered (look at the answer); that an idle instance
// is in memory.
package actors
