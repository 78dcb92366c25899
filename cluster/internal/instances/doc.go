// Package instances answers the calls about instances of one partition: inputs on the leader, and
// reads from this node's replica.
//
// # Guarantees
//
//  1. A repeated input has one effect and gets the first answer, or an error that says that the
//     outcome is unknown.
//  2. A rejection that follows from a read is confirmed by a barrier, since a former leader may
//     lack what another has committed. An accepted input needs none: its append proves leadership.
//  3. A response to a read carries an index that the read reflects.
//
// # What may not be assumed
//
//   - That this package checks a request, or the right of its caller to send it: package cluster
//     does so before.
package instances
