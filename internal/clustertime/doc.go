// Package clustertime has the type of cluster time, so that it cannot be mixed up with
// the time of a machine.
//
// Cluster time is what a leader records: see [Journal.Now] of package journal. It may be
// hours off the wall clock of any node. So a [Time] is never compared with a
// [time.Time], nor subtracted from one; the compiler refuses both. What is left until a
// Time is a [time.Duration], and that may be waited for by any clock.
package clustertime
