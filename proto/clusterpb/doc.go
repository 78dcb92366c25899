// Package clusterpb holds the schemas of what the nodes of a cluster say to
// each other.
//
// It promises that two nodes whose protocol versions differ by one understand
// each other. Nothing in it is ever kept on disk.
package clusterpb
