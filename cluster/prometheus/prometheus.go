package prometheus

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tenuto-dev/tenuto/cluster"
)

// Handler returns a handler that writes the metrics of a node in the Prometheus text format. It has
// its own registry and needs no Config.MeterProvider. Metrics are recorded for it from this call
// on, so call it once for each node. After [cluster.Node.Close] it shows no metrics. If metrics
// cannot be recorded, it answers 503 with the reason.
func Handler(node *cluster.Node) http.Handler {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err == nil {
		err = node.AddMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader)))
	}
	if err != nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		})
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
