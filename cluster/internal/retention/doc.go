// Package retention purges ended instances that were kept long enough.
//
// # Guarantees
//
//  1. No running instance is purged, none before its period is over, and none that a parent, a
//     child or another partition still needs.
//  2. A sweep works in batches with pauses, so that it does not delay running instances.
//
// # What may not be assumed
//
//   - That an instance is purged promptly: sweeps are a minute apart, or as far as the shortest
//     period if that is less.
package retention
