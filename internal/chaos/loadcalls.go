package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	entityCallers = 3
	entityCalls   = 8
	// One call in briefShare has a context that ends soon, or has ended.
	briefShare      = 6
	briefTimeoutMax = 4 * time.Millisecond
	// The shortest and the longest watch before the watch continues at another node.
	watchMin = 50 * time.Millisecond
	watchMax = 500 * time.Millisecond
	// How many external completions an activity gets concurrently.
	completers = 2
)

// newCaller returns one of several clients that call a driver's instance concurrently, with its own
// client number and first node. Every second one is a remote client.
func (d *driver) newCaller(i int) *driver {
	other := &driver{client: d.client, load: d.load, random: rand.New(rand.NewPCG(d.random.Uint64(), uint64(i)))}
	other.id = d.id*10 + i + 1000
	other.firstNode += i
	other.requestCount = d.requestCount
	other.remote = i%2 == 1
	return other
}

// callBriefly makes a call once, with a context that ends soon or has ended.
func (d *driver) callBriefly(kind evidence.Kind, id, name string, input any) evidence.Call {
	request := d.request(kind, id, name, input)
	if request.Limit = time.Duration(d.random.Int64N(int64(briefTimeoutMax))); d.random.IntN(4) == 0 {
		request.Limit = -1
	}
	single := d.client
	single.noFailover = true
	return single.do(d.load.ctx, request)
}

// driveEntity lets several clients call an entity and one watch it, concurrently, and then ends it.
func (d *driver) driveEntity(id string) {
	in := host.EntityInput{Sum: d.random.IntN(1000)}
	if started := d.call(evidence.Start, id, host.Entity, in); started.Outcome != evidence.Acked {
		return
	}
	var calling, watching sync.WaitGroup
	watcher := d.newCaller(entityCallers)
	watching.Go(func() { watcher.watchAll(id) })
	for i := range entityCallers {
		caller := d.newCaller(i)
		calling.Go(func() {
			for n := range entityCalls {
				sleep(d.load.ctx, caller.randomDuration(0, thinkTimeMax))
				if i == 0 && n == entityCalls/2 {
					caller.suspendBriefly(id)
				}
				caller.callEntity(id)
			}
		})
	}
	calling.Wait()
	d.requestCount += entityCalls
	d.call(evidence.Send, id, host.Number, host.End)
	d.call(evidence.Wait, id, "", nil)
	watching.Wait()
}

// suspendBriefly suspends an instance for a short time.
func (d *driver) suspendBriefly(id string) {
	d.call(evidence.Suspend, id, "", nil)
	sleep(d.load.ctx, d.randomDuration(0, 2*thinkTimeMax))
	d.call(evidence.Resume, id, "", nil)
}

// callEntity makes one random call.
func (d *driver) callEntity(id string) {
	call := d.call
	if d.random.IntN(briefShare) == 0 {
		call = d.callBriefly
	}
	switch n := d.random.IntN(20); {
	case n < 7:
		d.retryWhile(evidence.NoHandler, func() evidence.Call { return call(evidence.Update, id, host.Add, 1+d.random.IntN(9)) })
	case n < 12:
		call(evidence.Send, id, host.Number, "tick")
	case n < 16:
		d.retryWhile(evidence.NoHandler, func() evidence.Call { return call(evidence.Query, id, host.Sum, nil) })
	case n < 19:
		call(evidence.Get, id, "", nil)
	default:
		call(evidence.List, id, "", nil)
	}
}

// watchAll watches an instance from its start to its end, at one node after the other.
func (d *driver) watchAll(id string) {
	ctx, cancel := context.WithTimeout(d.load.callCtx, callTimeout)
	defer cancel()
	d.noFailover = true
	var from evidence.Position
	for n := 0; ctx.Err() == nil; n++ {
		d.firstNode, d.remote = n, n%2 == 1
		limit := d.randomDuration(watchMin, watchMax)
		call := d.do(ctx, evidence.Request{Kind: evidence.Watch, Instance: id, From: from, Limit: limit})
		if len(call.WatchedEvents) > 0 {
			from = call.Next
		}
		if call.Outcome == evidence.Acked && call.State == evidence.Ended {
			return
		}
		if call.Outcome != evidence.Acked {
			sleep(ctx, backoffMin)
		}
	}
}

// driveApproval lets several clients complete an activity concurrently, each with its own value.
func (d *driver) driveApproval(id string) {
	value := d.random.IntN(1000)
	if started := d.call(evidence.Start, id, host.Approval, value); started.Outcome != evidence.Acked {
		return
	}
	ctx, cancel := context.WithTimeout(d.load.callCtx, callTimeout)
	defer cancel()
	for d.fleet.log.Token(id) == "" && ctx.Err() == nil {
		sleep(ctx, backoffMin)
	}
	var completing sync.WaitGroup
	for i := range completers {
		caller := d.newCaller(i)
		done := evidence.TaskResult{Value: value + 1, Nonce: fmt.Sprintf("%s by %d", id, i)}
		completing.Go(func() {
			caller.do(ctx, evidence.Request{
				Kind: evidence.Complete, Instance: id, Token: d.fleet.log.Token(id), Input: encode(done),
			})
		})
	}
	completing.Wait()
	d.call(evidence.Wait, id, "", nil)
}

// driveMessages lets instances send events to others, which end meanwhile. One is told to end, the
// other is canceled by a sender. A third one does not exist.
func (d *driver) driveMessages(id string) {
	receivers := []string{id + ".ends", id + ".canceled"}
	for _, receiver := range receivers {
		d.call(evidence.Start, receiver, host.Receiver, []string{})
	}
	in := host.SenderInput{Receivers: append(slices.Clone(receivers), id+".missing"), Messages: 2 + d.random.IntN(5), Cancel: receivers[1]}
	senders := []string{id + ".sender", id + ".other"}
	for _, sender := range senders {
		d.call(evidence.Start, sender, host.Sender, in)
		in.Cancel = ""
	}
	sleep(d.load.ctx, d.randomDuration(0, thinkTimeMax))
	d.call(evidence.Send, receivers[0], host.Number, host.End)
	for _, sender := range senders {
		d.call(evidence.Wait, sender, "", nil)
	}
	d.call(evidence.Send, receivers[1], host.Number, host.End) // if its cancellation was not sent
	for _, receiver := range receivers {
		d.call(evidence.Wait, receiver, "", nil)
	}
}
