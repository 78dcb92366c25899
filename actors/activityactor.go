package actors

import (
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/actors/worker"
)

// activityActors are the actors that run attempts: as many as slots were ever in use at once. An
// actor runs one attempt after another, because spawning and stopping one for each attempt would
// cost a fifth of a short orchestration.
type activityActors struct {
	system *System

	mu   sync.Mutex
	idle []*actor.PID // the one that became idle last is used first
}

// Start implements worker.Starter.
func (a *activityActors) Start(attempt *worker.Attempt) {
	a.system.actors.Root.Send(a.take(), attempt)
}

// take returns an idle actor, which may be new.
func (a *activityActors) take() *actor.PID {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := len(a.idle) - 1
	if last < 0 {
		return a.system.spawnWithMailbox(a.receive, a.system.dispatcher.NewUnboundedMailbox())
	}
	pid := a.idle[last]
	a.idle = a.idle[:last]
	return pid
}

// receive runs an attempt on the goroutine of the actor's mailbox.
func (a *activityActors) receive(ctx actor.Context) {
	attempt, ok := ctx.Message().(*worker.Attempt)
	if !ok {
		return
	}
	// Deferred, because the body may end the goroutine.
	defer a.release(ctx.Self())
	attempt.Run()
}

func (a *activityActors) release(pid *actor.PID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.idle = append(a.idle, pid)
}

// attemptGoroutines run attempts in a system without actors. Each runs one attempt after another
// while any waits for a slot.
type attemptGoroutines struct{ running sync.WaitGroup }

// Start implements worker.Starter.
func (g *attemptGoroutines) Start(attempt *worker.Attempt) { g.running.Go(attempt.Run) }
