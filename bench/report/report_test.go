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
	m := &measure.SubjectResults{Name: "case", Description: `a <load> & "more"`}
	for round, rate := range []float64{1000, 3000, 2000} {
		h := &measure.Histogram{}
		for i := range 1000 {
			h.Record(time.Duration(i+round) * time.Microsecond)
		}
		r := &measure.Result{Note: "with a note"}
		r.Add(measure.Metric{Name: "operations", Unit: measure.PerSecond, Value: rate, Baseline: "packed records"})
		r.Add(measure.Metric{Name: "step", At: 50, Unit: measure.Duration, Value: 300_000})
		r.Add(measure.Metric{Name: "step", At: 50_000, Unit: measure.Duration, Value: 310_000})
		r.AddLatency("latency", h, "commit p50", "")
		m.Results = append(m.Results, r)
		m.Baselines = append(m.Baselines, map[string]float64{"packed records": 10_000, "commit p50": 100_000})
	}
	return &Report{
		Title: "Sample", When: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine:  measure.Machine{CPU: "a CPU", Cores: 2, GOMAXPROCS: 2, Go: "go1"},
		Settings: []Setting{{"n", "7"}},
		Results:  []*measure.SubjectResults{m},
		Targets: []Target{
			{Text: "fast", Subject: "case", Metric: measure.MetricKey{Name: "operations"}, Limit: 1500},
			{Text: "near the baseline", Subject: "case", Metric: measure.MetricKey{Name: "operations"}, OfRatio: true, Limit: 0.35},
			{Text: "short", Subject: "case", Metric: measure.MetricKey{Name: "step", At: 50}, AtMost: true, Limit: 400_000},
			{Text: "not measured", Subject: "other", Metric: measure.MetricKey{Name: "step"}, Limit: 1},
		},
	}
}

func TestRows_MediansAndRatios(t *testing.T) {
	row := Rows(sample().Results[0])[0]
	if row.Value != 2000 || row.Min != 1000 || row.Max != 3000 || row.Ratio != 0.2 || row.RatioMin != 0.1 || row.RatioMax != 0.3 {
		t.Errorf("%+v", row)
	}
}

func TestTargetResults(t *testing.T) {
	results := sample().TargetResults()
	var met []string
	for _, v := range results {
		if v.Met() != (v.Reached() >= 1) {
			t.Errorf("%s: met %v, reached %v", v.Text, v.Met(), v.Reached())
		}
		if v.Met() {
			met = append(met, v.Text)
		}
	}
	if len(results) != 3 || !cmp.Equal(met, []string{"fast", "short"}) {
		t.Errorf("%d results, met: %v", len(results), met)
	}
}

func TestReport_JSONRoundTrip(t *testing.T) {
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

func TestWriteHTML_SelfContained(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	outside := regexp.MustCompile(`(?i)https?:|//[a-z]|src=|href=|@import|url\(|<script|<link|<iframe`)
	if found := outside.FindString(page); found != "" {
		t.Errorf("the page has %q", found)
	}
	for _, want := range []string{"a &lt;load&gt; &amp; &#34;more&#34;", "2,000/s", "with a note", "near the baseline"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Error("a coordinate is not a number")
	}
	if n := strings.Count(page, "<polyline"); n != 2 {
		t.Errorf("%d curves; want that of the series and that of the distribution", n)
	}
}

func TestWriteMarkdown_HasEveryMetric(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| operations | 2,000/s | 1,000/s | 3,000/s | 0.2 (0.1–0.3) × packed records |",
		"| step: 50,000 | 310 µs | 310 µs | 310 µs |  |",
		"| fast | at least 1,500/s | 2,000/s (1,000/s–3,000/s) | yes |",
		"- n: 7",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no line %q in\n%s", want, b.String())
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
