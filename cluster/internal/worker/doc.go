// Package worker keeps the streams over which leaders assign activities: the side of a worker, on a
// node or in a client, and the leader's list of the workers that are no nodes.
//
// # Guarantees
//
//  1. A [Loop] keeps at most one stream, to the leader that is known, and opens another when the
//     stream ends or another node leads.
//  2. When the context of [Loop.Work] ends with replay.ErrNodeStopping, the leader is told that the
//     worker drains before the stream ends.
//  3. A [Connected] holds at most its maximum of workers.
//
// # What may not be assumed
//
//   - That a message that was sent arrived: the worker repeats results in the next session.
package worker
