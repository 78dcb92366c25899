package cases

import (
	"slices"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// A series is the values of one metric, one of each round.
type series struct {
	name, unit string
	values     []float64
}

// A table keeps series in the order in which they were first added to.
type table []*series

func (t *table) add(name, unit string, value float64) {
	for _, s := range *t {
		if s.name == name {
			s.values = append(s.values, value)
			return
		}
	}
	*t = append(*t, &series{name, unit, []float64{value}})
}

// addTo adds the median of each series, and its least and largest value.
func (t *table) addTo(result *measure.Result) {
	for _, s := range *t {
		result.Add(measure.Metric{Name: s.name, Unit: s.unit, Value: measure.ExactQuantile(s.values, 0.5)})
		result.Add(measure.Metric{Name: s.name + ", least", Unit: s.unit, Value: slices.Min(s.values)})
		result.Add(measure.Metric{Name: s.name + ", most", Unit: s.unit, Value: slices.Max(s.values)})
	}
}
