package measure

import "runtime/metrics"

// wakeupSample is how many wake-ups the runtime counts one of (gTrackingPeriod of package
// runtime).
const wakeupSample = 8

// Wakeups returns about how many times goroutines of this process have become runnable, or
// have gone on after being preempted. The runtime counts a sample of one in eight.
func Wakeups() uint64 {
	latencies := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(latencies)
	if latencies[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	var count uint64
	for _, n := range latencies[0].Value.Float64Histogram().Counts {
		count += n
	}
	return count * wakeupSample
}
