// Package detour lets package clustertest intercept the connections between nodes: a node that is
// started with a route in its context dials other nodes where the route says. Nothing outside
// cluster can import the package, so no production program can use it.
package detour
