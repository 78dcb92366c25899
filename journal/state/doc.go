// Package state is the replicated state of a journal: the histories of all
// instances, and the index of them that everything else reads.
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
//     a snapshot yields the same index.
//  5. What a reader was given never changes under it.
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
// # What may not be assumed
//
// Timestamps are not checked. Bodies of events are read only where the index
// needs them: an event whose body is damaged by its author is kept as it is, and
// is found when it is decoded. Nothing is removed yet, and all of it is in
// memory.
//
// # The bytes of a snapshot
//
//	snapshot = frame(SnapshotHeader) frame(InstanceSnapshot)* trailer
//	frame(m) = length sealed(m)
//	length   = unsigned varint: the bytes of sealed(m), never 0
//	sealed   = 0x0A, varint length of m, m, 0x15, CRC-32C of m (4 bytes, little-endian)
//	trailer  = 0x00, CRC-32C of all bytes before it, the 0x00 among them (4 bytes, little-endian)
//
// m is the encoded protobuf message; sealed is the message Sealed. The header
// says how many instances follow; they come in ascending order of the bytes of
// their IDs, each with its executions in ascending order and each of these as
// one Segment from event 1 on. The end of the bytes follows the trailer.
package state
