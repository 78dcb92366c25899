// Package telemetry records the metrics of a node and the spans of executions, attempts and calls
// with OpenTelemetry.
//
// # Guarantees
//
//  1. Recording an event in a turn allocates nothing, and does nothing without a provider.
//  2. After [Metrics.Close] the node is not read again.
//  3. The node's definitions bound the values of attributes. Metrics hold no instance IDs, and
//     neither metrics nor spans hold payloads or texts of errors.
//  4. The span of an execution is made once, by the node that has committed its end.
//
// # What may not be assumed
//
//   - That counts of instances by state are current: they are counted at most once a minute.
package telemetry
