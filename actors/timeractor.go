package actors

import (
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
)

// recheckInterval bounds how long the timer actor sleeps. If cluster time and local time diverge,
// a timer is late by at most this.
const recheckInterval = 10 * time.Second

// The messages to the timer actor.
type (
	scheduleTimer struct {
		timer *sched.Timer[operation.Key]
	}
	cancelTimer struct{ key operation.Key }
	tick        struct{}
)

// A timerActor fires all timers of a partition, including retries and other delayed work. It never
// fires before the due cluster time. While too many instances are busy it defers due orchestration
// timers, so that a million timers do not load a million instances at once. Other timers still
// fire.
type timerActor struct {
	partition *Partition
	pid       *actor.PID
	done      sync.WaitGroup // the actor, and the callback of its time.Timer

	// Only the actor uses the fields below.
	timers    *sched.Timers[operation.Key]
	wakeTimer *time.Timer
	wakeAt    clustertime.Time // zero: the actor does not sleep
}

func newTimerActor(p *Partition) *timerActor {
	t := &timerActor{partition: p, timers: sched.NewTimers[operation.Key]()}
	t.done.Add(1)
	t.pid, _ = p.system.spawn(t.receive)
	return t
}

// Schedule schedules fire for a time. It replaces a timer with the same key. Only timers of
// orchestrations can be deferred, not those of activities and the engine.
func (t *timerActor) Schedule(due clustertime.Time, key operation.Key, fire func()) {
	deferrable := key.Instance != "" && key.Timer == 0
	t.send(scheduleTimer{&sched.Timer[operation.Key]{Due: due, Key: key, Fire: fire, Deferrable: deferrable}})
}

// ScheduleAfter schedules fire after a delay.
func (t *timerActor) ScheduleAfter(d time.Duration, fire func()) {
	t.Schedule(t.partition.now().Add(d), operation.Key{}, fire)
}

// Cancel cancels the timer with a key.
func (t *timerActor) Cancel(key operation.Key) { t.send(cancelTimer{key}) }

func (t *timerActor) send(message any) { t.partition.system.actors.Root.Send(t.pid, message) }

// close stops the timer actor and waits for it. No timer fires afterwards.
func (t *timerActor) close() {
	t.send(stopRequest{})
	t.done.Wait()
}

func (t *timerActor) receive(ctx actor.Context) {
	switch message := ctx.Message().(type) {
	case scheduleTimer:
		t.timers.Add(message.timer)
	case cancelTimer:
		t.timers.Cancel(message.key)
	case tick:
		t.wakeAt = clustertime.Time{}
	case stopRequest:
		t.stop(ctx)
		return
	default:
		return
	}
	t.fireDue()
}

// fireDue fires due timers and sleeps until the next. The partition sends a tick when deferred
// timers may fire.
func (t *timerActor) fireDue() {
	now := t.partition.now()
	deferred := false
	for {
		next := t.timers.Next(deferred)
		switch {
		case next == nil:
			return
		case next.Due.After(now):
			t.sleep(now, next.Due)
			return
		case next.Deferrable && t.partition.shouldDeferTimers():
			deferred = true
		default:
			t.timers.Remove(next)
			t.fire(next)
		}
	}
}

// fire calls the function of a timer. A panic in it does not stop the other timers.
func (t *timerActor) fire(timer *sched.Timer[operation.Key]) {
	defer func() {
		if value := recover(); value != nil {
			t.partition.system.counters.faults.Add(1)
			t.partition.logger.Error("fault in timer", "instance", timer.Key.Instance, "execution", timer.Key.Execution,
				"event_id", timer.Key.EventID, "fault", value, "stack", string(debug.Stack()))
		}
	}()
	timer.Fire()
}

func (t *timerActor) sleep(now, due clustertime.Time) {
	if !t.wakeAt.IsZero() && !due.Before(t.wakeAt) {
		return
	}
	if t.wakeTimer != nil && t.wakeTimer.Stop() {
		t.done.Done()
	}
	delay := min(due.Sub(now), recheckInterval)
	t.wakeAt = now.Add(delay)
	t.done.Add(1)
	t.wakeTimer = time.AfterFunc(delay, func() {
		defer t.done.Done()
		t.send(tick{})
	})
}

func (t *timerActor) stop(ctx actor.Context) {
	if t.wakeTimer != nil && t.wakeTimer.Stop() {
		t.done.Done()
	}
	ctx.Stop(ctx.Self())
	t.done.Done()
}

// Due timers are deferred while deferTimersFactor*TurnsMax instances are busy and not stalled.
const deferTimersFactor = 2

// busyInstances returns how many instances have something to do and can do it. p.mu is held.
func (p *Partition) busyInstances() int {
	return len(p.instances) - p.idle.Len() - p.stalls.count - p.code.Blocked()
}

// shouldDeferTimers reports whether due timers must be deferred. If so, resumeTimers sends a tick
// later.
func (p *Partition) shouldDeferTimers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timersDeferred = p.busyInstances() >= deferTimersFactor*p.turnLimiter.Max()
	return p.timersDeferred
}

// resumeTimers lets deferred timers fire when at most half as many instances are busy. p.mu is
// held.
func (p *Partition) resumeTimers() {
	if p.timersDeferred && p.busyInstances() <= deferTimersFactor*p.turnLimiter.Max()/2 {
		p.timersDeferred = false
		p.timers.send(tick{})
	}
}
