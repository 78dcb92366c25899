package measure

import (
	"encoding/json"
	"errors"
	"math/bits"
	"slices"
	"time"
)

const (
	// Each power of two has this many buckets, so a Histogram returns at most 1/64 more than
	// was recorded.
	bucketBits   = 6
	bucketsEach  = 1 << bucketBits
	histogramMax = (64 - bucketBits) * bucketsEach
)

// A Histogram stores durations of 0 ns and up with a precision of 1.6%; its minimum and
// maximum are exact. The zero value is empty. It is not safe for concurrent use: use one per
// goroutine and [Histogram.Merge].
type Histogram struct {
	counts []uint64
	count  uint64
	sum    time.Duration
	min    time.Duration
	max    time.Duration
}

// Record adds a duration; a negative one counts as 0.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	if h.counts == nil {
		h.counts = make([]uint64, histogramMax)
	}
	h.counts[bucketOf(uint64(d))]++
	if h.count == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.sum += d
	h.count++
}

// Merge adds the durations of another histogram.
func (h *Histogram) Merge(other *Histogram) {
	if other.count == 0 {
		return
	}
	if h.counts == nil {
		h.counts = make([]uint64, histogramMax)
	}
	for i, n := range other.counts {
		h.counts[i] += n
	}
	if h.count == 0 || other.min < h.min {
		h.min = other.min
	}
	h.max = max(h.max, other.max)
	h.sum += other.sum
	h.count += other.count
}

// Count returns the number of durations.
func (h *Histogram) Count() uint64 { return h.count }

// Min returns the smallest duration, 0 if there is none.
func (h *Histogram) Min() time.Duration { return h.min }

// Max returns the largest duration, 0 if there is none.
func (h *Histogram) Max() time.Duration { return h.max }

// Mean returns the mean, 0 if there is none.
func (h *Histogram) Mean() time.Duration {
	if h.count == 0 {
		return 0
	}
	return h.sum / time.Duration(h.count)
}

// Quantile returns the duration that a fraction q of all do not exceed, with q between 0 and
// 1; 0 if there is none.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(1, uint64(q*float64(h.count)+0.5))
	var seen uint64
	for i, n := range h.counts {
		seen += n
		if n > 0 && seen >= rank {
			return min(max(time.Duration(upperOf(i)), h.min), h.max)
		}
	}
	return h.max
}

// bucketOf returns the index of a value's bucket. Values below 64 have one each.
func bucketOf(v uint64) int {
	shift := max(0, bits.Len64(v)-bucketBits-1)
	return shift*bucketsEach + int(v>>shift)
}

// upperOf returns the largest value of a bucket.
func upperOf(bucket int) uint64 {
	if bucket < 2*bucketsEach {
		return uint64(bucket)
	}
	shift := bucket/bucketsEach - 1
	return uint64(bucket-shift*bucketsEach+1)<<shift - 1
}

// encodedHistogram is the JSON form of a Histogram. Buckets are pairs of index and count.
type encodedHistogram struct {
	Count   uint64        `json:"count"`
	Sum     time.Duration `json:"sum_ns"`
	Min     time.Duration `json:"min_ns"`
	P50     time.Duration `json:"p50_ns"`
	P99     time.Duration `json:"p99_ns"`
	Max     time.Duration `json:"max_ns"`
	Buckets [][2]uint64   `json:"buckets"`
}

// MarshalJSON implements json.Marshaler. The quantiles are for readers and not read back.
func (h *Histogram) MarshalJSON() ([]byte, error) {
	e := encodedHistogram{
		Count: h.count, Sum: h.sum, Min: h.min, Max: h.max,
		P50: h.Quantile(0.5), P99: h.Quantile(0.99), Buckets: [][2]uint64{},
	}
	for i, n := range h.counts {
		if n > 0 {
			e.Buckets = append(e.Buckets, [2]uint64{uint64(i), n})
		}
	}
	return json.Marshal(e)
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Histogram) UnmarshalJSON(data []byte) error {
	var e encodedHistogram
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	*h = Histogram{count: e.Count, sum: e.Sum, min: e.Min, max: e.Max}
	if e.Count > 0 {
		h.counts = make([]uint64, histogramMax)
	}
	for _, bucket := range e.Buckets {
		if bucket[0] >= uint64(len(h.counts)) {
			return errors.New("histogram: bucket out of range")
		}
		h.counts[bucket[0]] = bucket[1]
	}
	return nil
}

// ExactQuantile returns the exact value that a fraction q of a few values do not exceed; 0 if
// there is none.
func ExactQuantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := int(q * float64(len(sorted)))
	if q == 0.5 && len(sorted)%2 == 0 {
		return (sorted[at-1] + sorted[at]) / 2
	}
	return sorted[min(at, len(sorted)-1)]
}
