// Package state is the replicated state of a journal: the histories of all
// instances, the index of them that everything else reads, and the little that
// stands beside the histories.
//
// It is a pure state machine. It has no clock, does no I/O beyond the reader
// and writer it is handed, and decides nothing by the order of a map, so that
// replicas which apply the same records are the same.
//
// # Guarantees
//
//  1. An append is applied whole or not at all, and only if its epoch is the one
//     in force and its first event_id is the last of its execution plus one.
//  2. A history is gapless, begins with OrchestrationStarted and ends with a
//     terminal event after which nothing comes. A continued execution and the
//     first events of its successor come in one append.
//  3. A completion or CancelRequested names an operation of its execution that
//     is open, and of its kind; so an operation has at most one of either.
//  4. The index is derived from the histories and from nothing else. Restoring
//     a snapshot yields the same index, and the same attempts and chained starts.
//  5. What a reader was given never changes under it.
//  6. An attempt is kept only if its epoch is the one in force and its operation
//     is an open activity, and never with fewer failures than before.
//  7. Only a purge removes anything, only of its own epoch, and only instances
//     that have ended. What was purged stays purged.
//
// # Open operations
//
// Activities, timers, children and subscriptions are open from the event that
// schedules them to the one that completes them, gives them up (CancelRequested)
// or ends the execution. A subscription is completed by an ExternalEvent of its
// name: of the subscriptions of a name that are not given up, the k-th gets the
// k-th arrival, whichever comes first in the history; what OrchestrationStarted
// carries in its inbox has arrived before everything else. "Open" is decided by
// the order of the history alone: a CancelRequested that comes after the event
// which completed its operation is refused.
//
// # Beside the histories
//
// Attempts: what the attempts of an open activity have come to, as the last
// record says it. They are no events, and are gone when the activity is closed.
//
// Chained starts: an OrchestrationChained whose instance does not exist when it
// is appended waits until one of that ID is started, by whomever. The first that
// asks for an ID counts. Neither the end of the instance that asked nor its purge
// takes the chained start back; an instance that was started and purged is not
// started again.
//
// # Who is to be looked after
//
// Three sets of running instances are kept for a new leader, who asks for them
// without knowing IDs, at the cost of what is in them: those with open
// operations (Open), those of which no code has run yet (Unbegun), and children.
// Orphans are those children whose parents do not wait any more: the operation
// that ref names is not open in the parent's latest execution. A child that was
// told to go on without its parent is an orphan for as long as it runs.
//
// # What may not be assumed
//
// Timestamps are not checked. Bodies of events are read only where the index
// needs them: an event whose body is damaged by its author is kept as it is, and
// is found when it is decoded. All of it is in memory.
//
// A purge makes an ID as if it had never been used, and executions are counted
// from 1 again. Whoever still names an operation of the purged instance (a child
// its parent, a completion its source) may name one of its successor.
//
// # The bytes of a snapshot
//
//	snapshot = frame(SnapshotHeader) frame(InstanceSnapshot)* frame(ChainedStart)* trailer
//	frame(m) = length sealed(m)
//	length   = unsigned varint: the bytes of sealed(m), never 0
//	sealed   = 0x0A, varint length of m, m, 0x15, CRC-32C of m (4 bytes, little-endian)
//	trailer  = 0x00, CRC-32C of all bytes before it, the 0x00 among them (4 bytes, little-endian)
//
// m is the encoded protobuf message; sealed is the message Sealed. The header
// says how many instances follow; they come in ascending order of the bytes of
// their IDs, each with its executions in ascending order and each of these as
// one Segment from event 1 on. Then come the chained starts that wait, in
// ascending order of the instances that they ask for. The end of the bytes
// follows the trailer. This is format 2; format 1 had no attempts and no chained
// starts, and is read as well.
package state
