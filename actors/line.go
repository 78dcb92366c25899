package actors

import (
	"container/list"
	"time"
)

// A class is what decides who may run an activity.
type class struct {
	partition *Partition
	name      string
	tag       string
}

func (t *task) class() class {
	return class{t.partition, t.scheduled.Name, t.scheduled.Options.GetTag()}
}

// A line is the tasks of one class that wait for a place, oldest first. There is
// one as long as somebody stands in it.
type line struct {
	class class
	tasks *list.List
}

// wait puts a task at the end of its line. p.mu is held.
func (p *pool) wait(t *task) {
	key := t.class()
	l := p.lines[key]
	if l == nil {
		l = &line{class: key, tasks: list.New()}
		p.lines[key] = l
	}
	p.arrivals++
	t.arrival, t.line, t.place = p.arrivals, l, l.tasks.PushBack(t)
	t.state = p.prospect(key)
}

// unqueue takes a task out of its line, if it stands in one. The pool's lock is
// held.
func (t *task) unqueue() {
	if t.line == nil {
		return
	}
	t.line.tasks.Remove(t.place)
	if t.line.tasks.Len() == 0 {
		delete(t.pool().lines, t.line.class)
	}
	t.line, t.place = nil, nil
}

// mark gives all who stand in a line a state. The pool's lock is held.
func (l *line) mark(state ActivityState) {
	for e := l.tasks.Front(); e != nil; e = e.Next() {
		e.Value.(*task).state = state
	}
}

func (l *line) first() *task { return l.tasks.Front().Value.(*task) }

// oldest returns the task that has waited longest of those whose class can be
// served, nil if there is none. p.mu is held.
func (p *pool) oldest(can func(class) bool) *task {
	var oldest *task
	for key, l := range p.lines {
		if t := l.first(); (oldest == nil || t.arrival < oldest.arrival) && can(key) {
			oldest = t
		}
	}
	return oldest
}

// A Rate bounds how often attempts of an activity begin.
type Rate struct {
	// How many attempts begin in a second, on average. Must be positive.
	PerSecond float64
	// How many may begin at once after a pause. Defaults to 1.
	Burst int
}

// A bucket keeps a rate. It begins with one token, so that a change of leaders
// adds no more than that.
type bucket struct {
	every time.Duration // one token
	depth time.Duration // of all tokens but one
	full  time.Time     // when the bucket would be full but for one token
	armed bool          // an alarm will ring when there is a token
}

func newBucket(rate Rate, now time.Time) *bucket {
	every := time.Duration(float64(time.Second) / rate.PerSecond)
	depth := every * time.Duration(max(rate.Burst, 1)-1)
	return &bucket{every: every, depth: depth, full: now.Add(depth)}
}

// wait returns how long until there is a token, 0 if there is one.
func (b *bucket) wait(now time.Time) time.Duration {
	return max(b.full.Add(-b.depth).Sub(now), 0)
}

// take takes a token that is there.
func (b *bucket) take(now time.Time) {
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(b.every)
}

// buckets returns those of a partition that is led from now on.
func (c Config) buckets() map[string]*bucket {
	buckets := make(map[string]*bucket, len(c.ActivityRates))
	for name, rate := range c.ActivityRates {
		buckets[name] = newBucket(rate, time.Now())
	}
	return buckets
}

// mayBegin tells whether the rate of a class lets an attempt begin now; when it
// does not, the lines are looked at again when it does. p.mu is held.
func (p *pool) mayBegin(c class) bool {
	b := c.partition.rates[c.name]
	if b == nil {
		return true
	}
	pause := b.wait(time.Now())
	if pause > 0 && !b.armed {
		b.armed = true
		c.partition.clock.after(pause, func() {
			p.locked(func() func() {
				b.armed = false
				p.dispatch()
				return nil
			})
		})
	}
	return pause == 0
}
