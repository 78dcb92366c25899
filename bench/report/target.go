package report

import "github.com/tenuto-dev/tenuto/bench/measure"

// A Target is the required value of a metric.
type Target struct {
	Text    string            `json:"text"`
	Subject string            `json:"subject"`
	Metric  measure.MetricKey `json:"figure"`
	// The target applies to the ratio of the metric to its baseline, not to the metric.
	OfRatio bool `json:"of_ratio,omitempty"`
	// The value must be at most Limit; otherwise at least.
	AtMost bool    `json:"at_most,omitempty"`
	Limit  float64 `json:"limit"`
}

// A TargetResult is a target with its result: the median and range over all repetitions.
type TargetResult struct {
	Target
	Median, Min, Max float64
	Unit             string
}

// Met reports whether the result meets the target.
func (t TargetResult) Met() bool {
	if t.AtMost {
		return t.Median <= t.Limit
	}
	return t.Median >= t.Limit
}

// Reached returns the fraction of the target that was reached: at least 1 if it is met.
func (t TargetResult) Reached() float64 {
	switch {
	case t.Met() && t.Median == t.Limit:
		return 1
	case t.AtMost:
		return t.Limit / t.Median
	}
	return t.Median / t.Limit
}

// TargetResults returns the results of all targets that were measured.
func (r *Report) TargetResults() []TargetResult {
	var results []TargetResult
	for _, target := range r.Targets {
		row, ok := r.row(target.Subject, target.Metric)
		switch {
		case !ok || target.OfRatio && row.Ratio == 0:
		case target.OfRatio:
			results = append(results, TargetResult{target, row.Ratio, row.RatioMin, row.RatioMax, measure.Times})
		default:
			results = append(results, TargetResult{target, row.Value, row.Min, row.Max, row.Unit})
		}
	}
	return results
}
