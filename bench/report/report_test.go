package report

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// sample is a report with everything that a report can have.
func sample() *Report {
	m := &measure.Measured{Name: "case", Description: `a <load> & "more"`}
	for round, rate := range []float64{1000, 3000, 2000} {
		h := &measure.Histogram{}
		for i := range 1000 {
			h.Record(time.Duration(i+round) * time.Microsecond)
		}
		r := &measure.Result{Note: "with a note"}
		r.Add(measure.Figure{Name: "operations", Unit: measure.PerSecond, Value: rate, Against: "packed records"})
		r.Add(measure.Figure{Name: "step", At: 50, Unit: measure.Duration, Value: 300_000})
		r.Add(measure.Figure{Name: "step", At: 50_000, Unit: measure.Duration, Value: 310_000})
		r.AddLatency("latency", h, "commit p50", "")
		m.Results = append(m.Results, r)
		m.Yardsticks = append(m.Yardsticks, map[string]float64{"packed records": 10_000, "commit p50": 100_000})
	}
	return &Report{
		Title: "Sample", When: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine:  measure.Machine{CPU: "a CPU", Cores: 2, GOMAXPROCS: 2, Go: "go1"},
		Settings: []Setting{{"n", "7"}},
		Measured: []*measure.Measured{m},
		Bars: []Bar{
			{Text: "fast", Subject: "case", Figure: measure.Key{Name: "operations"}, Limit: 1500},
			{Text: "near the yardstick", Subject: "case", Figure: measure.Key{Name: "operations"}, OfRatio: true, Limit: 0.35},
			{Text: "short", Subject: "case", Figure: measure.Key{Name: "step", At: 50}, AtMost: true, Limit: 400_000},
			{Text: "not measured", Subject: "other", Figure: measure.Key{Name: "step"}, Limit: 1},
		},
	}
}

func TestRowsAreMediansWithTheRatiosOfTheirRounds(t *testing.T) {
	row := Rows(sample().Measured[0])[0]
	if row.Value != 2000 || row.Min != 1000 || row.Max != 3000 || row.Ratio != 0.2 || row.RatioMin != 0.1 || row.RatioMax != 0.3 {
		t.Errorf("%+v", row)
	}
}

func TestVerdicts(t *testing.T) {
	verdicts := sample().Verdicts()
	var met []string
	for _, v := range verdicts {
		if v.Met() != (v.Reached() >= 1) {
			t.Errorf("%s: met %v, reached %v", v.Text, v.Met(), v.Reached())
		}
		if v.Met() {
			met = append(met, v.Text)
		}
	}
	if len(verdicts) != 3 || !cmp.Equal(met, []string{"fast", "short"}) {
		t.Errorf("%d verdicts, met: %v", len(verdicts), met)
	}
}

func TestAReportSurvivesJSON(t *testing.T) {
	want := sample()
	var b bytes.Buffer
	if err := want.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	got, err := ReadJSON(&b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(measure.Histogram{})); diff != "" {
		t.Error(diff)
	}
}

func TestThePageNeedsNothingFromOutside(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	outside := regexp.MustCompile(`(?i)https?:|//[a-z]|src=|href=|@import|url\(|<script|<link|<iframe`)
	if found := outside.FindString(page); found != "" {
		t.Errorf("the page has %q", found)
	}
	for _, wanted := range []string{"a &lt;load&gt; &amp; &#34;more&#34;", "2,000/s", "with a note", "near the yardstick"} {
		if !strings.Contains(page, wanted) {
			t.Errorf("%q is not in the page", wanted)
		}
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Error("something is drawn at no place")
	}
	if n := strings.Count(page, "<polyline"); n != 2 {
		t.Errorf("%d curves; want that of the series and that of the distribution", n)
	}
}

func TestMarkdownHasEveryFigure(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []string{
		"| operations | 2,000/s | 1,000/s | 3,000/s | 0.2 (0.1–0.3) × packed records |",
		"| step: 50,000 | 310 µs | 310 µs | 310 µs |  |",
		"| fast | at least 1,500/s | 2,000/s (1,000/s–3,000/s) | yes |",
		"- n: 7",
	} {
		if !strings.Contains(b.String(), wanted) {
			t.Errorf("no line %q in\n%s", wanted, b.String())
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		value float64
		unit  string
		want  string
	}{
		{0, measure.Count, "0"},
		{123456, measure.PerSecond, "123,000/s"},
		{999.6, measure.PerSecond, "1,000/s"},
		{12.345, measure.Times, "12.3 ×"},
		{1234, measure.Bytes, "1,230 B"},
		{-1234567, measure.Bytes, "-1,230,000 B"},
		{950, measure.Duration, "950 ns"},
		{1500, measure.Duration, "1.5 µs"},
		{2.5e6, measure.Duration, "2.5 ms"},
		{61e9, measure.Duration, "61 s"},
		{3, "apples", "3 apples"},
	} {
		if got := format(c.value, c.unit); got != c.want {
			t.Errorf("%v in %q: %q; want %q", c.value, c.unit, got, c.want)
		}
	}
}
