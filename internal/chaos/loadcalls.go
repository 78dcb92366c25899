package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	entityCallers = 3
	entityCalls   = 8
	// One call of so many has a context that ends soon, or has ended.
	briefShare   = 6
	briefLongest = 4 * time.Millisecond
	// How long a watch lasts until it goes on at another node.
	watchLeast = 50 * time.Millisecond
	watchMost  = 500 * time.Millisecond
	// How many completions an activity gets from outside at once.
	completers = 2
)

// companion returns one of several clients that call an instance of a worker's at once; i tells
// them apart. Each has a number and a home of its own, and every second is a remote client.
func (w *worker) companion(i int) *worker {
	other := &worker{client: w.client, load: w.load, random: rand.New(rand.NewPCG(w.random.Uint64(), uint64(i)))}
	other.id = w.id*10 + i + 1000
	other.home += i
	other.serial = w.serial
	other.remote = i%2 == 1
	return other
}

// brief makes a call once, with a context that ends soon or has ended.
func (w *worker) brief(kind evidence.Kind, id, name string, input any) evidence.Call {
	request := w.request(kind, id, name, input)
	if request.Limit = time.Duration(w.random.Int64N(int64(briefLongest))); w.random.IntN(4) == 0 {
		request.Limit = -1
	}
	once := w.client
	once.faithful = true
	return once.do(w.load.ctx, request)
}

// driveEntity has several clients call an entity at once and another one watch it, and ends it.
func (w *worker) driveEntity(id string) {
	in := host.EntityInput{Sum: w.random.IntN(1000)}
	if started := w.ask(evidence.Start, id, host.Entity, in); started.Outcome != evidence.Acked {
		return
	}
	var calling, watching sync.WaitGroup
	watcher := w.companion(entityCallers)
	watching.Go(func() { watcher.watchAll(id) })
	for i := range entityCallers {
		caller := w.companion(i)
		calling.Go(func() {
			for n := range entityCalls {
				rest(w.load.ctx, caller.between(0, restMax))
				if i == 0 && n == entityCalls/2 {
					caller.interrupt(id)
				}
				caller.callEntity(id)
			}
		})
	}
	calling.Wait()
	w.serial += entityCalls
	w.ask(evidence.Send, id, host.Number, host.End)
	w.ask(evidence.Wait, id, "", nil)
	watching.Wait()
}

// interrupt suspends an instance for a while.
func (w *worker) interrupt(id string) {
	w.ask(evidence.Suspend, id, "", nil)
	rest(w.load.ctx, w.between(0, 2*restMax))
	w.ask(evidence.Resume, id, "", nil)
}

// callEntity makes one call.
func (w *worker) callEntity(id string) {
	call := w.ask
	if w.random.IntN(briefShare) == 0 {
		call = w.brief
	}
	switch n := w.random.IntN(20); {
	case n < 7:
		w.until(evidence.Early, func() evidence.Call { return call(evidence.Update, id, host.Add, 1+w.random.IntN(9)) })
	case n < 12:
		call(evidence.Send, id, host.Number, "tick")
	case n < 16:
		w.until(evidence.Early, func() evidence.Call { return call(evidence.Query, id, host.Sum, nil) })
	case n < 19:
		call(evidence.Get, id, "", nil)
	default:
		call(evidence.List, id, "", nil)
	}
}

// watchAll watches an instance from its beginning to its end, at one node after the other.
func (w *worker) watchAll(id string) {
	ctx, cancel := context.WithTimeout(w.load.calls, patience)
	defer cancel()
	w.faithful = true
	var from evidence.Position
	for n := 0; ctx.Err() == nil; n++ {
		w.home, w.remote = n, n%2 == 1
		limit := w.between(watchLeast, watchMost)
		call := w.do(ctx, evidence.Request{Kind: evidence.Watch, Instance: id, From: from, Limit: limit})
		if len(call.Watched) > 0 {
			from = call.Next
		}
		if call.Outcome == evidence.Acked && call.State == evidence.Ended {
			return
		}
		if call.Outcome != evidence.Acked {
			rest(ctx, pauseFirst)
		}
	}
}

// driveApproval has several clients complete an activity at once, each with a value of its own.
func (w *worker) driveApproval(id string) {
	value := w.random.IntN(1000)
	if started := w.ask(evidence.Start, id, host.Approval, value); started.Outcome != evidence.Acked {
		return
	}
	ctx, cancel := context.WithTimeout(w.load.calls, patience)
	defer cancel()
	for w.fleet.log.Token(id) == "" && ctx.Err() == nil {
		rest(ctx, pauseFirst)
	}
	var completing sync.WaitGroup
	for i := range completers {
		caller := w.companion(i)
		done := evidence.Done{Value: value + 1, Nonce: fmt.Sprintf("%s by %d", id, i)}
		completing.Go(func() {
			caller.do(ctx, evidence.Request{
				Kind: evidence.Complete, Instance: id, Token: w.fleet.log.Token(id), Input: encode(done),
			})
		})
	}
	completing.Wait()
	w.ask(evidence.Wait, id, "", nil)
}
