// Package prometheus shows the metrics of a node to Prometheus.
//
//	mux.Handle("GET /metrics", prometheus.Handler(node))
//
// METRICS.md of package cluster lists the metrics. It may not be assumed that the handler
// shows anything after the node was closed.
package prometheus
