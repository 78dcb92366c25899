// Package measure is how the benchmarks measure: what a run comes to ([Result]
// with its [Figure]s and [Histogram]s), what it allocates ([Meter]), on which
// machine ([Machine]), and in which order things are run ([Rounds]).
//
// It knows nothing of what is measured: the cases of package cases, the
// yardsticks of package yardstick and whatever they are compared with all come
// as [Subject]s.
package measure
