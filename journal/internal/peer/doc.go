// Package peer names the nodes of a partition: their addresses, directories and processes.
//
// To Raft, two directories of one node are two servers. So the address of a server in Raft's
// configuration includes the identity of its directory.
package peer
