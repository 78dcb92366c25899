package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// A Report is the results of one run of a program, with its machine and settings.
type Report struct {
	Title    string                    `json:"title"`
	When     time.Time                 `json:"when"`
	Machine  measure.Machine           `json:"machine"`
	Settings []Setting                 `json:"settings"`
	Results  []*measure.SubjectResults `json:"measured"`
	Targets  []Target                  `json:"bars,omitempty"`
}

// A Setting is something that a reader must know to repeat the run.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// WriteJSON writes the report with all results.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// ReadJSON reads the output of [Report.WriteJSON].
func ReadJSON(from io.Reader) (*Report, error) {
	r := new(Report)
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	return r, nil
}

// A Row is one metric over all repetitions.
type Row struct {
	measure.Metric // the value is the median
	Min, Max       float64
	// By repetition.
	Values []float64
	// The median and range of the ratios to the baseline, each within its repetition; 0 if
	// there is no baseline.
	Ratio, RatioMin, RatioMax float64
}

// Rows returns the metrics of a subject in the order in which they were first added.
func Rows(m *measure.SubjectResults) []Row {
	var rows []Row
	at := make(map[measure.MetricKey]int)
	ratios := make(map[measure.MetricKey][]float64)
	for round, result := range m.Results {
		for _, metric := range result.Metrics {
			key := metric.Key()
			i, known := at[key]
			if !known {
				i = len(rows)
				at[key] = i
				rows = append(rows, Row{Metric: metric})
			}
			rows[i].Values = append(rows[i].Values, metric.Value)
			if round < len(m.Baselines) && metric.Baseline != "" && m.Baselines[round][metric.Baseline] > 0 {
				ratios[key] = append(ratios[key], metric.Value/m.Baselines[round][metric.Baseline])
			}
		}
	}
	for i := range rows {
		r := &rows[i]
		r.Value, r.Min, r.Max = medianRange(r.Values)
		r.Ratio, r.RatioMin, r.RatioMax = medianRange(ratios[r.Key()])
	}
	return rows
}

// medianRange returns median, minimum and maximum, or zeros without values.
func medianRange(values []float64) (median, least, most float64) {
	return measure.ExactQuantile(values, 0.5), measure.ExactQuantile(values, 0), measure.ExactQuantile(values, 1)
}

// row returns a metric of a subject.
func (r *Report) row(subject string, key measure.MetricKey) (Row, bool) {
	for _, m := range r.Results {
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
