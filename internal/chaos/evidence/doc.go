// Package evidence defines what a run records. Checks use nothing else. It records calls and their
// answers, what activities reported, the final state of each node, the ends of processes, and the
// faults. All times are durations since the run began, by the harness's clock.
package evidence
