package measure

import (
	"time"
)

// The units of metrics. Other units are printed unchanged.
const (
	PerSecond = "/s"
	Duration  = "ns"
	Bytes     = "B"
	Count     = ""
	Times     = "×"
)

// A Metric is one number that a run has measured.
type Metric struct {
	Name string `json:"name"`
	// The position in a series, such as a size; 0 without a series.
	At    float64 `json:"at,omitempty"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	// The metric of a baseline by which this one is divided, or "".
	Baseline string `json:"against,omitempty"`
}

// MetricKey identifies a metric of a subject.
type MetricKey struct {
	Name string
	At   float64
}

// Key returns the key of the metric.
func (m Metric) Key() MetricKey { return MetricKey{m.Name, m.At} }

// A Distribution is a histogram with a name.
type Distribution struct {
	Name      string     `json:"name"`
	Histogram *Histogram `json:"histogram"`
}

// A Result is the result of one run of a subject.
type Result struct {
	Metrics       []Metric       `json:"figures"`
	Distributions []Distribution `json:"distributions,omitempty"`
	// What a reader must know about this run.
	Note string `json:"note,omitempty"`
	// The duration of the whole run.
	Took time.Duration `json:"took_ns"`
}

// Add adds a metric.
func (r *Result) Add(f Metric) { r.Metrics = append(r.Metrics, f) }

// AddRate adds the operations per second under the given name.
func (r *Result) AddRate(name string, operations int, took time.Duration) {
	r.Add(Metric{Name: name, Unit: PerSecond, Value: float64(operations) / took.Seconds()})
}

// AddLatency adds a distribution with its p50, p99 and max as metrics. p50 and p99 are
// compared with the named metrics of a baseline, if not empty.
func (r *Result) AddLatency(name string, h *Histogram, baseline50, baseline99 string) {
	r.Distributions = append(r.Distributions, Distribution{name, h})
	r.Add(Metric{Name: name + " p50", Unit: Duration, Value: float64(h.Quantile(0.5)), Baseline: baseline50})
	r.Add(Metric{Name: name + " p99", Unit: Duration, Value: float64(h.Quantile(0.99)), Baseline: baseline99})
	r.Add(Metric{Name: name + " max", Unit: Duration, Value: float64(h.Max())})
}

// Metric returns the value of a metric.
func (r *Result) Metric(key MetricKey) (float64, bool) {
	for _, f := range r.Metrics {
		if f.Key() == key {
			return f.Value, true
		}
	}
	return 0, false
}
