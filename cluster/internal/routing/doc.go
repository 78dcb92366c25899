// Package routing sends calls to the leader of a partition: starts in batches, and calls that end
// when another node leads.
//
// # Guarantees
//
//  1. A call in flight to a former leader is canceled, so it does not wait for a node that hangs.
//  2. Each start in a batch gets its own answer, as soon as the leader has it. A start whose caller
//     is gone is not sent.
//
// # What may not be assumed
//
//   - That a canceled call had no effect: its outcome is unknown.
package routing
