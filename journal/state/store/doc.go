// Package store says what a state machine asks of the database below it. It
// links none, so that whoever keeps everything in memory pays for none.
//
// # Guarantees of a Store
//
//  1. It is a map from keys to values, in order of the bytes of the keys, which
//     only Write and Install change.
//
//  2. A Write is whole or not at all, for readers and after a crash. After a crash
//     at any moment the store holds what it held behind one Write, and none before
//     the last that Sync has returned for. Whatever else it takes to go on from
//     there is its user's to keep: a store need not have a log.
//
//  3. Its first error is its last. Behind it nothing reaches the files, and every
//     call that writes returns that *Error. What the error says is damaged is
//     marked, so that nobody opens it again.
//
// Any number of goroutines may read. One at a time may write, sync, make a
// checkpoint, install or close.
package store
