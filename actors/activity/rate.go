package activity

import "time"

// A Rate bounds how often attempts of an activity begin.
type Rate struct {
	// PerSecond is how many attempts begin in a second, on average. It must be positive.
	PerSecond float64
	// Burst is how many may begin at once after a pause. Defaults to 1.
	Burst int
}

// A tokenBucket enforces a rate. It begins with one token, so that a change of leader adds at most
// one.
type tokenBucket struct {
	rate           Rate
	interval       time.Duration // between tokens
	burst          time.Duration // to fill a bucket that has one token
	fullAt         time.Time     // when the bucket will be full
	timerScheduled bool          // a timer will call dispatch when there is a token
}

func newTokenBucket(rate Rate, now time.Time) *tokenBucket {
	interval := time.Duration(float64(time.Second) / rate.PerSecond)
	burst := interval * time.Duration(max(rate.Burst, 1)-1)
	return &tokenBucket{rate: rate, interval: interval, burst: burst, fullAt: now.Add(burst)}
}

// wait returns the time until there is a token, 0 if there is one.
func (b *tokenBucket) wait(now time.Time) time.Duration {
	return max(b.fullAt.Add(-b.burst).Sub(now), 0)
}

// take takes a token, which must be there.
func (b *tokenBucket) take(now time.Time) {
	if b.fullAt.Before(now) {
		b.fullAt = now
	}
	b.fullAt = b.fullAt.Add(b.interval)
}

// newTokenBuckets returns the buckets of a newly led partition.
func newTokenBuckets(rates map[string]Rate) map[string]*tokenBucket {
	buckets := make(map[string]*tokenBucket, len(rates))
	for name, rate := range rates {
		buckets[name] = newTokenBucket(rate, time.Now())
	}
	return buckets
}

// SetRates replaces the rates. A rate that stays the same is not affected. Any other begins with
// one token. The caller must not change the map later.
func (s *Scheduler) SetRates(rates map[string]Rate) {
	s.withLock(func() func() {
		s.rates = rates
		s.dispatch()
		return nil
	})
}

// bucket returns the bucket of an activity, nil if no rate limits it. The lock is held.
func (p *Partition) bucket(name string) *tokenBucket {
	rate, limited := p.scheduler.rates[name]
	b := p.buckets[name]
	switch {
	case !limited:
		delete(p.buckets, name)
		return nil
	case b == nil || b.rate != rate:
		b = newTokenBucket(rate, time.Now())
		p.buckets[name] = b
	}
	return b
}

// rateAllows reports whether the rate of a class allows an attempt now. If not, it schedules a
// dispatch for when it does. The lock is held.
func (s *Scheduler) rateAllows(c class) bool {
	b := c.partition.bucket(c.name)
	if b == nil {
		return true
	}
	delay := b.wait(time.Now())
	if delay > 0 && !b.timerScheduled {
		b.timerScheduled = true
		c.partition.config.Timers.ScheduleAfter(delay, func() {
			s.withLock(func() func() {
				b.timerScheduled = false
				s.dispatch()
				return nil
			})
		})
	}
	return delay == 0
}
