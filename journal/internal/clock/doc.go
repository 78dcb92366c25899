// Package clock keeps the cluster time: the time of timers and timestamps, passed from leader to
// leader.
//
// # Guarantees
//
//  1. The time never goes back on a node that leads, whatever happens to its wall clock. It runs at
//     the rate of the monotonic clock, or faster by one part in 2,000 while it is behind the
//     leader's wall clock.
//  2. No leader is ahead of its predecessor. A new leader's time is adopted even if it is behind.
//  3. After an outage of all nodes, one wrong wall clock does not advance the time if another voter
//     answers the new leader in time.
//
// # What may not be assumed
//
// That the time of a node is up to date before it has heard from a leader: it continues the time
// that was recorded last. That the sample on disk exists: without it, the wall clock alone is used.
package clock
