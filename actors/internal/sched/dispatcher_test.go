package sched

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

func goroutineName() string {
	stack := make([]byte, 64)
	stack = stack[:runtime.Stack(stack, false)]
	return string(stack[:bytes.IndexByte(stack, '[')])
}

func TestDispatcher_ReusesGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher()
		names := make(map[string]int)
		for range 100 {
			d.Schedule(func() { names[goroutineName()]++ })
			synctest.Wait()
		}
		if len(names) != 1 {
			t.Errorf("%d goroutines for sequential work", len(names))
		}
		d.Close()
		d.Wait()
	})
}

func TestDispatcher_BoundsParkedGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher()
		release := make(chan struct{})
		for range 3 * parkedMax {
			d.Schedule(func() { <-release })
		}
		d.Schedule(runtime.Goexit) // ends only its own goroutine
		synctest.Wait()
		if len(d.parked) != 0 {
			t.Errorf("%d parked while all are at work", len(d.parked))
		}
		close(release)
		synctest.Wait()
		if len(d.parked) != parkedMax {
			t.Errorf("%d parked", len(d.parked))
		}
		// Parked goroutines are reused before new ones are made.
		again := make(chan struct{})
		for range parkedMax {
			d.Schedule(func() { <-again })
		}
		synctest.Wait()
		if len(d.parked) != 0 {
			t.Errorf("%d parked besides new ones", len(d.parked))
		}
		close(again)
		synctest.Wait()
		d.Close()
		d.Wait()
		// Work scheduled after close still runs, on a goroutine that ends.
		ran := false
		d.Schedule(func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("dropped")
		}
	})
}

// An actorGroup is actors that record when they run, and then wait until released.
type actorGroup struct {
	dispatcher *Dispatcher
	release    chan struct{}

	mu      sync.Mutex
	started []int // actors whose turn has begun, in order
	running int
	peak    int
}

func (a *actorGroup) wake(i int) {
	m := a.dispatcher.NewMailbox()
	m.RegisterHandlers(&groupActor{group: a, number: i}, a.dispatcher)
	m.PostUserMessage("act")
}

// state returns the actors whose turns have begun, and how many run.
func (a *actorGroup) state() (at []int, running int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.started), a.running
}

type groupActor struct {
	group  *actorGroup
	number int
}

func (g *groupActor) InvokeSystemMessage(any) {}

func (g *groupActor) InvokeUserMessage(any) {
	c := g.group
	c.mu.Lock()
	c.started = append(c.started, g.number)
	c.running++
	c.peak = max(c.peak, c.running)
	c.mu.Unlock()
	<-c.release
	c.mu.Lock()
	c.running--
	c.mu.Unlock()
}

func (g *groupActor) EscalateFailure(reason, message any) { panic(fmt.Sprint(reason, message)) }

var _ actor.MessageInvoker = (*groupActor)(nil)

func TestDispatcher_QueuesMailboxesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &actorGroup{dispatcher: NewDispatcher(), release: make(chan struct{})}
		c.dispatcher.activeMax = 3
		for i := range 100 {
			c.wake(i)
			synctest.Wait()
		}
		if _, running := c.state(); running != 3 {
			t.Errorf("%d run at once", running)
		}
		for range 100 {
			c.release <- struct{}{} // before stuckTimeout
			synctest.Wait()
		}
		if at, _ := c.state(); c.peak != 3 || len(at) != 100 || !slices.IsSorted(at) {
			t.Errorf("%d ran at once, in the order %v", c.peak, at)
		}
		if d := c.dispatcher; d.active != 0 || d.first != nil || d.last != nil || len(d.parked) != 3 {
			t.Errorf("%d act, %d are parked", d.active, len(d.parked))
		}
		c.dispatcher.Close()
		c.dispatcher.Wait()
	})
}

// With one processor, other goroutines run when one that runs mailboxes yields, or after the 10 ms
// that the runtime allows.
func TestDispatcher_YieldsProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		const actors = 100 * mailboxesPerYield
		c := &actorGroup{dispatcher: NewDispatcher(), release: make(chan struct{})}
		c.dispatcher.activeMax = 1
		for i := range actors {
			c.wake(i)
		}
		close(c.release)
		turns := 0
		for at := 0; at < actors; turns++ {
			runtime.Gosched()
			arrived, _ := c.state()
			at = len(arrived)
		}
		if turns < actors/mailboxesPerYield/2 {
			t.Errorf("another goroutine had %d turns beside %d actors", turns, actors)
		}
		c.dispatcher.Close()
		c.dispatcher.Wait()
	})
}

// Blocked code keeps its goroutines, and other actors still run.
func TestDispatcher_BlockedActorsDoNotStarveOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher()
		d.activeMax = 2
		blocked := &actorGroup{dispatcher: d, release: make(chan struct{})}
		for i := range 5 {
			blocked.wake(i)
		}
		others := &actorGroup{dispatcher: d, release: make(chan struct{})}
		close(others.release)
		for i := range 100 {
			others.wake(i)
		}
		// Three blocked actors are ahead of the others.
		time.Sleep(6 * stuckTimeout)
		synctest.Wait()
		at, _ := others.state()
		if _, running := blocked.state(); len(at) != 100 || running != 5 {
			t.Errorf("%d actors ran while %d block", len(at), running)
		}
		close(blocked.release)
		synctest.Wait()
		if d.active != 0 {
			t.Errorf("%d still act", d.active)
		}
		d.Close()
		d.Wait()
	})
}
