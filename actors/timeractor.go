package actors

import (
	"container/heap"
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
)

// recheckInterval bounds how long the timer actor sleeps. If cluster time and local time diverge,
// a timer is late by at most this.
const recheckInterval = 10 * time.Second

// A timer is a function to call at a time.
type timer struct {
	due      clustertime.Time
	key      operationKey // the zero key cannot be canceled
	fire     func()       // must not block
	sequence uint64       // timers that are due together fire in the order of scheduling
	index    int          // in the heap
}

type operationKey struct {
	instance string
	// incarnation is that of the run that the execution belongs to.
	incarnation uint64
	execution   uint64
	eventID     uint64
	kind        timerKind // of a timer of an activity; 0 for one of an orchestration
}

// The messages to the timer actor.
type (
	scheduleTimer struct{ timer *timer }
	cancelTimer   struct{ key operationKey }
	tick          struct{}
)

// isOrchestrationTimer reports whether a timer belongs to an orchestration, and not to an activity
// or the engine.
func (a *timer) isOrchestrationTimer() bool {
	return a.key.instance != "" && a.key.kind == timerOrchestration
}

// before reports whether a fires before b. b may be nil.
func (a *timer) before(b *timer) bool {
	if b == nil || a.due != b.due {
		return b == nil || a.due.Before(b.due)
	}
	return a.sequence < b.sequence
}

// A timerActor fires all timers of a partition, including retries and other delayed work. It never
// fires before the due cluster time. While too many instances are busy it defers due orchestration
// timers, so that a million timers do not load a million instances at once. Other timers still
// fire.
type timerActor struct {
	partition *Partition
	pid       *actor.PID
	done      sync.WaitGroup // the actor, and the callback of its time.Timer

	// Only the actor uses the fields below.
	orchestrationTimers timerHeap
	internalTimers      timerHeap
	lastSequence        uint64 // how many timers were ever scheduled
	byKey               map[operationKey]*timer
	wakeTimer           *time.Timer
	wakeAt              clustertime.Time // zero: the actor does not sleep
}

func newTimerActor(p *Partition) *timerActor {
	c := &timerActor{partition: p, byKey: make(map[operationKey]*timer)}
	c.done.Add(1)
	c.pid, _ = p.system.spawn(c.receive)
	return c
}

// schedule schedules fire for a time. It replaces a timer with the same key.
func (c *timerActor) schedule(due clustertime.Time, key operationKey, fire func()) {
	c.send(scheduleTimer{&timer{due: due, key: key, fire: fire}})
}

// scheduleAfter schedules fire after a delay.
func (c *timerActor) scheduleAfter(d time.Duration, fire func()) {
	c.schedule(c.partition.now().Add(d), operationKey{}, fire)
}

// cancel cancels the timer with a key.
func (c *timerActor) cancel(key operationKey) { c.send(cancelTimer{key}) }

func (c *timerActor) send(message any) { c.partition.system.actors.Root.Send(c.pid, message) }

// close stops the timer actor and waits for it. No timer fires afterwards.
func (c *timerActor) close() {
	c.send(stopRequest{})
	c.done.Wait()
}

func (c *timerActor) receive(ctx actor.Context) {
	switch message := ctx.Message().(type) {
	case scheduleTimer:
		c.add(message.timer)
	case cancelTimer:
		if a := c.byKey[message.key]; a != nil {
			c.remove(a)
		}
	case tick:
		c.wakeAt = clustertime.Time{}
	case stopRequest:
		c.stop(ctx)
		return
	default:
		return
	}
	c.fireDue()
}

func (c *timerActor) add(a *timer) {
	if a.key != (operationKey{}) {
		if before := c.byKey[a.key]; before != nil {
			c.remove(before)
		}
		c.byKey[a.key] = a
	}
	c.lastSequence++
	a.sequence = c.lastSequence
	heap.Push(c.heapOf(a), a)
}

func (c *timerActor) remove(a *timer) {
	heap.Remove(c.heapOf(a), a.index)
	delete(c.byKey, a.key)
}

func (c *timerActor) heapOf(a *timer) *timerHeap {
	if a.isOrchestrationTimer() {
		return &c.orchestrationTimers
	}
	return &c.internalTimers
}

// fireDue fires due timers and sleeps until the next. The partition sends a tick when deferred
// timers may fire.
func (c *timerActor) fireDue() {
	now := c.partition.now()
	retained := false
	for {
		next := c.next(retained)
		switch {
		case next == nil:
			return
		case next.due.After(now):
			c.sleep(now, next.due)
			return
		case next.isOrchestrationTimer() && c.partition.shouldDeferTimers():
			retained = true
		default:
			c.remove(next)
			c.fire(next)
		}
	}
}

// next returns the timer to fire first, nil if there is none. It skips orchestration timers if
// retained is set.
func (c *timerActor) next(retained bool) *timer {
	var next *timer
	if len(c.internalTimers) > 0 {
		next = c.internalTimers[0]
	}
	if !retained && len(c.orchestrationTimers) > 0 && c.orchestrationTimers[0].before(next) {
		next = c.orchestrationTimers[0]
	}
	return next
}

// fire calls the function of a timer. A panic in it does not stop the other timers.
func (c *timerActor) fire(a *timer) {
	defer func() {
		if value := recover(); value != nil {
			c.partition.logger.Error("fault in timer", "instance", a.key.instance, "execution", a.key.execution,
				"event_id", a.key.eventID, "fault", value, "stack", string(debug.Stack()))
		}
	}()
	a.fire()
}

func (c *timerActor) sleep(now, due clustertime.Time) {
	if !c.wakeAt.IsZero() && !due.Before(c.wakeAt) {
		return
	}
	if c.wakeTimer != nil && c.wakeTimer.Stop() {
		c.done.Done()
	}
	delay := min(due.Sub(now), recheckInterval)
	c.wakeAt = now.Add(delay)
	c.done.Add(1)
	c.wakeTimer = time.AfterFunc(delay, func() {
		defer c.done.Done()
		c.send(tick{})
	})
}

func (c *timerActor) stop(ctx actor.Context) {
	if c.wakeTimer != nil && c.wakeTimer.Stop() {
		c.done.Done()
	}
	ctx.Stop(ctx.Self())
	c.done.Done()
}

type timerHeap []*timer

func (h timerHeap) Len() int { return len(h) }

func (h timerHeap) Less(i, j int) bool { return h[i].before(h[j]) }

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	a := x.(*timer)
	a.index = len(*h)
	*h = append(*h, a)
}

func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return a
}
