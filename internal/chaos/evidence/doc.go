// Package evidence is what a run of chaos leaves behind, all that a verdict may
// rest on: what clients called and were answered, what activities said that they
// did, what each node had in the end, which processes ended, and which faults
// there were. All times are of one clock, the harness's, since the run began.
package evidence
