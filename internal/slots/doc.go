// Package slots says which Raft group keeps an instance: its ID falls into one of a
// fixed number of slots, and each group holds a stretch of them. All of it is on disk
// for ever, in so far as instances are where it says.
package slots
