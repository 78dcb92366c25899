package measure

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recordDurations returns n durations over many decades, and two histograms with one half
// each.
func recordDurations(n int) (durations []time.Duration, halves [2]Histogram) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		d := time.Duration(random.Uint64() >> (34 + random.IntN(30)))
		durations = append(durations, d)
		halves[i%2].Record(d)
	}
	slices.Sort(durations)
	return durations, halves
}

func TestHistogram_QuantilePrecision(t *testing.T) {
	durations, halves := recordDurations(10_000)
	h := &halves[0]
	h.Merge(&halves[1])
	if h.Count() != 10_000 || h.Min() != durations[0] || h.Max() != durations[len(durations)-1] {
		t.Errorf("%d durations from %v to %v; want 10000 from %v to %v", h.Count(), h.Min(), h.Max(), durations[0], durations[len(durations)-1])
	}
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := durations[int(q*10_000)-1]
		if got := h.Quantile(q); got < want || float64(got) > float64(want)*(1+1.0/bucketsEach)+1 {
			t.Errorf("quantile %v: %v; want %v", q, got, want)
		}
	}
}

func TestHistogram_BucketsAreContiguous(t *testing.T) {
	for v := uint64(0); v < 1<<62; v += v/100 + 1 {
		if b := bucketOf(v); v > upperOf(b) || b > 0 && v <= upperOf(b-1) {
			t.Fatalf("%d is not in bucket %d, from %d to %d", v, b, upperOf(b-1)+1, upperOf(b))
		}
	}
	if b := bucketOf(1<<63 - 1); b >= histogramMax {
		t.Errorf("the longest duration is in bucket %d of %d", b, histogramMax)
	}
}

func TestHistogram_JSONRoundTrip(t *testing.T) {
	_, halves := recordDurations(1_000)
	for name, h := range map[string]*Histogram{"some": &halves[0], "none": {}} {
		encoded, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		var got Histogram
		if err := json.Unmarshal(encoded, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(*h, got, cmp.AllowUnexported(Histogram{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if err := json.Unmarshal([]byte(`{"count": 1, "buckets": [[100000, 1]]}`), new(Histogram)); err == nil {
		t.Error("an invalid bucket is accepted")
	}
}

func TestHistogram_EmptyIsZero(t *testing.T) {
	h := &Histogram{}
	if h.Quantile(0.5) != 0 || h.Mean() != 0 || h.Max() != 0 {
		t.Errorf("%v, %v, %v", h.Quantile(0.5), h.Mean(), h.Max())
	}
}

func TestExactQuantiles(t *testing.T) {
	for _, c := range []struct {
		values  []float64
		q, want float64
	}{
		{nil, 0.5, 0},
		{[]float64{3}, 0.5, 3},
		{[]float64{4, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 2, 3}, 0.5, 2.5},
		{[]float64{4, 1, 2, 3}, 0, 1},
		{[]float64{4, 1, 2, 3}, 1, 4},
	} {
		if got := ExactQuantile(c.values, c.q); got != c.want {
			t.Errorf("%v of %v: %v; want %v", c.q, c.values, got, c.want)
		}
	}
}
