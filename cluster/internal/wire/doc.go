// Package wire holds what nodes say to each other about a call that failed: codes, and whether the
// call may be sent again.
//
// # Guarantees
//
//  1. A failure with NotExecuted had no effect and will have none.
//  2. Codes never change their meaning. A code that a node does not know is an internal error.
//
// # What may not be assumed
//
//   - That a failure without NotExecuted had an effect.
package wire
