package actors

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

// self returns what names the running goroutine.
func self() string {
	stack := make([]byte, 64)
	stack = stack[:runtime.Stack(stack, false)]
	return string(stack[:bytes.IndexByte(stack, '[')])
}

func TestDispatcherReusesItsGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher()
		names := make(map[string]int)
		for range 100 {
			d.Schedule(func() { names[self()]++ })
			synctest.Wait()
		}
		if len(names) != 1 {
			t.Errorf("%d goroutines for one thing at a time", len(names))
		}
		d.close()
		d.wait()
	})
}

func TestDispatcherKeepsNoMoreThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher()
		leave := make(chan struct{})
		for range 3 * parkedMax {
			d.Schedule(func() { <-leave })
		}
		d.Schedule(runtime.Goexit) // ends its goroutine and nothing else
		synctest.Wait()
		if len(d.parked) != 0 {
			t.Errorf("%d parked while all are at work", len(d.parked))
		}
		close(leave)
		synctest.Wait()
		if len(d.parked) != parkedMax {
			t.Errorf("%d parked", len(d.parked))
		}
		// The parked ones take what comes, and only then new ones are made.
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
		d.close()
		d.wait()
		// What is scheduled too late still runs, on a goroutine that ends.
		ran := false
		d.Schedule(func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("dropped")
		}
	})
}

// A crowd is actors that note when they run, and wait then until they may go on.
type crowd struct {
	dispatcher *dispatcher
	goOn       chan struct{}

	mu      sync.Mutex
	at      []int // whose turn has begun, in order
	running int
	most    int
}

// wake wakes one actor more.
func (c *crowd) wake(i int) {
	m := c.dispatcher.newMailbox()
	m.RegisterHandlers(&member{crowd: c, number: i}, c.dispatcher)
	m.PostUserMessage("act")
}

// state returns whose turns have begun, and how many run.
func (c *crowd) state() (at []int, running int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.at), c.running
}

type member struct {
	crowd  *crowd
	number int
}

func (m *member) InvokeSystemMessage(any) {}

func (m *member) InvokeUserMessage(any) {
	c := m.crowd
	c.mu.Lock()
	c.at = append(c.at, m.number)
	c.running++
	c.most = max(c.most, c.running)
	c.mu.Unlock()
	<-c.goOn
	c.mu.Lock()
	c.running--
	c.mu.Unlock()
}

func (m *member) EscalateFailure(reason, message any) { panic(fmt.Sprint(reason, message)) }

var _ actor.MessageInvoker = (*member)(nil)

func TestActorsBeyondTheBoundWaitInTheOrderInWhichTheyWereWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{dispatcher: newDispatcher(), goOn: make(chan struct{})}
		c.dispatcher.actingMax = 3
		for i := range 100 {
			c.wake(i)
			synctest.Wait()
		}
		if _, running := c.state(); running != 3 {
			t.Errorf("%d run at once", running)
		}
		for range 100 {
			c.goOn <- struct{}{} // sooner than anybody is stuck
			synctest.Wait()
		}
		if at, _ := c.state(); c.most != 3 || len(at) != 100 || !slices.IsSorted(at) {
			t.Errorf("%d ran at once, in the order %v", c.most, at)
		}
		if d := c.dispatcher; d.acting != 0 || d.first != nil || d.last != nil || len(d.parked) != 3 {
			t.Errorf("%d act, %d are parked", d.acting, len(d.parked))
		}
		c.dispatcher.close()
		c.dispatcher.wait()
	})
}

// With one processor, whoever else could run does so when a goroutine that runs mailboxes
// lets him, or after the 10 ms that the runtime allows to everybody.
func TestOthersGetAProcessorWhileManyActorsWait(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		const actors = 100 * mailboxesInARow
		c := &crowd{dispatcher: newDispatcher(), goOn: make(chan struct{})}
		c.dispatcher.actingMax = 1
		for i := range actors {
			c.wake(i)
		}
		close(c.goOn)
		turns := 0
		for at := 0; at < actors; turns++ {
			runtime.Gosched()
			arrived, _ := c.state()
			at = len(arrived)
		}
		if turns < actors/mailboxesInARow/2 {
			t.Errorf("another goroutine had %d turns beside %d actors", turns, actors)
		}
		c.dispatcher.close()
		c.dispatcher.wait()
	})
}

// Code that blocks where it should not keeps the goroutines, and not the others.
func TestActorsThatBlockHoldNobodyUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher()
		d.actingMax = 2
		blocked := &crowd{dispatcher: d, goOn: make(chan struct{})}
		for i := range 5 {
			blocked.wake(i)
		}
		others := &crowd{dispatcher: d, goOn: make(chan struct{})}
		close(others.goOn)
		for i := range 100 {
			others.wake(i)
		}
		// Three of the blocked ones are in front of the others.
		time.Sleep(6 * stuckAfter)
		synctest.Wait()
		at, _ := others.state()
		if _, running := blocked.state(); len(at) != 100 || running != 5 {
			t.Errorf("%d got on while %d block", len(at), running)
		}
		close(blocked.goOn)
		synctest.Wait()
		if d.acting != 0 {
			t.Errorf("%d still act", d.acting)
		}
		d.close()
		d.wait()
	})
}
