// Package state is the replicated state of a journal: the histories of all
// instances, the index of them that everything else reads, and the little that
// stands beside the histories.
//
// It is a state machine that has no clock and decides nothing by the order of a
// map, so that replicas which apply the same records are the same. It keeps
// everything in memory (New), or in a store on disk that may be larger than
// memory (Open); what it shows is the same. What it asks of a store is in package
// store; it links none itself.
//
// # Guarantees
//
//  1. An append is applied whole or not at all, and only if its epoch is the one
//     in force and its first event_id is the last of its execution plus one.
//
//  2. A history is gapless, begins with OrchestrationStarted and ends with a
//     terminal event after which nothing comes. A continued execution and the
//     first events of its successor come in one append.
//
//  3. A completion or CancelRequested names an operation of its execution that
//     is open, and of its kind; so an operation has at most one of either.
//
//  4. The index is derived from the histories and from nothing else. Restoring
//     a snapshot yields the same index, and the same attempts and chained starts.
//     So does a store: what it keeps of the index is what the histories say.
//
//  5. What a reader was given never changes under it.
//
//  6. An attempt is kept only if its epoch is the one in force and its operation
//     is an open activity, and never with fewer failures than before.
//
//  7. Only a purge removes anything, only of its own epoch, and only instances
//     that have ended. What was purged stays purged.
//
//  8. After a crash at any moment a store holds the state behind one entry of the
//     log, which Applied names, and none before the last that Flush returned for.
//
//  9. What is read from a store is checked against a checksum of its own, and
//     events against the chain of their instance. What does not check is shown to
//     nobody: the store fails, and must be discarded.
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
// Conditions: why a running instance does not go on, as the last record says it. A record
// is refused unless the history is as it was when that was found. Every append to the
// instance removes its condition.
//
// Chained starts: an OrchestrationChained whose instance does not exist when it
// is appended waits until one of that ID is started, by whomever. The first that
// asks for an ID counts. Neither the end of the instance that asked nor its purge
// takes the chained start back; an instance that was started and purged is not
// started again. A SubOrchestrationScheduled whose close policy is to abandon the
// child is kept in the same way: it is started even if its parent has given it up
// or has ended meanwhile.
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
// is found when it is decoded. An iteration is no moment: each of its items is as
// it is when its turn comes; only Digest, Snapshot and Checkpoint are of one.
//
// A purge makes an ID as if it had never been used, and executions are counted
// from 1 again. References carry the incarnation of a run, so one to an operation of the
// purged instance (a child's parent, a completion's source) names none of its successor.
// A run that began before protocol 3 has no incarnation: there it may.
//
// # The bytes of a store
//
// A store falls back on its last flush, and the log of Raft has the rest; package
// pebblestore has the files. Keys are ordered by their bytes; integers in keys are
// eight bytes, big-endian. Every value ends with the CRC-32C of its key and of the
// value before it (4 bytes, little-endian). What comes before that:
//
//	'm'                               meta: fields 1 format (1), 2 index and 3 term of the last entry, 4 epoch,
//	                                  5 numbers given to instances, 6 an encoded Group
//	'i' ID                            header of an instance, see below
//	'h' number execution event_id     chunk of a history, from that event on: fields
//	                                  1 link before it (fixed64), 2 link of its last event (fixed64), 3 event, repeated
//	'b' ID, 'u' ID, 'c' ID, 'd' ID    empty: the instance is busy, unbegun, a running child, has a condition
//	't' fire_at execution event_id ID empty: a timer is open; fire_at with its highest bit inverted
//	'x' ID                            an encoded ChainedStart of that instance
//
// in which fields are those of a protobuf message of varints, where nothing else
// is said, and those that are 0 or empty are left out. A header has the fields
//
//	1 number  2 chunks of all executions  3 link of the last event (fixed64)
//	4 latest execution  5 its last event_id  6 status  7 suspended
//	8 name (text)  9 version (text)  10 event_id of the last StatusSet
//	11 tag, repeated: {1 key, 2 value}  12 first execution of the run
//	13 parent: an encoded OperationRef  14 request ID (text)  15 created  16 updated
//	17 open operation, repeated: {1 event_id, 2 arm, 3 fire_at, 4 child's ID or name (text)}
//	18 arrivals that wait, repeated: {1 name, 2 count}  19 an encoded Attempt, repeated
//	20 incarnation of the run  21 an encoded Condition
//
// The number of an instance is given when it is first written, counted from 1, so
// that histories are written in order of their keys whatever the IDs; it is this
// database's own. A chunk holds the events that were new when the instance was
// written, up to 64 KiB, or one that is larger. A store of another format is
// refused with a *FormatError.
//
// The link of an event is the XXH64 of its bytes, seeded with the link before
// it. Before the first event of an execution stands the XXH64 of the execution's
// number (8 bytes, big-endian) and the ID, seeded with the last link of the
// execution before, 0 before the first. So the last link of an instance stands
// for all that it has recorded.
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
