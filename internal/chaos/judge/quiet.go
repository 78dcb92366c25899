package judge

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

// How many times as long as in the first phase without faults a write may take in a later one:
// half of them, and all but one in a hundred. If the machine itself was slower, the cluster may be
// slower by as much.
const (
	medianFactor = 8
	tailFactor   = 20
	// Fewer writes than these say nothing of a tail.
	latenciesMin = 100
)

// triedOnce judges that an activity that is first attempted in a phase without faults is
// attempted once. No workload's attempts fail, and a new leader alone may repeat one.
func (c *trial) triedOnce() {
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
		for _, quiet := range c.record.Quiets {
			if quiet.Changes > 0 || first < quiet.Begin || first > quiet.End {
				continue
			}
			begins = slices.DeleteFunc(begins, func(at time.Duration) bool { return at > quiet.End })
			if len(begins) > 1 {
				c.violated("%v began %d times between %v and %v, without a fault or a new leader", key, len(begins), quiet.Begin, quiet.End)
			}
		}
	}
}

// endedWithoutFaults judges that in a phase without faults everything comes to its end, and that
// clients of every kind have answers.
func (c *trial) endedWithoutFaults() {
	for _, quiet := range c.record.Quiets {
		if len(quiet.Stuck) > 0 {
			c.violated("between %v and %v no fault was made, and %d instances did not go on: %.300q", quiet.Begin, quiet.End, len(quiet.Stuck), quiet.Stuck)
		}
		here, remote := 0, 0
		for _, call := range c.record.Calls {
			switch {
			case call.Outcome != evidence.Acked || call.Begin < quiet.Begin || call.End > quiet.End:
			case call.Remote:
				remote++
			default:
				here++
			}
		}
		if here == 0 || remote == 0 {
			c.violated("between %v and %v no fault was made; clients of nodes had %d calls acknowledged, and remote ones %d", quiet.Begin, quiet.End, here, remote)
		}
	}
}

// latency judges how long writes take in the later phases without faults by the first one.
func (c *trial) latency() {
	var base *evidence.Quiet
	for i := range c.record.Quiets {
		quiet := &c.record.Quiets[i]
		if quiet.Changes > 0 || len(c.writesIn(quiet)) < latenciesMin {
			continue
		}
		if base == nil {
			base = quiet
			continue
		}
		before, now := c.writesIn(base), c.writesIn(quiet)
		for _, of := range []struct {
			name     string
			quantile float64
			factor   float64
		}{{"p50", 0.5, medianFactor}, {"p99", 0.99, tailFactor}} {
			slower := max(1, float64(quantile(quiet.Control, of.quantile))/float64(max(1, quantile(base.Control, of.quantile))))
			limit := time.Duration(of.factor * slower * float64(quantile(before, of.quantile)))
			if got := quantile(now, of.quantile); got > limit {
				c.violated("between %v and %v writes took %v (%s), and %v between %v and %v; the machine was %.1f times as slow",
					quiet.Begin, quiet.Loaded, got, of.name, quantile(before, of.quantile), base.Begin, base.Loaded, slower)
			}
		}
	}
}

// writesIn returns how long those of probes took in a phase without faults, in order.
func (c *trial) writesIn(quiet *evidence.Quiet) (took []time.Duration) {
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Send && call.Outcome == evidence.Acked && strings.HasPrefix(call.Instance, "probe-") &&
			call.Begin >= quiet.Begin && call.End <= quiet.Loaded {
			took = append(took, call.End-call.Begin)
		}
	}
	slices.Sort(took)
	return took
}

// quantile returns the nearest-rank quantile, 0 of nothing.
func quantile[T cmp.Ordered](of []T, q float64) (zero T) {
	if len(of) == 0 {
		return zero
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
