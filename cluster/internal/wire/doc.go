// Package wire defines how nodes report a failed call to each other: codes, and whether the call
// may be sent again.
//
// # Guarantees
//
//  1. A failure with NotExecuted had no effect and will have none.
//  2. Codes never change their meaning. A node treats an unknown code as an internal error.
//
// # What may not be assumed
//
//   - That a failure without NotExecuted had an effect.
package wire
