// Package report makes the reports of nodes: what a node knows of itself, for the people who
// operate it. Each node makes its own in memory. A client that wants those of all nodes asks each
// of them.
package report
