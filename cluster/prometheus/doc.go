// Package prometheus exports the metrics of a node to Prometheus.
//
//	mux.Handle("GET /metrics", prometheus.Handler(node))
//
// METRICS.md of package cluster lists the metrics. Do not assume that the handler shows anything
// after the node was closed.
package prometheus
