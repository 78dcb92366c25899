// Package host is the contract between package replay, which authors use, and package engine, which
// executes their code: interfaces that replay calls and engine implements, and the data that the
// two exchange.
//
// The package guarantees:
//
//  1. It imports only the standard library. So a package of orchestrations builds neither the
//     engine nor protobuf.
//  2. Values of user code cross it as they are. Only the engine encodes, decodes and records.
//
// Callers must not assume that a method of [Scope] or [Execution] returns: a call that is not
// allowed where it is made ends its goroutine (see [Execution.Check]).
package host
