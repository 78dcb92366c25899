// Package store declares what a state machine needs from the database below it. It imports no
// database, so that a machine that keeps everything in memory needs none.
//
// # Guarantees of a Store
//
//  1. A store is a map from keys to values, in byte order of the keys. Only Write and Install
//     change it.
//
//  2. A Write is atomic, for readers and after a crash. After a crash at any moment the store
//     holds its contents after some Write. Every Write before the last successful Sync is in
//     them. A store need not have a log: its user must be able to repeat later Writes.
//
//  3. A store keeps its first error. After that nothing reaches the files, and every call that
//     writes returns that *Error. If the error means damage, the store is marked as damaged, and
//     opening it fails.
//
// Any number of goroutines may read. Only one at a time may write, sync, make a checkpoint,
// install or close.
package store
