// Package broken holds orchestrations that are broken on purpose, each in one
// way that authors fall into. The tests of replaytest and of the analyzer are
// run against them; DESIGN.md of package replaytest has the table that says who
// catches which.
package broken
