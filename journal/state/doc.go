// Package state is the replicated state machine of a journal. It holds the histories of
// all instances, the index derived from them, and a few records that are not in any
// history.
//
// The machine is deterministic: it reads no clock, and no result depends on map order.
// Replicas that apply the same records have the same state. The machine keeps all of it
// in memory (New), or in a store on disk that may exceed memory (Open). Both show the
// same state. Package store declares the interface of that store; this package imports no
// database.
//
// # Guarantees
//
//  1. An append is applied whole or not at all. Its epoch must be the current one, and
//     its first event_id must be the last of its execution plus one.
//
//  2. A history has no gaps. It begins with OrchestrationStarted and ends with a
//     terminal event; nothing follows that event. One append carries both the end of a
//     continued execution and the first events of the next.
//
//  3. A completion or CancelRequested names an open operation of its execution, and their
//     event types match. An operation has at most one completion or CancelRequested.
//
//  4. The index is derived from the histories alone. Restoring a snapshot or opening a
//     store yields the same index, attempts and chained starts.
//
//  5. Data returned to a reader never changes afterwards.
//
//  6. An attempt is recorded only if its epoch is the current one and its operation is an
//     open activity. Its failure count never decreases.
//
//  7. Only a purge removes anything: only in the current epoch, and only instances that
//     have ended. Purged instances stay purged.
//
//  8. After a crash at any moment, a store holds the state after one entry of the log.
//     Applied returns the index of that entry. It is not below any index for which Flush
//     has returned nil.
//
//  9. Every value read from a store is verified by its checksum, and events by the hash
//     chain of their instance. After a mismatch no reader sees the data; the store has
//     failed and must be discarded.
//
// # Open operations
//
// An activity, timer, child or subscription is open from its scheduling event to the
// event that completes it, cancels it (CancelRequested) or ends the execution. An
// ExternalEvent completes a subscription to its name: the k-th event of a name completes
// the k-th subscription to it that is not canceled. Either may be recorded first. The
// events in the inbox of OrchestrationStarted count first. The order of the history alone
// decides what is open: a CancelRequested after the completion of its operation is
// rejected. (The one exception: see CancelRequested.event_name in journal.proto.)
//
// # Records outside the histories
//
// Attempts: the latest Attempt record of each open activity. Attempts are not events,
// and are removed when the activity closes.
//
// Conditions: the latest recorded reason why a running instance does not proceed. A
// SetCondition is rejected if the history has changed since the condition was computed.
// Every append to the instance removes its condition.
//
// Chained starts: an OrchestrationChained whose instance does not exist when it is
// appended waits until any start creates an instance with that ID. The first chained
// start for an ID counts. It remains after the end and the purge of the requesting
// instance. An instance that was started and then purged is not started again. A
// SubOrchestrationScheduled with the close policy "abandon" is stored in the same way:
// the child is started even if its parent has canceled it or has ended.
//
// # Copies
//
// CopyHistory begins an execution with the first events of another one, whose bytes each replica
// reads from its own state; see copyCommand. Event 1 gets the identity of the new run, and a
// HistoryCopied follows the last copied event. What is open there is open in the new execution. A
// rejected copy is a *CopyError, if its source or target is the reason. Nothing else may be applied
// while the source is read: 60,000 events of 1 KB take 0.2 s.
//
// # Sets for a new leader
//
// The machine maintains sets of running instances that a new leader reads without knowing
// IDs, at a cost proportional to the set: those with open operations (OpenOperations),
// those of which no code has run yet, or none since the history was copied (Unbegun), those with a
// condition (WithCondition), and children. Orphans yields the children whose parents no longer
// wait: the operation in the child's parent reference is not open in the parent's latest execution.
// An abandoned child is an orphan for as long as it runs. So is a child whose parent is in another
// partition, since this machine does not have the parent.
//
// # Queries
//
// Query and CountBy find instances by what package index lists. Their index is derived from headers
// alone and written with them, so it is in every checkpoint; no digest and no snapshot covers it.
// What is not flushed yet is found in memory. An older store is indexed by its first flushes, which
// follow each other; until then a query examines every instance. So is a store that an older build
// has changed since.
//
// # Limits
//
// Timestamps are not checked. The machine reads event bodies only where the index needs
// them: it keeps an event with a malformed body as it is, and decoding that event
// fails. An iteration is not a consistent view: each item is current when it is
// yielded. Only Digest, Snapshot and Checkpoint show one moment.
//
// After a purge an ID is as if it had never been used, and executions count from 1 again.
// References carry the incarnation of a run, so a reference to a purged run (a child's
// parent, a completion's source) never names its successor. A run that began before
// protocol 3 has no incarnation, so a reference to it can name its successor.
//
// # Store format
//
// After a crash a store returns to its last flush, and the Raft log holds the rest;
// package pebblestore describes the files. Keys are ordered by their bytes. Integers in
// keys take eight bytes, big-endian. Every value ends with the CRC-32C of its key and
// of the preceding value (4 bytes, little-endian). Before that checksum a value holds:
//
//	'm'                               meta: fields 1 format (1), 2 index and 3 term of the last entry, 4 epoch,
//	                                  5 instance numbers assigned, 6 an encoded PartitionMetadata, 8 generation of the
//	                                  index that agrees with the rest; absent after a flush by a build without index, or
//	                                  with one in the first format, which has its generation in field 7
//	'i' ID                            header of an instance, see below
//	'h' number execution event_id     chunk of a history, from that event on: fields
//	                                  1 hash before it (fixed64), 2 hash of its last event (fixed64), 3 event, repeated
//	'b' ID, 'u' ID, 'c' ID, 'd' ID    empty: the instance is busy, unbegun, a running child, has a condition
//	't' fire_at execution event_id ID empty: a timer is open; fire_at with its highest bit inverted
//	'x' ID                            an encoded ChainedStart of that instance
//	'n'                               index: fields 1 generation, 2 last ID added, 3 complete, 4 format
//	'n' facet                         fields 1 state, 2 name, 3 version, 4 instances; facet takes four bytes
//	'o' facet ID, 'p' facet created ID, 'q' facet updated ID, 'r' facet next_timer ID, 's' list order facet [time] ID
//	                                  entries of the index and their values: see package index
//
// Fields are those of a protobuf message, varints unless stated otherwise. Fields that
// are 0 or empty are omitted. A header has the fields:
//
//	1 number  2 chunks of all executions  3 hash of the last event (fixed64)
//	4 latest execution  5 its last event_id  6 status  7 suspended
//	8 name (text)  9 version (text)  10 event_id of the last StatusSet
//	11 tag, repeated: {1 key, 2 value}  12 first execution of the run
//	13 parent: an encoded OperationRef  14 request ID (text)  15 created  16 updated
//	17 open operation, repeated: {1 event_id, 2 event type, 3 fire_at, 4 child's ID or name (text)}
//	18 buffered external events, repeated: {1 name, 2 count}  19 an encoded Attempt, repeated
//	20 incarnation of the run  21 an encoded Condition
//	22 attribute, repeated: {1 name, 2 an encoded AttributeValue}
//	23 value of a key-value map, repeated: {1 map, 2 key, 3 event_id that holds it}
//	24 summary of the run (text)  25 error code (text)  26 generation of the index that has its entries
//	27 event_id of the last HistoryCopied
//
// An open operation also has the fields 5 name (text) and 6 since. Headers of older builds have no
// field above 24.
//
// An instance gets a number, counted from 1, when it is first written. The keys of a
// history begin with that number, so new histories are written in key order. Numbers are
// local to one database. A chunk holds the events that were new when the instance was
// written, up to 64 KiB, or one larger event. A store of another format is rejected with a
// *FormatError.
//
// The hash of an event is the XXH64 of its bytes, seeded with the hash before it. An
// execution begins with the XXH64 of its number (8 bytes, big-endian) and the ID, seeded
// with the last hash of the previous execution, or 0 for the first. The last hash of an
// instance therefore covers everything that it has recorded.
//
// # Snapshot format
//
//	snapshot = frame(SnapshotHeader) frame(InstanceSnapshot)* frame(ChainedStart)* trailer
//	frame(m) = length sealed(m)
//	length   = unsigned varint: the bytes of sealed(m), never 0
//	sealed   = 0x0A, varint length of m, m, 0x15, CRC-32C of m (4 bytes, little-endian)
//	trailer  = 0x00, CRC-32C of all bytes before it, the 0x00 among them (4 bytes, little-endian)
//
// Here m is the encoded protobuf message, and sealed is the message ChecksummedRecord.
// The header holds the number of instances. They follow in ascending byte order of their
// IDs, each with its executions in ascending order, each execution as one Segment from
// event 1. The waiting chained starts follow, in ascending order of the instances to
// start. Nothing follows the trailer. This is format 2; format 1, which has no attempts
// and no chained starts, can be read too.
package state
