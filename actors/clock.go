package actors

import (
	"container/heap"
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
)

// recheckEvery bounds how long the clock sleeps: if the cluster time has moved
// otherwise than the time of the machine, a timer is late by no more.
const recheckEvery = 10 * time.Second

// An alarm is something to do at a time.
type alarm struct {
	due   clustertime.Time
	key   alarmKey // the zero key cannot be disarmed
	ring  func()   // must not block
	order uint64   // of those that are due at the same time the first armed rings first
	index int      // in the heap
}

type alarmKey struct {
	instance string
	// Of the run that the execution belongs to.
	incarnation uint64
	execution   uint64
	eventID     uint64
	kind        alarmKind // of an activity, which has several; 0 of a timer
}

// What the clock's actor is told.
type (
	arm    struct{ alarm *alarm }
	disarm struct{ key alarmKey }
	tick   struct{}
)

// isTimer tells whether the alarm is a timer of an orchestration, and not one of an
// activity's or the engine's own.
func (a *alarm) isTimer() bool { return a.key.instance != "" && a.key.kind == alarmTimer }

// before tells whether a rings before b, which may be nil.
func (a *alarm) before(b *alarm) bool {
	if b == nil || a.due != b.due {
		return b == nil || a.due.Before(b.due)
	}
	return a.order < b.order
}

// A clock is the timer actor of a partition: for all its timers, and for everything
// else that is to be done later. It never rings before the cluster time. While too
// many instances have something to do, it keeps timers that are due back, so that
// a million at once do not bring a million instances into memory; everything else
// rings.
type clock struct {
	partition *Partition
	pid       *actor.PID
	done      sync.WaitGroup // the actor, and the callback of its timer

	// The actor's own.
	timers heapOfAlarms
	others heapOfAlarms
	armed  uint64 // how many there ever were
	byKey  map[alarmKey]*alarm
	timer  *time.Timer
	wakeAt clustertime.Time // zero: the clock does not sleep
}

func newClock(p *Partition) *clock {
	c := &clock{partition: p, byKey: make(map[alarmKey]*alarm)}
	c.done.Add(1)
	c.pid, _ = p.system.spawn(c.receive)
	return c
}

// at rings when due has come. An alarm with the same key takes its place.
func (c *clock) at(due clustertime.Time, key alarmKey, ring func()) {
	c.tell(arm{&alarm{due: due, key: key, ring: ring}})
}

// after rings when d has passed.
func (c *clock) after(d time.Duration, ring func()) { c.at(c.partition.now().Add(d), alarmKey{}, ring) }

// disarm takes an alarm back.
func (c *clock) disarm(key alarmKey) { c.tell(disarm{key}) }

func (c *clock) tell(message any) { c.partition.system.actors.Root.Send(c.pid, message) }

// close stops the clock and waits for it. No alarm rings after that.
func (c *clock) close() {
	c.tell(leave{})
	c.done.Wait()
}

func (c *clock) receive(ctx actor.Context) {
	switch message := ctx.Message().(type) {
	case arm:
		c.arm(message.alarm)
	case disarm:
		if a := c.byKey[message.key]; a != nil {
			c.remove(a)
		}
	case tick:
		c.wakeAt = clustertime.Time{}
	case leave:
		c.stop(ctx)
		return
	default:
		return
	}
	c.ring()
}

func (c *clock) arm(a *alarm) {
	if a.key != (alarmKey{}) {
		if before := c.byKey[a.key]; before != nil {
			c.remove(before)
		}
		c.byKey[a.key] = a
	}
	c.armed++
	a.order = c.armed
	heap.Push(c.heapOf(a), a)
}

func (c *clock) remove(a *alarm) {
	heap.Remove(c.heapOf(a), a.index)
	delete(c.byKey, a.key)
}

func (c *clock) heapOf(a *alarm) *heapOfAlarms {
	if a.isTimer() {
		return &c.timers
	}
	return &c.others
}

// ring rings what is due and sleeps until the next. For timers that are kept back
// the partition ticks.
func (c *clock) ring() {
	now := c.partition.now()
	kept := false
	for {
		next := c.next(kept)
		switch {
		case next == nil:
			return
		case next.due.After(now):
			c.sleep(now, next.due)
			return
		case next.isTimer() && c.partition.keepsTimers():
			kept = true
		default:
			c.remove(next)
			c.contain(next)
		}
	}
}

// next returns the alarm that rings first, nil if there is none; with timers that
// are kept back the first of the others.
func (c *clock) next(kept bool) *alarm {
	var next *alarm
	if len(c.others) > 0 {
		next = c.others[0]
	}
	if !kept && len(c.timers) > 0 && c.timers[0].before(next) {
		next = c.timers[0]
	}
	return next
}

// contain keeps a fault in what one alarm does away from all the others.
func (c *clock) contain(a *alarm) {
	defer func() {
		if value := recover(); value != nil {
			c.partition.logger.Error("fault in an alarm", "instance", a.key.instance, "execution", a.key.execution,
				"event_id", a.key.eventID, "fault", value, "stack", string(debug.Stack()))
		}
	}()
	a.ring()
}

func (c *clock) sleep(now, due clustertime.Time) {
	if !c.wakeAt.IsZero() && !due.Before(c.wakeAt) {
		return
	}
	if c.timer != nil && c.timer.Stop() {
		c.done.Done()
	}
	pause := min(due.Sub(now), recheckEvery)
	c.wakeAt = now.Add(pause)
	c.done.Add(1)
	c.timer = time.AfterFunc(pause, func() {
		defer c.done.Done()
		c.tell(tick{})
	})
}

func (c *clock) stop(ctx actor.Context) {
	if c.timer != nil && c.timer.Stop() {
		c.done.Done()
	}
	ctx.Stop(ctx.Self())
	c.done.Done()
}

// heapOfAlarms has the earliest first.
type heapOfAlarms []*alarm

func (h heapOfAlarms) Len() int { return len(h) }

func (h heapOfAlarms) Less(i, j int) bool { return h[i].before(h[j]) }

func (h heapOfAlarms) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *heapOfAlarms) Push(x any) {
	a := x.(*alarm)
	a.index = len(*h)
	*h = append(*h, a)
}

func (h *heapOfAlarms) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return a
}
