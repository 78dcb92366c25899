// Package activity schedules the activities of the partitions that a node leads: their attempts,
// retries, timeouts and ends.
//
// It guarantees:
//
//  1. At most one attempt of an activity counts at a time. The first end of that attempt decides
//     its outcome: a result, an error, a timeout, a completion from outside
//     ([Partition.Complete]) or a cancellation. What the body returns later is dropped.
//  2. An attempt begins in a free slot of this node if there is one; with [Spread] only while
//     less than an eighth of its slots is in use. Otherwise it begins on the worker with the
//     smallest share of its slots in use. A leader that is exempt runs only what no other worker
//     serves. Tasks of one name and tag begin in the order of their schedule.
//  3. If two results arrive for one attempt, the first counts.
//
// Callers must not assume that an activity runs once: a new leader, or the loss of a worker, may
// begin an attempt again under the same number.
package activity
