// Package link stands between the nodes of a cluster: what passes from one node to
// another can be cut or lost, in each direction for itself. A [Switch] joins nodes in
// network namespaces, where the kernel loses packets; a [Mesh] nodes on loopback.
//
// In a Mesh each node is reached at the address of a proxy. That cannot lose a
// packet of TCP: what is cut waits, as it would for being sent again, and goes on
// when the cut is healed; a lost packet is a pause that everything behind it waits
// for. A connection that is opened through a cut is accepted by the proxy and comes
// no further. Which node has opened a connection is known by the process that has the other
// end, of which the kernel tells: the bytes need not be understood, and so may be
// encrypted. Linux only.
package link
