// Package discovery finds the addresses at which nodes may be: in the DNS or in a file. The
// functions that it returns are for cluster.Config.Discover and cluster.DialConfig.Discover.
//
// In Kubernetes, a headless Service makes DNS records of the pods of a StatefulSet:
//
//   - [DNS] with the name of the Service gives the addresses of the pods. Use it. The nodes may
//     advertise addresses of pods, which change, or names of pods.
//   - [SRV] gives the names of the pods, with the ports of the Service. Use it if ports differ.
//
// Set publishNotReadyAddresses in the Service: the nodes must find each other before they are
// ready.
//
// # Guarantees
//
//  1. A function returns what the DNS or the file has at the time of the call: it keeps no
//     addresses.
//  2. It returns at most [AddressesMax] addresses, the first in sorted order, each once.
//  3. It returns when its context ends, or after [Timeout].
//
// # What may not be assumed
//
// That a node is at an address, or that all nodes are returned: the DNS may lag, and an incomplete
// answer is no error. The cluster does not depend on it: nodes that see only a part of the others
// found nothing.
package discovery
