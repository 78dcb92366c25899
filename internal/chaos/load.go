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

// The number of clients of each workload. Each client drives one instance at a time.
var workloads = []struct {
	name  string
	size  int
	drive func(w *driver, id string)
}{
	{"chain", 4, (*driver).driveChain},
	{"fan", 1, (*driver).driveFan},
	{"cycle", 2, (*driver).driveCycle},
	{"sleep", 6, (*driver).driveSleep},
	{"tree", 1, (*driver).driveTree},
	{"register", 2, (*driver).driveRegister},
	{"relay", 1, (*driver).driveRelay},
	{"tally", 1, (*driver).driveTally},
	{"entity", 2, (*driver).driveEntity},
	{"approval", 1, (*driver).driveApproval},
	{"messages", 2, (*driver).driveMessages},
}

const (
	// How long a call is retried: longer than the longest fault, in which no node may run.
	callTimeout = faultTimeout + recoveryTimeout
	// How long a driver waits for an instance that another one starts.
	startedTimeout = 90 * time.Second
	// The longest pause of a client between two instances.
	thinkTimeMax = 60 * time.Millisecond
	// One chain or fan in purgeShare is purged, one in terminateShare is terminated.
	purgeShare     = 6
	terminateShare = 4
	// One instance in remoteShare is driven through the remote client.
	remoteShare = 4
	workMax     = 30 * time.Millisecond
	// The maximum delays of timers, in cycles and in the workload sleep. Some timers of sleep are
	// always waiting when a clock is changed.
	delayMax = 120 * time.Millisecond
	sleepMax = 5 * time.Second
)

// repeatClient is the client that repeats the calls of others.
const repeatClient = -100

// A load is the set of all clients that work on the fleet.
type load struct {
	fleet       *fleet
	ctx         context.Context // ends when no new work may start
	stop        context.CancelFunc
	callCtx     context.Context // ends when no call may wait any longer
	cancelCalls context.CancelFunc
	drivers     sync.WaitGroup
	clients     int
	// Held for reading while an instance is driven, and for writing while no instance may start.
	startMu    sync.RWMutex
	endedCount atomic.Int64 // instances that have ended
}

// startLoad starts the clients, and a probe for each node and partition. If small, each workload
// has one client.
func startLoad(f *fleet, seed uint64, small bool) *load {
	l := &load{fleet: f}
	l.callCtx, l.cancelCalls = context.WithCancel(context.Background())
	l.ctx, l.stop = context.WithCancel(l.callCtx)
	for _, workload := range workloads {
		size := workload.size
		if small {
			size = 1
		}
		for i := range size {
			w := l.newDriver(seed)
			l.drivers.Go(func() { w.loop(fmt.Sprintf("%s-%d", workload.name, i), workload.drive) })
		}
	}
	for nodeIndex, node := range f.nodes {
		for partition := range f.template.Partitions {
			w := l.newDriver(seed)
			w.firstNode, w.noFailover = nodeIndex, true
			l.drivers.Go(func() { w.probe(fmt.Sprintf("probe-%s-%d", node.id, partition), partition) })
		}
	}
	return l
}

// finish starts no new work and returns after all calls have returned.
func (l *load) finish() {
	l.stop()
	l.drivers.Wait()
	l.cancelCalls()
}

// A driver is a client that drives one workload.
type driver struct {
	client
	load         *load
	random       *rand.Rand
	requestCount int
}

func (l *load) newDriver(seed uint64) *driver {
	l.clients++
	w := &driver{load: l, random: rand.New(rand.NewPCG(seed, uint64(l.clients)))}
	w.client = client{fleet: l.fleet, id: l.clients, firstNode: l.clients % len(l.fleet.nodes)}
	return w
}

func (d *driver) loop(prefix string, drive func(w *driver, id string)) {
	for n := 0; d.load.ctx.Err() == nil; n++ {
		d.remote = d.random.IntN(remoteShare) == 0
		d.load.startMu.RLock()
		drive(d, fmt.Sprintf("%s-%d", prefix, n))
		d.load.startMu.RUnlock()
		d.load.endedCount.Add(1)
		sleep(d.load.ctx, d.randomDuration(0, thinkTimeMax))
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (d *driver) randomDuration(least, most time.Duration) time.Duration {
	return least + time.Duration(d.random.Int64N(int64(most-least)))
}

// request returns a request whose ID is unique to the client.
func (d *driver) request(kind evidence.Kind, id, name string, input any) evidence.Request {
	request := evidence.Request{Kind: kind, Instance: id, Name: name}
	switch kind {
	case evidence.Start, evidence.Send, evidence.SendOrStart, evidence.Update:
		d.requestCount++
		request.RequestID = fmt.Sprintf("%d/%d", d.id, d.requestCount)
		request.Input = encode(input)
	}
	return request
}

// encode encodes a value as JSON.
func encode(value any) json.RawMessage {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err))
	}
	return encoded
}

// call makes a call and retries it across recoveries of the fleet.
func (d *driver) call(kind evidence.Kind, id, name string, input any) evidence.Call {
	ctx, cancel := context.WithTimeout(d.load.callCtx, callTimeout)
	defer cancel()
	return d.do(ctx, d.request(kind, id, name, input))
}

func (d *driver) driveChain(id string) {
	blob := make([]byte, d.random.IntN(2000))
	for i := range blob {
		blob[i] = ' ' + byte(d.random.IntN(95))
	}
	in := host.ChainInput{Blob: string(blob), Value: d.random.IntN(1000), Pause: d.randomDuration(0, workMax)}
	// Only an instance that has ended can be purged.
	if ended := d.run(id, host.Chain, in); ended && d.random.IntN(purgeShare) == 0 {
		d.call(evidence.Purge, id, "", nil)
	}
}

func (d *driver) driveFan(id string) {
	d.run(id, host.Fan, host.FanInput{Value: d.random.IntN(1000), Pause: d.randomDuration(0, workMax)})
}

func (d *driver) driveTree(id string) {
	d.run(id, host.Tree, host.TreeInput{Depth: 1 + d.random.IntN(3), Value: d.random.IntN(1000)})
}

// run starts an instance and waits for its end. It terminates or cancels some instances before
// their end. It reports whether the instance is known to have ended.
func (d *driver) run(id, name string, input any) (ended bool) {
	if started := d.call(evidence.Start, id, name, input); started.Outcome != evidence.Acked {
		return false
	}
	if d.random.IntN(terminateShare) == 0 {
		sleep(d.load.ctx, d.randomDuration(0, 4*workMax))
		end := []evidence.Kind{evidence.Terminate, evidence.Cancel}
		d.call(end[d.random.IntN(len(end))], id, "", nil)
	}
	return d.call(evidence.Wait, id, "", nil).Outcome == evidence.Acked
}

// driveCycle lets two senders send a cycle its events, each in order.
func (d *driver) driveCycle(id string) {
	const senders = 2
	each := 2 + d.random.IntN(4)
	in := host.CycleInput{Rounds: each, PerRound: senders, Delay: d.randomDuration(0, delayMax)}
	if started := d.call(evidence.Start, id, host.Cycle, in); started.Outcome != evidence.Acked {
		return
	}
	other := &driver{client: d.client, load: d.load, random: rand.New(rand.NewPCG(d.random.Uint64(), 0))}
	other.requestCount = d.requestCount + 1_000_000_000 // so that their request IDs differ
	var sending sync.WaitGroup
	sending.Go(func() { other.sendNumbers(id, "b", each) })
	d.sendNumbers(id, "a", each)
	sending.Wait()
	d.call(evidence.Wait, id, "", nil)
}

// driveSleep runs a cycle with one round, which waits for its timer.
func (d *driver) driveSleep(id string) {
	in := host.CycleInput{Rounds: 1, Delay: d.randomDuration(time.Second, sleepMax)}
	if started := d.call(evidence.Start, id, host.Cycle, in); started.Outcome == evidence.Acked {
		d.call(evidence.Wait, id, "", nil)
	}
}

func (d *driver) sendNumbers(id, sender string, n int) {
	for i := range n {
		sleep(d.load.ctx, d.randomDuration(0, thinkTimeMax))
		d.call(evidence.Send, id, host.Number, fmt.Sprintf("%s-%d", sender, i))
	}
}

// driveRelay starts a chain of instances and waits for the ends of all.
func (d *driver) driveRelay(id string) {
	in := host.RelayInput{First: id, Value: d.random.IntN(1000)}
	if started := d.call(evidence.Start, id, host.Relay, in); started.Outcome != evidence.Acked {
		return
	}
	for leg := range host.RelayLegs {
		d.retryWhile(evidence.NotFound, func() evidence.Call { return d.call(evidence.Wait, host.LegID(id, leg), "", nil) })
	}
}

// retryWhile repeats a call while it is rejected with a transient code.
func (d *driver) retryWhile(transient string, call func() evidence.Call) {
	deadline := d.fleet.log.Now() + startedTimeout
	for call().Code == transient && d.fleet.log.Now() < deadline && d.load.callCtx.Err() == nil {
		sleep(d.load.callCtx, thinkTimeMax)
	}
}

// driveTally lets two senders update a tally, and then ends it.
func (d *driver) driveTally(id string) {
	if started := d.call(evidence.Start, id, host.Tally, d.random.IntN(1000)); started.Outcome != evidence.Acked {
		return
	}
	other := &driver{client: d.client, load: d.load, random: rand.New(rand.NewPCG(d.random.Uint64(), 0))}
	other.firstNode++
	other.requestCount = d.requestCount + 1_000_000_000
	var sending sync.WaitGroup
	sending.Go(func() { other.sendUpdates(id) })
	d.sendUpdates(id)
	sending.Wait()
	d.requestCount = max(d.requestCount, other.requestCount-1_000_000_000) // so that later request IDs differ too
	d.call(evidence.Send, id, host.Number, "end")
	d.call(evidence.Wait, id, "", nil)
}

func (d *driver) sendUpdates(id string) {
	for range 2 + d.random.IntN(4) {
		sleep(d.load.ctx, d.randomDuration(0, thinkTimeMax))
		d.retryWhile(evidence.NoHandler, func() evidence.Call { return d.call(evidence.Update, id, host.Add, 1+d.random.IntN(9)) })
	}
}

// driveRegister lets several clients call one instance concurrently, for the linearizability check.
func (d *driver) driveRegister(id string) {
	const callers, calls = 3, 12
	var calling sync.WaitGroup
	for i := range callers {
		caller := d.newCaller(i)
		calling.Go(func() { caller.callRegister(id, calls, i == 0) })
	}
	calling.Wait()
	d.requestCount += calls + 1
}

func (d *driver) callRegister(id string, calls int, owner bool) {
	if owner {
		d.call(evidence.Start, id, host.Register, nil)
	}
	for range calls {
		sleep(d.load.ctx, d.randomDuration(0, thinkTimeMax))
		switch n := d.random.IntN(20); {
		case n < 6:
			d.call(evidence.Send, id, host.Number, "x")
		case n < 8:
			d.call(evidence.SendOrStart, id, host.Register, "x")
		case n == 8:
			d.callBriefly(evidence.Send, id, host.Number, "x")
		case n < 18:
			d.call(evidence.Read, id, "", nil)
		default:
			d.call(evidence.Start, id, host.Register, nil)
		}
	}
	if owner {
		d.call(evidence.Terminate, id, "", nil)
	}
	d.call(evidence.Read, id, "", nil)
}

const (
	// The pause between writes through one node, over all its probes. With more partitions each
	// probe pauses longer.
	probeEvery = 15 * time.Millisecond
	probeSends = 300
)

// probe continuously writes to one partition through its own node, and reads that node's own state.
// Together the probes show for how long a partition accepted no writes.
func (d *driver) probe(prefix string, partition int) {
	partitions := d.fleet.template.Partitions
	probeEvery := time.Duration(partitions) * probeEvery
	for n := 0; d.load.ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%s-%d", prefix, n)
		if slots.Partition(id, partitions) != partition {
			continue
		}
		for d.load.ctx.Err() == nil {
			start := d.call(evidence.Start, id, host.Register, nil)
			if start.Outcome == evidence.Acked || start.Code == evidence.Exists { // of an unknown outcome before
				break
			}
			sleep(d.load.ctx, probeEvery)
		}
		for i := 0; i < probeSends && d.load.ctx.Err() == nil; i++ {
			d.call(evidence.Send, id, host.Number, fmt.Sprint(i))
			if i%10 == 0 {
				stale := d.request(evidence.Read, id, "", nil)
				stale.Stale = true
				d.do(d.load.ctx, stale)
			}
			sleep(d.load.ctx, probeEvery)
		}
	}
}
