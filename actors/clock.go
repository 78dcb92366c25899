package actors

import (
	"container/heap"
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// recheckEvery bounds how long the clock sleeps: if the cluster time has moved
// otherwise than the time of the machine, a timer is late by no more.
const recheckEvery = 10 * time.Second

// An alarm is something to do at a time.
type alarm struct {
	due   time.Time
	key   alarmKey // the zero key cannot be disarmed
	ring  func()   // must not block
	order uint64   // of those that are due at the same time the first armed rings first
	index int      // in the heap
}

type alarmKey struct {
	instance  string
	execution uint64
	eventID   uint64
	kind      alarmKind // of an activity, which has several; 0 of a timer
}

// What the clock's actor is told.
type (
	arm    struct{ alarm *alarm }
	disarm struct{ key alarmKey }
	tick   struct{}
)

// A clock is the timer actor of a partition: one heap for all its timers, and
// for everything else that is to be done later. It never rings before the
// cluster time.
type clock struct {
	partition *Partition
	pid       *actor.PID
	done      sync.WaitGroup // the actor, and the callback of its timer

	// The actor's own.
	alarms heapOfAlarms
	armed  uint64 // how many there ever were
	byKey  map[alarmKey]*alarm
	timer  *time.Timer
	wakeAt time.Time
}

func newClock(p *Partition) *clock {
	c := &clock{partition: p, byKey: make(map[alarmKey]*alarm)}
	c.done.Add(1)
	c.pid = p.system.spawn(c.receive)
	return c
}

// at rings when due has come. An alarm with the same key takes its place.
func (c *clock) at(due time.Time, key alarmKey, ring func()) {
	// Without the monotonic reading, so that times are compared as they are
	// recorded.
	c.tell(arm{&alarm{due: due.Round(0), key: key, ring: ring}})
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
		c.wakeAt = time.Time{}
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
	heap.Push(&c.alarms, a)
}

func (c *clock) remove(a *alarm) {
	heap.Remove(&c.alarms, a.index)
	delete(c.byKey, a.key)
}

// ring rings what is due and sleeps until the next.
func (c *clock) ring() {
	now := c.partition.now().Round(0)
	for len(c.alarms) > 0 && !c.alarms[0].due.After(now) {
		a := c.alarms[0]
		c.remove(a)
		c.contain(a)
	}
	if len(c.alarms) == 0 {
		return
	}
	c.sleep(now, c.alarms[0].due)
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

func (c *clock) sleep(now, due time.Time) {
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

func (h heapOfAlarms) Less(i, j int) bool {
	if h[i].due.Equal(h[j].due) {
		return h[i].order < h[j].order
	}
	return h[i].due.Before(h[j].due)
}

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
