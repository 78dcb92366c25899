// Package detour lets package clustertest stand between the nodes of a cluster:
// a node that is started with a detour in its context makes its connections to
// other nodes where that says. Nothing outside cluster can import it, so that
// there is no way to take one in production.
package detour
