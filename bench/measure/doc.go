// Package measure measures: results of a run ([Result] with [Metric]s and [Histogram]s),
// allocations ([Meter]), the machine ([Machine]), and the order of runs ([Plan]).
//
// It knows nothing of what is measured: cases and baselines are [Subject]s.
package measure
