package actors

import (
	"container/list"
	"time"
)

// A class is the partition, name and tag of an activity. It determines the activity's queue and
// which nodes may run it.
type class struct {
	partition *Partition
	name      string
	tag       string
}

func (t *task) class() class {
	return class{t.partition, t.scheduled.Name, t.scheduled.Options.GetTag()}
}

// A taskQueue holds the waiting tasks of one class, oldest first. It exists only while it is not
// empty.
type taskQueue struct {
	class class
	tasks *list.List
}

// enqueue appends a task to the queue of its class. p.mu is held.
func (p *pool) enqueue(t *task) {
	key := t.class()
	l := p.queues[key]
	if l == nil {
		l = &taskQueue{class: key, tasks: list.New()}
		p.queues[key] = l
	}
	p.lastSequence++
	t.sequence, t.queue, t.element = p.lastSequence, l, l.tasks.PushBack(t)
	t.state = p.queuedState(key)
}

// dequeue removes a task from its queue, if it is in one. The pool's lock is held.
func (t *task) dequeue() {
	if t.queue == nil {
		return
	}
	t.queue.tasks.Remove(t.element)
	if t.queue.tasks.Len() == 0 {
		delete(t.pool().queues, t.queue.class)
	}
	t.queue, t.element = nil, nil
}

// setState sets the state of all tasks in a queue. The pool's lock is held.
func (l *taskQueue) setState(state ActivityState) {
	for e := l.tasks.Front(); e != nil; e = e.Next() {
		e.Value.(*task).state = state
	}
}

func (l *taskQueue) first() *task { return l.tasks.Front().Value.(*task) }

// oldestQueued returns the task that has waited longest among eligible classes, nil if there is
// none. p.mu is held.
func (p *pool) oldestQueued(eligible func(class) bool) *task {
	var oldest *task
	for key, l := range p.queues {
		if t := l.first(); (oldest == nil || t.sequence < oldest.sequence) && eligible(key) {
			oldest = t
		}
	}
	return oldest
}

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
	interval       time.Duration // between tokens
	burst          time.Duration // to fill a bucket that has one token
	fullAt         time.Time     // when the bucket will be full
	timerScheduled bool          // a timer will call dispatch when there is a token
}

func newTokenBucket(rate Rate, now time.Time) *tokenBucket {
	interval := time.Duration(float64(time.Second) / rate.PerSecond)
	burst := interval * time.Duration(max(rate.Burst, 1)-1)
	return &tokenBucket{interval: interval, burst: burst, fullAt: now.Add(burst)}
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
func (c Config) newTokenBuckets() map[string]*tokenBucket {
	buckets := make(map[string]*tokenBucket, len(c.ActivityRates))
	for name, rate := range c.ActivityRates {
		buckets[name] = newTokenBucket(rate, time.Now())
	}
	return buckets
}

// rateAllows reports whether the rate of a class allows an attempt now. If not, it schedules a
// dispatch for when it does. p.mu is held.
func (p *pool) rateAllows(c class) bool {
	b := c.partition.rates[c.name]
	if b == nil {
		return true
	}
	delay := b.wait(time.Now())
	if delay > 0 && !b.timerScheduled {
		b.timerScheduled = true
		c.partition.timers.scheduleAfter(delay, func() {
			p.withLock(func() func() {
				b.timerScheduled = false
				p.dispatch()
				return nil
			})
		})
	}
	return delay == 0
}
