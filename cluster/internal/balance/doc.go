// Package balance decides which partition should be led by another node: to spread leaders over the
// nodes, or because instances wait for code that the leader lacks.
//
// # Guarantees
//
//  1. Among nodes that see the same leaders and weights, only one decides on a move, and moves one
//     partition.
//  2. A move to spread leaders follows three rounds in which the same leaders were uneven, and ten
//     rounds after the last move. It reduces the difference between two nodes, so none moves back.
//
// # What may not be assumed
//
//   - That nodes see the same leaders and weights: the node that would take over is asked first,
//     and may decline.
package balance
