package link

import (
	"math/rand/v2"
	"time"
)

// A Condition describes one direction between two nodes. The zero value passes everything without
// delay.
type Condition struct {
	// Nothing passes.
	Cut bool
	// How long each chunk is delayed, and by how much that varies in either direction.
	Delay, Jitter time.Duration
	// The share of chunks (what one read returns) that are lost once and sent again after a
	// retransmission timeout, 0 to 1.
	Loss float64
}

// The retransmission timeout of a chunk, which doubles with each loss.
const (
	resendFirst = 200 * time.Millisecond
	resendMax   = 5
)

// latency returns the delay of one chunk.
func (c Condition) latency() time.Duration {
	delay := c.Delay
	if c.Jitter > 0 {
		delay += rand.N(2*c.Jitter) - c.Jitter
	}
	for pause, n := resendFirst, 0; n < resendMax && rand.Float64() < c.Loss; n++ {
		delay += pause
		pause *= 2
	}
	return max(0, delay)
}
