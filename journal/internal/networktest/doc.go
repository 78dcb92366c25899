// Package networktest has networks in memory for tests of the journal. On a Flaky network, nodes
// can be isolated, paused and stalled.
package networktest
