// Package certificate makes an authority and certificates of nodes and clients in the form that a
// cluster requires (cluster/docs/security.md): the owner is named by a URI among the alternative
// names, nodes may act as server and client, clients as client.
//
// It is for trying things out: the key of the authority is in the same directory, unencrypted.
package certificate
