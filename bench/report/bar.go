package report

import "github.com/tenuto-dev/tenuto/bench/measure"

// A Bar is what a figure should come to.
type Bar struct {
	Text    string      `json:"text"`
	Subject string      `json:"subject"`
	Figure  measure.Key `json:"figure"`
	// The bar is for the ratio to the yardstick, not for the figure itself.
	OfRatio bool `json:"of_ratio,omitempty"`
	// The figure is to be at most the limit; otherwise at least.
	AtMost bool    `json:"at_most,omitempty"`
	Limit  float64 `json:"limit"`
}

// A Verdict is a bar and what was seen: the median over all repetitions.
type Verdict struct {
	Bar
	Seen, Min, Max float64
	Unit           string
}

// Met tells whether what was seen is as the bar has it.
func (v Verdict) Met() bool {
	if v.AtMost {
		return v.Seen <= v.Limit
	}
	return v.Seen >= v.Limit
}

// Reached returns how much of the bar was reached: 1 and more when it is met.
func (v Verdict) Reached() float64 {
	switch {
	case v.Met() && v.Seen == v.Limit:
		return 1
	case v.AtMost:
		return v.Limit / v.Seen
	}
	return v.Seen / v.Limit
}

// Verdicts returns the bars for which there is something to see.
func (r *Report) Verdicts() []Verdict {
	var verdicts []Verdict
	for _, bar := range r.Bars {
		row, ok := r.row(bar.Subject, bar.Figure)
		switch {
		case !ok || bar.OfRatio && row.Ratio == 0:
		case bar.OfRatio:
			verdicts = append(verdicts, Verdict{bar, row.Ratio, row.RatioMin, row.RatioMax, measure.Times})
		default:
			verdicts = append(verdicts, Verdict{bar, row.Value, row.Min, row.Max, row.Unit})
		}
	}
	return verdicts
}
