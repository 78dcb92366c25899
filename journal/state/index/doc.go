// Package index says which instances a query selects, and in which order.
//
// A Row is what can be queried of one instance: its latest run, as the replicated state machine
// derives it from records. Matches is the reference: whatever a faster way of answering a query
// does, it returns the rows that match.
package index
