package host

import (
	"math"
	"runtime/metrics"
	"syscall"
	"time"
)

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// schedulerLatencies returns the distribution of the time that goroutines spent runnable but not
// running, since the process began.
func schedulerLatencies() *metrics.Float64Histogram {
	samples := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(samples)
	if samples[0].Value.Kind() != metrics.KindFloat64Histogram {
		return new(metrics.Float64Histogram)
	}
	return samples[0].Value.Float64Histogram()
}

// latenciesSince returns the quantiles of the scheduler latencies since before.
func latenciesSince(before *metrics.Float64Histogram) LatencyQuantiles {
	now := schedulerLatencies()
	counts := make([]uint64, len(now.Counts))
	for i := range counts {
		counts[i] = now.Counts[i]
		if i < len(before.Counts) {
			counts[i] -= before.Counts[i]
		}
	}
	return LatencyQuantiles{P50: quantileBound(counts, now.Buckets, 0.5), P99: quantileBound(counts, now.Buckets, 0.99), Max: quantileBound(counts, now.Buckets, 1)}
}

// quantileBound returns the upper bound of the bucket that holds a quantile, in seconds. Bucket i
// lies between buckets[i] and buckets[i+1]; the last one may be unbounded.
func quantileBound(counts []uint64, buckets []float64, q float64) time.Duration {
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
