// Package clusterpb defines the schemas of the messages between the nodes of a cluster. Two nodes
// whose protocol versions differ by at most one understand each other. These messages are never
// kept on disk.
package clusterpb
