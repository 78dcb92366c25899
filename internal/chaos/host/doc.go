// Package host is the program that chaos puts under stress: a process that
// embeds a node, with the workloads' code, and takes the calls of the harness's
// clients. It knows nothing of faults, and uses the public API alone.
package host
