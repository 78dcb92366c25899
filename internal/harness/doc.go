// Package harness lets test harnesses of this module run a node under conditions that Config does
// not offer, because no application should use them: a wrong wall clock, or snapshots every few
// seconds. The harness starts the node with Overrides in its context.
package harness
