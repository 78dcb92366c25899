// Package clock keeps the cluster time: the time of timers and timestamps, passed from leader to
// leader.
//
// # Guarantees
//
//  1. The time never goes back on a node that leads, whatever happens to its wall clock. It runs at
//     the rate of the monotonic clock, or faster by one part in 2,000 while it is behind the
//     leader's wall clock.
//  2. No leader is ahead of its predecessor. A new leader's time is adopted even if it is behind.
//  3. After an outage of all nodes, no single wrong wall clock advances the time.
//
// # What may not be assumed
//
// A node that has received no leader's time since its start continues the time that was recorded
// last. A damaged or missing sample on disk is no error: the wall clock alone is used then.
package clock
