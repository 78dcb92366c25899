package link

import (
	"math/rand/v2"
	"time"
)

// A Condition is what a direction between two nodes is like. The zero value lets
// everything pass at once.
type Condition struct {
	// Nothing passes.
	Cut bool
	// How long everything takes, give or take Jitter.
	Delay, Jitter time.Duration
	// The share of chunks (what one read returns) that are lost once and sent
	// again after a retransmission's pause, 0 to 1.
	Loss float64
}

// The pause before a packet is sent again; it doubles with each loss.
const (
	resendFirst = 200 * time.Millisecond
	resendMax   = 5
)

// lateness returns how long one chunk takes.
func (c Condition) lateness() time.Duration {
	late := c.Delay
	if c.Jitter > 0 {
		late += rand.N(2*c.Jitter) - c.Jitter
	}
	for pause, n := resendFirst, 0; n < resendMax && rand.Float64() < c.Loss; n++ {
		late += pause
		pause *= 2
	}
	return max(0, late)
}
