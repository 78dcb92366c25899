package sched

import "time"

// A rejected message or proposal is sent again after a delay that doubles from BackoffMin to
// BackoffMax.
const (
	BackoffMin = 100 * time.Millisecond
	BackoffMax = 5 * time.Second
)

// NextBackoff returns the delay that follows a delay.
func NextBackoff(delay time.Duration) time.Duration { return min(2*delay, BackoffMax) }
