package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/internal/slots"
)

// How many clients run each workload, each on one instance at a time.
var crews = []struct {
	name  string
	size  int
	drive func(w *worker, id string)
}{
	{"chain", 4, (*worker).driveChain},
	{"fan", 1, (*worker).driveFan},
	{"cycle", 2, (*worker).driveCycle},
	{"sleep", 6, (*worker).driveSleep},
	{"tree", 1, (*worker).driveTree},
	{"register", 2, (*worker).driveRegister},
	{"relay", 1, (*worker).driveRelay},
	{"tally", 1, (*worker).driveTally},
	{"entity", 2, (*worker).driveEntity},
	{"approval", 1, (*worker).driveApproval},
}

const (
	// How long a call of a workload is repeated, across every fault.
	patience = 90 * time.Second
	// How long a client rests between two instances at most.
	restMax = 60 * time.Millisecond
	// What becomes of chains and fans: one of so many is purged, or terminated.
	purgeShare     = 6
	terminateShare = 4
	// One drive of so many goes through the remote client.
	remoteShare = 4
	workMax     = 30 * time.Millisecond
	// What timers are set for: those of cycles, and those of which some are always
	// set, whatever is done to the clocks.
	delayMax  = 120 * time.Millisecond
	sleepMost = 5 * time.Second
)

// repeaterID is the client that repeats what others have called.
const repeaterID = -100

// A load is all the clients that work on the fleet.
type load struct {
	fleet   *fleet
	ctx     context.Context // ends when nothing new is to be begun
	stop    context.CancelFunc
	calls   context.Context // ends when nobody waits for an answer any more
	abandon context.CancelFunc
	workers sync.WaitGroup
	clients int
	// Held for reading by whoever drives an instance, and for writing while nothing is to be
	// begun.
	driving sync.RWMutex
	driven  atomic.Int64 // instances that have come to their end
}

// startLoad has clients begin to work, and a probe for each node and group; of a small load
// one client for each workload.
func startLoad(f *fleet, seed uint64, small bool) *load {
	l := &load{fleet: f}
	l.calls, l.abandon = context.WithCancel(context.Background())
	l.ctx, l.stop = context.WithCancel(l.calls)
	for _, crew := range crews {
		size := crew.size
		if small {
			size = 1
		}
		for i := range size {
			w := l.newWorker(seed)
			l.workers.Go(func() { w.work(fmt.Sprintf("%s-%d", crew.name, i), crew.drive) })
		}
	}
	for home, node := range f.nodes {
		for group := range f.pattern.Groups {
			w := l.newWorker(seed)
			w.home, w.faithful = home, true
			l.workers.Go(func() { w.probe(fmt.Sprintf("probe-%s-%d", node.id, group), group) })
		}
	}
	return l
}

// finish begins nothing new, and returns when all that was begun is over.
func (l *load) finish() {
	l.stop()
	l.workers.Wait()
	l.abandon()
}

// A worker is a client that drives one workload.
type worker struct {
	client
	load   *load
	random *rand.Rand
	serial int
}

func (l *load) newWorker(seed uint64) *worker {
	l.clients++
	w := &worker{load: l, random: rand.New(rand.NewPCG(seed, uint64(l.clients)))}
	w.client = client{fleet: l.fleet, id: l.clients, home: l.clients % len(l.fleet.nodes)}
	return w
}

func (w *worker) work(prefix string, drive func(w *worker, id string)) {
	for n := 0; w.load.ctx.Err() == nil; n++ {
		w.remote = w.random.IntN(remoteShare) == 0
		w.load.driving.RLock()
		drive(w, fmt.Sprintf("%s-%d", prefix, n))
		w.load.driving.RUnlock()
		w.load.driven.Add(1)
		rest(w.load.ctx, w.between(0, restMax))
	}
}

// rest waits for a while, unless ctx ends first.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *worker) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.random.Int64N(int64(most-least)))
}

// request is one that is known by its client and number.
func (w *worker) request(kind evidence.Kind, id, name string, input any) evidence.Request {
	request := evidence.Request{Kind: kind, Instance: id, Name: name}
	switch kind {
	case evidence.Start, evidence.Send, evidence.SendOrStart, evidence.Update:
		w.serial++
		request.RequestID = fmt.Sprintf("%d/%d", w.id, w.serial)
		request.Input = encode(input)
	}
	return request
}

// encode turns a value of this package's into JSON.
func encode(value any) json.RawMessage {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err))
	}
	return encoded
}

// ask has a request answered, however long the fleet takes to recover.
func (w *worker) ask(kind evidence.Kind, id, name string, input any) evidence.Call {
	ctx, cancel := context.WithTimeout(w.load.calls, patience)
	defer cancel()
	return w.do(ctx, w.request(kind, id, name, input))
}

func (w *worker) driveChain(id string) {
	blob := make([]byte, w.random.IntN(2000))
	for i := range blob {
		blob[i] = ' ' + byte(w.random.IntN(95))
	}
	in := host.ChainInput{Blob: string(blob), Value: w.random.IntN(1000), Pause: w.between(0, workMax)}
	// Of one that runs nothing is purged.
	if ended := w.run(id, host.Chain, in); ended && w.random.IntN(purgeShare) == 0 {
		w.ask(evidence.Purge, id, "", nil)
	}
}

func (w *worker) driveFan(id string) {
	w.run(id, host.Fan, host.FanInput{Value: w.random.IntN(1000), Pause: w.between(0, workMax)})
}

func (w *worker) driveTree(id string) {
	w.run(id, host.Tree, host.TreeInput{Depth: 1 + w.random.IntN(3), Value: w.random.IntN(1000)})
}

// run starts an instance and waits for its end, which it has seen if it says so; some it
// ends itself, midway.
func (w *worker) run(id, name string, input any) (ended bool) {
	if started := w.ask(evidence.Start, id, name, input); started.Outcome != evidence.Acked {
		return false
	}
	if w.random.IntN(terminateShare) == 0 {
		rest(w.load.ctx, w.between(0, 4*workMax))
		end := []evidence.Kind{evidence.Terminate, evidence.Cancel}
		w.ask(end[w.random.IntN(len(end))], id, "", nil)
	}
	return w.ask(evidence.Wait, id, "", nil).Outcome == evidence.Acked
}

// driveCycle has two senders give a cycle what it needs, each in order.
func (w *worker) driveCycle(id string) {
	const senders = 2
	each := 2 + w.random.IntN(4)
	in := host.CycleInput{Rounds: each, PerRound: senders, Delay: w.between(0, delayMax)}
	if started := w.ask(evidence.Start, id, host.Cycle, in); started.Outcome != evidence.Acked {
		return
	}
	other := &worker{client: w.client, load: w.load, random: rand.New(rand.NewPCG(w.random.Uint64(), 0))}
	other.serial = w.serial + 1_000_000_000 // so that their requests differ
	var sending sync.WaitGroup
	sending.Go(func() { other.sendNumbers(id, "b", each) })
	w.sendNumbers(id, "a", each)
	sending.Wait()
	w.ask(evidence.Wait, id, "", nil)
}

// driveSleep has a cycle of one round wait for its timer.
func (w *worker) driveSleep(id string) {
	in := host.CycleInput{Rounds: 1, Delay: w.between(time.Second, sleepMost)}
	if started := w.ask(evidence.Start, id, host.Cycle, in); started.Outcome == evidence.Acked {
		w.ask(evidence.Wait, id, "", nil)
	}
}

func (w *worker) sendNumbers(id, sender string, n int) {
	for i := range n {
		rest(w.load.ctx, w.between(0, restMax))
		w.ask(evidence.Send, id, host.Number, fmt.Sprintf("%s-%d", sender, i))
	}
}

// driveRelay has an instance start another, and that the next one, and waits for the
// ends of all.
func (w *worker) driveRelay(id string) {
	in := host.RelayInput{First: id, Value: w.random.IntN(1000)}
	if started := w.ask(evidence.Start, id, host.Relay, in); started.Outcome != evidence.Acked {
		return
	}
	for leg := range host.RelayLegs {
		w.until(evidence.NotFound, func() evidence.Call { return w.ask(evidence.Wait, host.LegID(id, leg), "", nil) })
	}
}

// until repeats a call for as long as it is refused for a reason that passes.
func (w *worker) until(passes string, call func() evidence.Call) {
	deadline := w.fleet.log.Now() + patience
	for call().Code == passes && w.fleet.log.Now() < deadline && w.load.calls.Err() == nil {
		rest(w.load.calls, restMax)
	}
}

// driveTally has two senders update a tally, and then ends it.
func (w *worker) driveTally(id string) {
	if started := w.ask(evidence.Start, id, host.Tally, w.random.IntN(1000)); started.Outcome != evidence.Acked {
		return
	}
	other := &worker{client: w.client, load: w.load, random: rand.New(rand.NewPCG(w.random.Uint64(), 0))}
	other.home++
	other.serial = w.serial + 1_000_000_000
	var sending sync.WaitGroup
	sending.Go(func() { other.sendUpdates(id) })
	w.sendUpdates(id)
	sending.Wait()
	w.serial = max(w.serial, other.serial-1_000_000_000) // so that the next ones' differ too
	w.ask(evidence.Send, id, host.Number, "end")
	w.ask(evidence.Wait, id, "", nil)
}

func (w *worker) sendUpdates(id string) {
	for range 2 + w.random.IntN(4) {
		rest(w.load.ctx, w.between(0, restMax))
		w.until(evidence.Early, func() evidence.Call { return w.ask(evidence.Update, id, host.Add, 1+w.random.IntN(9)) })
	}
}

// driveRegister has several clients call one instance at once, for the check of
// linearizability.
func (w *worker) driveRegister(id string) {
	const callers, calls = 3, 12
	var calling sync.WaitGroup
	for i := range callers {
		caller := w.companion(i)
		calling.Go(func() { caller.callRegister(id, calls, i == 0) })
	}
	calling.Wait()
	w.serial += calls + 1
}

func (w *worker) callRegister(id string, calls int, owner bool) {
	if owner {
		w.ask(evidence.Start, id, host.Register, nil)
	}
	for range calls {
		rest(w.load.ctx, w.between(0, restMax))
		switch n := w.random.IntN(20); {
		case n < 6:
			w.ask(evidence.Send, id, host.Number, "x")
		case n < 8:
			w.ask(evidence.SendOrStart, id, host.Register, "x")
		case n == 8:
			w.brief(evidence.Send, id, host.Number, "x")
		case n < 18:
			w.ask(evidence.Read, id, "", nil)
		default:
			w.ask(evidence.Start, id, host.Register, nil)
		}
	}
	if owner {
		w.ask(evidence.Terminate, id, "", nil)
	}
	w.ask(evidence.Read, id, "", nil)
}

const (
	// How long all probes of a node rest on average: of several groups each rests
	// longer.
	probeEvery = 15 * time.Millisecond
	probeSends = 300
)

// probe writes to one group through its own node without a break, and looks at what
// that node has of its own. Between them the probes tell for how long nobody could
// write to a group.
func (w *worker) probe(prefix string, group int) {
	groups := w.fleet.pattern.Groups
	probeEvery := time.Duration(groups) * probeEvery
	for n := 0; w.load.ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%s-%d", prefix, n)
		if slots.Group(id, groups) != group {
			continue
		}
		for w.load.ctx.Err() == nil {
			if w.ask(evidence.Start, id, host.Register, nil).Outcome == evidence.Acked {
				break
			}
			rest(w.load.ctx, probeEvery)
		}
		for i := 0; i < probeSends && w.load.ctx.Err() == nil; i++ {
			w.ask(evidence.Send, id, host.Number, fmt.Sprint(i))
			if i%10 == 0 {
				stale := w.request(evidence.Read, id, "", nil)
				stale.Stale = true
				w.do(w.load.ctx, stale)
			}
			rest(w.load.ctx, probeEvery)
		}
	}
}
