package check

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

// The maximum ratio of write latencies in a later fault-free phase to those in the first, at the
// median and at the 99th percentile. If the machine itself was slower, the limits grow by the same
// factor.
const (
	medianFactor = 8
	tailFactor   = 20
	// The minimum number of writes for a meaningful 99th percentile.
	latenciesMin = 100
)

// checkAttemptedOnce checks that an activity whose first attempt is in a fault-free phase has no
// other attempt in it. Attempts of the workloads never fail, so only a new leader may repeat one.
func (c *checker) checkAttemptedOnce() {
	for key, effects := range c.effects {
		first := time.Duration(-1)
		var begins []time.Duration
		for _, effect := range effects {
			if effect.Finished {
				continue
			}
			begins = append(begins, effect.At)
			if first < 0 || effect.At < first {
				first = effect.At
			}
		}
		for _, phase := range c.record.FaultFreePhases {
			if phase.LeaderChanges > 0 || first < phase.Begin || first > phase.End {
				continue
			}
			begins = slices.DeleteFunc(begins, func(at time.Duration) bool { return at > phase.End })
			if len(begins) > 1 {
				c.addViolation("%v started %d times between %v and %v, without a fault or a new leader", key, len(begins), phase.Begin, phase.End)
			}
		}
	}
}

// checkFaultFreeProgress checks that in a fault-free phase all instances end and every kind of
// client gets answers.
func (c *checker) checkFaultFreeProgress() {
	for _, phase := range c.record.FaultFreePhases {
		if len(phase.Stuck) > 0 {
			c.addViolation("between %v and %v there was no fault, but %d instances made no progress: %.300q", phase.Begin, phase.End, len(phase.Stuck), phase.Stuck)
		}
		local, remote := 0, 0
		for _, call := range c.record.Calls {
			switch {
			case call.Outcome != evidence.Acked || call.Begin < phase.Begin || call.End > phase.End:
			case call.Remote:
				remote++
			default:
				local++
			}
		}
		if local == 0 || remote == 0 {
			c.addViolation("between %v and %v there was no fault, but clients of nodes had %d calls acknowledged, and remote clients %d", phase.Begin, phase.End, local, remote)
		}
	}
}

// checkLatency compares write latencies of later fault-free phases with those of the first.
func (c *checker) checkLatency() {
	var base *evidence.FaultFreePhase
	for i := range c.record.FaultFreePhases {
		phase := &c.record.FaultFreePhases[i]
		if phase.LeaderChanges > 0 || len(c.writesIn(phase)) < latenciesMin {
			continue
		}
		if base == nil {
			base = phase
			continue
		}
		before, now := c.writesIn(base), c.writesIn(phase)
		for _, of := range []struct {
			name     string
			quantile float64
			factor   float64
		}{{"p50", 0.5, medianFactor}, {"p99", 0.99, tailFactor}} {
			slower := max(1, float64(quantile(phase.Noise, of.quantile))/float64(max(1, quantile(base.Noise, of.quantile))))
			limit := time.Duration(of.factor * slower * float64(quantile(before, of.quantile)))
			if got := quantile(now, of.quantile); got > limit {
				c.addViolation("between %v and %v writes took %v (%s), compared with %v between %v and %v; the machine was %.1f times slower",
					phase.Begin, phase.LoadEnd, got, of.name, quantile(before, of.quantile), base.Begin, base.LoadEnd, slower)
			}
		}
	}
}

// writesIn returns the latencies of the probes' writes in a fault-free phase, sorted.
func (c *checker) writesIn(phase *evidence.FaultFreePhase) (took []time.Duration) {
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Send && call.Outcome == evidence.Acked && strings.HasPrefix(call.Instance, "probe-") &&
			call.Begin >= phase.Begin && call.End <= phase.LoadEnd {
			took = append(took, call.End-call.Begin)
		}
	}
	slices.Sort(took)
	return took
}

// quantile returns the nearest-rank quantile, or 0 for an empty slice.
func quantile[T cmp.Ordered](of []T, q float64) (zero T) {
	if len(of) == 0 {
		return zero
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
