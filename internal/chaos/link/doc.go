// Package link connects the nodes of a cluster so that traffic can be cut or lost in each direction
// separately. A [Switch] joins nodes in network namespaces, where the kernel loses packets. A
// [Mesh] joins nodes on loopback.
//
// In a Mesh, each node is reached at the address of a proxy. A proxy cannot lose a TCP packet. Data
// on a cut direction waits and is delivered when the cut is healed; a lost packet delays all data
// after it. The proxy accepts a connection that is opened through a cut and does not forward it.
// The proxy asks the kernel which process, and so which node, has opened a connection. So it need
// not understand the bytes, and they may be encrypted. This works on Linux only.
package link
