// Package membership determines which nodes are members of the cluster, and their addresses.
//
// # Guarantees
//
//  1. A node's own log overrides a hint as soon as it has reached the hint's index: a node removed
//     since is not a member.
//  2. A member of any partition counts as a member until every partition has removed it.
//
// # What may not be assumed
//
//   - That the members are current: a node that was down uses those of its log, and those of a hint
//     for up to a minute.
package membership
