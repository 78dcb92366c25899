// Package clustertime has a type for cluster time, so that it cannot be confused with local time.
//
// A leader records cluster time: see Journal.Now of package journal. It may differ by hours from
// the wall clock of any node. A [Time] must not be compared with a [time.Time] or subtracted from
// one; the compiler rejects both. The duration until a Time is a [time.Duration], which any clock
// can measure.
package clustertime
