package host

import (
	"math"
	"runtime/metrics"
	"syscall"
	"time"
)

// processorsUsed returns for how long processors have worked for this process.
func processorsUsed() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// schedulerDelays returns how long goroutines have waited in the state of being able to
// run, since the process began.
func schedulerDelays() *metrics.Float64Histogram {
	samples := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(samples)
	if samples[0].Value.Kind() != metrics.KindFloat64Histogram {
		return new(metrics.Float64Histogram)
	}
	return samples[0].Value.Float64Histogram()
}

// delaysSince returns those of goroutines since before.
func delaysSince(before *metrics.Float64Histogram) Delays {
	now := schedulerDelays()
	counts := make([]uint64, len(now.Counts))
	for i := range counts {
		counts[i] = now.Counts[i]
		if i < len(before.Counts) {
			counts[i] -= before.Counts[i]
		}
	}
	return Delays{P50: boundOf(counts, now.Buckets, 0.5), P99: boundOf(counts, now.Buckets, 0.99), Max: boundOf(counts, now.Buckets, 1)}
}

// boundOf returns the upper bound of the bucket of a quantile, in seconds. Bucket i lies
// between buckets[i] and the next; the last one has no upper bound.
func boundOf(counts []uint64, buckets []float64, q float64) time.Duration {
	var all, seen uint64
	for _, n := range counts {
		all += n
	}
	if all == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(q*float64(all))), 1)
	for i, n := range counts {
		if seen += n; seen >= rank {
			bound := buckets[i+1]
			if math.IsInf(bound, 1) {
				bound = buckets[i]
			}
			return time.Duration(bound * float64(time.Second))
		}
	}
	return 0
}
