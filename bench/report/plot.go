package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// The plots are SVG, so that the page needs no script.

const (
	plotWidth  = 480.0
	plotHeight = 240.0
	marginLeft = 70.0
	margin     = 24.0
	colors     = 4
)

// A Plot is a picture with its caption.
type Plot struct {
	Caption string
	SVG     template.HTML
}

// A scale maps values to coordinates.
type scale struct {
	from, to   float64 // values
	start, end float64 // coordinates
	log        bool
}

func (s scale) at(v float64) float64 {
	from, to := s.from, s.to
	if s.log {
		v, from, to = math.Log10(v), math.Log10(from), math.Log10(to)
	}
	if to == from {
		return (s.start + s.end) / 2
	}
	return s.start + (v-from)/(to-from)*(s.end-s.start)
}

// drawValues draws the values of all repetitions between minimum and maximum.
func drawValues(row Row) template.HTML {
	const width, height = 90.0, 14.0
	s := scale{from: row.Min, to: row.Max, start: 5, end: width - 5}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg width="%g" height="%g" role="img"><line class="axis" x1="0" x2="%g" y1="7" y2="7"/>`, width, height, width)
	for _, v := range row.Values {
		fmt.Fprintf(&b, `<circle class="f0" cx="%.1f" cy="7" r="2.5"/>`, s.at(v))
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// drawReached draws how much of a target was reached, up to twice the target.
func drawReached(v TargetResult) template.HTML {
	const width, height, most = 160.0, 14.0, 2.0
	class := "f0"
	if !v.Met() {
		class = "fbad"
	}
	return template.HTML(fmt.Sprintf(`<svg width="%g" height="%g" role="img"><rect class="%s" x="0" y="3" width="%.1f" height="8"/>`+
		`<line class="limit" x1="%g" x2="%g" y1="0" y2="%g"/></svg>`,
		width, height, class, min(v.Reached(), most)*width/most, width/most, width/most, height))
}

// scaling draws each series of metrics over its position.
func scaling(rows []Row) []Plot {
	var names []string
	series := make(map[string][]Row)
	for _, row := range rows {
		if row.At == 0 {
			continue
		}
		if len(series[row.Name]) == 0 {
			names = append(names, row.Name)
		}
		series[row.Name] = append(series[row.Name], row)
	}
	var plots []Plot
	for _, name := range names {
		if len(series[name]) > 1 {
			plots = append(plots, Plot{name, drawSeries(series[name])})
		}
	}
	return plots
}

// drawSeries draws medians as a line and ranges as whiskers.
func drawSeries(rows []Row) template.HTML {
	most := 0.0
	for _, row := range rows {
		most = max(most, row.Max)
	}
	x := scale{from: rows[0].At, to: rows[len(rows)-1].At, start: marginLeft, end: plotWidth - margin, log: true}
	y := scale{from: 0, to: most, start: plotHeight - margin, end: margin}
	b := beginPlot()
	for _, v := range []float64{0, most / 2, most} {
		gridY(b, y.at(v), format(v, rows[0].Unit))
	}
	var points []string
	for _, row := range rows {
		gridX(b, x.at(row.At), significant(row.At))
		fmt.Fprintf(b, `<line class="s0" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><circle class="f0" cx="%.1f" cy="%.1f" r="3"/>`,
			x.at(row.At), x.at(row.At), y.at(row.Min), y.at(row.Max), x.at(row.At), y.at(row.Value))
		points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(row.At), y.at(row.Value)))
	}
	fmt.Fprintf(b, `<polyline class="line s0" points="%s"/></svg>`, strings.Join(points, " "))
	return template.HTML(b.String())
}

// distributions draws the distributions of a subject, merged over all repetitions; "" if there
// are none.
func distributions(m *measure.SubjectResults) template.HTML {
	all := mergeDistributions(m)
	if len(all) == 0 {
		return ""
	}
	shortest, longest := math.Inf(1), 0.0
	for _, d := range all {
		// Durations below 1 µs share a point.
		shortest = min(shortest, max(1e3, float64(d.Histogram.Quantile(0.01))))
		longest = max(longest, float64(d.Histogram.Max()))
	}
	x := scale{from: shortest, to: max(longest, 2*shortest), start: marginLeft, end: plotWidth - margin, log: true}
	// The steps are 90%, 99%, 99.9%.
	y := scale{from: 1, to: 1e-4, start: plotHeight - margin, end: margin, log: true}
	b := beginPlot()
	for step, name := range []string{"0%", "90%", "99%", "99.9%"} {
		gridY(b, y.at(math.Pow(10, -float64(step))), name)
	}
	for decade := math.Ceil(math.Log10(shortest)); decade <= math.Log10(x.to); decade++ {
		gridX(b, x.at(math.Pow(10, decade)), format(math.Pow(10, decade), measure.Duration))
	}
	for i, d := range all {
		fmt.Fprintf(b, `<polyline class="line s%d" points="%s"/><text class="f%d" x="%g" y="%g">%s</text>`, i%colors,
			curve(d.Histogram, x, y), i%colors, marginLeft+8, margin+12+14*float64(i), template.HTMLEscapeString(d.Name))
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

func mergeDistributions(m *measure.SubjectResults) []measure.Distribution {
	var all []measure.Distribution
	for _, result := range m.Results {
		for _, d := range result.Distributions {
			if d.Histogram.Count() == 0 {
				continue
			}
			i := slices.IndexFunc(all, func(known measure.Distribution) bool { return known.Name == d.Name })
			if i < 0 {
				i = len(all)
				all = append(all, measure.Distribution{Name: d.Name, Histogram: &measure.Histogram{}})
			}
			all[i].Histogram.Merge(d.Histogram)
		}
	}
	return all
}

func curve(h *measure.Histogram, x, y scale) string {
	var points []string
	for step := 0.0; step <= 4; step += 0.05 {
		left := math.Pow(10, -step)
		if step > 0 && left*float64(h.Count()) < 1 {
			break
		}
		took := min(max(float64(h.Quantile(1-left)), x.from), x.to)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(took), y.at(left)))
	}
	return strings.Join(points, " ")
}

func beginPlot() *strings.Builder {
	b := &strings.Builder{}
	fmt.Fprintf(b, `<svg width="%g" height="%g" viewBox="0 0 %g %g" role="img">`, plotWidth, plotHeight, plotWidth, plotHeight)
	return b
}

func gridY(b *strings.Builder, y float64, text string) {
	fmt.Fprintf(b, `<line class="axis" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`,
		marginLeft, plotWidth-margin, y, y, marginLeft-6, y+4, text)
}

func gridX(b *strings.Builder, x float64, text string) {
	fmt.Fprintf(b, `<line class="axis" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text x="%.1f" y="%g" text-anchor="middle">%s</text>`,
		x, x, margin, plotHeight-margin, x, plotHeight-8, text)
}
