package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// A Report is what one run of a program has measured, and on what.
type Report struct {
	Title    string              `json:"title"`
	When     time.Time           `json:"when"`
	Machine  measure.Machine     `json:"machine"`
	Settings []Setting           `json:"settings"`
	Measured []*measure.Measured `json:"measured"`
	Bars     []Bar               `json:"bars,omitempty"`
}

// A Setting is something that a reader has to know to repeat the run.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// WriteJSON writes the report with all that was measured in it.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// ReadJSON reads what [Report.WriteJSON] has written.
func ReadJSON(from io.Reader) (*Report, error) {
	r := new(Report)
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	return r, nil
}

// A Row is one figure over all repetitions.
type Row struct {
	measure.Figure // the value is the median
	Min, Max       float64
	// In the order of the repetitions.
	Values []float64
	// The median of the ratios to the yardstick, each taken within its
	// repetition, with their spread. 0 when there is none.
	Ratio, RatioMin, RatioMax float64
}

// Rows returns the figures of a subject, in the order in which they were added
// first.
func Rows(m *measure.Measured) []Row {
	var rows []Row
	at := make(map[measure.Key]int)
	ratios := make(map[measure.Key][]float64)
	for round, result := range m.Results {
		for _, figure := range result.Figures {
			key := figure.Key()
			i, known := at[key]
			if !known {
				i = len(rows)
				at[key] = i
				rows = append(rows, Row{Figure: figure})
			}
			rows[i].Values = append(rows[i].Values, figure.Value)
			if round < len(m.Yardsticks) && figure.Against != "" && m.Yardsticks[round][figure.Against] > 0 {
				ratios[key] = append(ratios[key], figure.Value/m.Yardsticks[round][figure.Against])
			}
		}
	}
	for i := range rows {
		r := &rows[i]
		r.Value, r.Min, r.Max = spread(r.Values)
		r.Ratio, r.RatioMin, r.RatioMax = spread(ratios[r.Key()])
	}
	return rows
}

// spread returns the median, the smallest and the largest; zeros of none.
func spread(values []float64) (median, least, most float64) {
	return measure.Exact(values, 0.5), measure.Exact(values, 0), measure.Exact(values, 1)
}

// row returns a figure of a subject.
func (r *Report) row(subject string, key measure.Key) (Row, bool) {
	for _, m := range r.Measured {
		if m.Name != subject {
			continue
		}
		for _, row := range Rows(m) {
			if row.Key() == key {
				return row, true
			}
		}
	}
	return Row{}, false
}
