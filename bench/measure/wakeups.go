package measure

import "runtime/metrics"

// wakeupSample is the sampling rate of the runtime (gTrackingPeriod of package runtime).
const wakeupSample = 8

// Wakeups returns approximately how often goroutines of this process have become runnable or
// continued after preemption. The runtime samples one in eight.
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
