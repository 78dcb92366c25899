package measure

import (
	"time"
)

// The units that figures are given in. Other units may be used; those are
// printed as they are.
const (
	PerSecond = "/s"
	Duration  = "ns"
	Bytes     = "B"
	Count     = ""
	Times     = "×"
)

// A Figure is one number that a run has come to.
type Figure struct {
	Name string `json:"name"`
	// Where the figure is one of a series: how large what was measured was.
	At    float64 `json:"at,omitempty"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	// The figure of a yardstick that this one is to be divided by; "" if there
	// is none.
	Against string `json:"against,omitempty"`
}

// Key identifies the figure among those of its subject.
type Key struct {
	Name string
	At   float64
}

// Key returns what identifies the figure.
func (f Figure) Key() Key { return Key{f.Name, f.At} }

// A Distribution is a histogram with a name.
type Distribution struct {
	Name      string     `json:"name"`
	Histogram *Histogram `json:"histogram"`
}

// A Result is what one run of a subject came to.
type Result struct {
	Figures       []Figure       `json:"figures"`
	Distributions []Distribution `json:"distributions,omitempty"`
	// What a reader has to know about this run.
	Note string `json:"note,omitempty"`
	// How long the run took in all, with what was not measured of it.
	Took time.Duration `json:"took_ns"`
}

// Add adds a figure.
func (r *Result) Add(f Figure) { r.Figures = append(r.Figures, f) }

// AddRate adds how many operations a second were done, under the name of the
// operations.
func (r *Result) AddRate(name string, operations int, took time.Duration) {
	r.Add(Figure{Name: name, Unit: PerSecond, Value: float64(operations) / took.Seconds()})
}

// AddLatency adds a distribution, with its p50, p99 and max as figures. The
// p50 and the p99 are to be compared with figures of a yardstick, if named.
func (r *Result) AddLatency(name string, h *Histogram, against50, against99 string) {
	r.Distributions = append(r.Distributions, Distribution{name, h})
	r.Add(Figure{Name: name + " p50", Unit: Duration, Value: float64(h.Quantile(0.5)), Against: against50})
	r.Add(Figure{Name: name + " p99", Unit: Duration, Value: float64(h.Quantile(0.99)), Against: against99})
	r.Add(Figure{Name: name + " max", Unit: Duration, Value: float64(h.Max())})
}

// Figure returns the value of a figure.
func (r *Result) Figure(key Key) (float64, bool) {
	for _, f := range r.Figures {
		if f.Key() == key {
			return f.Value, true
		}
	}
	return 0, false
}
