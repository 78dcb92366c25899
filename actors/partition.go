package actors

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Partition is the live side of one partition of the journal, on the node
// that leads it, for one epoch. Its methods may be called concurrently.
type Partition struct {
	system  *System
	place   Place
	journal Journal
	epoch   uint64
	logger  *slog.Logger

	// Ends when the partition is closed: the context of its activities.
	context context.Context
	cancel  context.CancelCauseFunc
	unwatch func() bool // does not watch the context given to Lead any more

	clock *clock

	starts atomic.Uint64 // runs that were begun in this epoch; see incarnate

	taking sync.WaitGroup // of takeUp and takeUpRest

	// What is left of the rates of activities. Guarded by the pool's lock.
	rates map[string]*bucket
	// The exchange of this node with itself, about what it had begun as a worker.
	rejoining sync.WaitGroup

	mu        sync.Mutex
	opening   *opening // nil once everything is taken up
	closed    bool
	window    window
	turnstile turnstile
	keeping   bool // timers are kept back
	watchers  stallWatchers
	instances map[string]*instance // those that have an actor
	stalls    int                  // how many of them are stalled
	waiting   map[Code]int         // how many of these wait for code, by which
	idle      idlers
	live      sync.WaitGroup // actors of instances, but those whose code was left behind
	code      codeList
	// Messages from other partitions that are not answered, with whom to tell.
	received map[crossingKey]func(Answer)
}

// Lead opens the partition whose journal this node leads since epoch: from now
// on messages can be delivered, and what the journal has open is taken up
// again: in the background, an instance that has messages first. ctx bounds the partition's life; Close must be called all the same.
func (s *System) Lead(ctx context.Context, journal Journal, epoch uint64) *Partition {
	return s.LeadAt(ctx, Place{}, journal, epoch)
}

// LeadAt is [System.Lead] for one of several partitions. The system may have more
// than one of them open.
func (s *System) LeadAt(ctx context.Context, place Place, journal Journal, epoch uint64) *Partition {
	p := &Partition{
		system:    s,
		place:     place,
		received:  make(map[crossingKey]func(Answer)),
		journal:   journal,
		epoch:     epoch,
		opening:   &opening{early: make(map[string]bool)},
		logger:    s.logger.With("epoch", epoch),
		instances: make(map[string]*instance),
		waiting:   make(map[Code]int),
		watchers:  make(stallWatchers),
		turnstile: turnstile{turnsMax: s.config.TurnsMax},
		rates:     s.config.buckets(),
	}
	// Not derived from ctx, so that activities learn the reason.
	p.context, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	p.unwatch = context.AfterFunc(ctx, func() { p.cancel(replay.ErrNodeStopping) })
	p.clock = newClock(p)
	p.taking.Go(p.takeUpRest)
	p.taking.Go(func() {
		p.takeUp()
		p.retryHeld()
	})
	p.employSelf()
	return p
}

// Epoch returns the epoch for which the partition was opened.
func (p *Partition) Epoch() uint64 { return p.epoch }

// Deliver puts a message into the inbox of an instance and wakes it. It does
// not block; the message's Done tells the rest.
func (p *Partition) Deliver(id string, m Message) {
	if err := p.admit(id, m); err != nil {
		m.answer(Answer{Err: err})
	}
}

func (p *Partition) admit(id string, m Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrStopped
	}
	in, bytes := p.instances[id], 0
	outside := !m.Internal && !endsStalled(in, &m)
	if outside {
		bytes = m.size()
		if busy := p.busy(in, &m, bytes); busy != nil {
			return busy
		}
	}
	if in == nil {
		in = newInstance(p, id)
		p.instances[id] = in
	}
	if outside {
		p.hold(in, &m, bytes)
	}
	in.inbox = append(in.inbox, m)
	switch {
	case in.code.blocked && terminates(m):
		p.replace(in)
		return nil
	case in.stalled != nil && terminates(m):
		p.tell(in, wakeUp{})
	}
	if !in.awake {
		in.awake = true
		p.idle.remove(in)
		if p.opening.knows(id) {
			p.tell(in, wakeUp{})
		} else {
			p.opening.waiting = append(p.opening.waiting, in)
		}
	}
	return nil
}

// endsStalled tells whether a message ends an instance that is stalled, or whose code is
// blocked. It is taken however many wait, because they wait for that, or for a node with
// other code; one such message is enough. The partition's lock is held.
func endsStalled(in *instance, m *Message) bool {
	return in != nil && (in.stalled != nil || in.code.blocked) && terminates(*m) && !slices.ContainsFunc(in.inbox, terminates)
}

// tell sends a message to the actor of an instance.
func (p *Partition) tell(in *instance, message any) {
	p.system.actors.Root.Send(in.pid, message)
}

// take gives a turn what waits for the instance, as much as one takes, and nothing
// while too many turns of others are on their way. One that is stalled is given
// only what ends it. With nothing there the instance is idle from now on, and the
// one that has been idle longest may have to leave; one that has nothing in memory
// leaves itself.
func (p *Partition) take(in *instance, t *turn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.stalled != nil {
		return in.takeTerminate(t)
	}
	if in.passage == inside {
		p.exit(in) // the last turn
	}
	if n := turnful(in.inbox, in.batchMax); n > 0 {
		if !p.turnstile.enter(in) {
			return false
		}
		t.batch = append(t.batch, in.inbox[:n]...)
		clear(in.inbox[:n])
		if in.inbox = in.inbox[n:]; len(in.inbox) == 0 {
			in.inbox = in.room[:0]
		}
		p.enterCode(in, false)
		in.code.starting = in.execution == nil && !in.startsAlone && slices.ContainsFunc(t.batch, starts)
		return true
	}
	if p.closed {
		return false
	}
	in.awake = false
	defer p.calm()
	if in.execution == nil {
		delete(p.instances, in.id)
		in.leaving = true
		return false
	}
	p.idle.add(in)
	if p.idle.count > p.system.config.ResidentMax {
		p.evict(p.idle.oldest)
	}
	return false
}

// evict lets an idle instance go. From here on a message to it makes a new
// actor; nothing can be lost, because its inbox is empty. p.mu is held.
func (p *Partition) evict(in *instance) {
	p.system.counters.dehydrations.Add(1)
	p.idle.remove(in)
	delete(p.instances, in.id)
	p.tell(in, leave{})
}

// EvictIdle evicts an instance if it is idle. Tests of orchestrations do that.
func (p *Partition) EvictIdle(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.instances[id]; in != nil && in.idle {
		p.evict(in)
	}
}

// detach takes an instance off the partition and returns what waits for it. No
// message reaches it from here on.
func (p *Partition) detach(in *instance) []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(in)
	waiting := in.inbox
	in.inbox = nil
	return waiting
}

// forget takes an instance off everything that the partition knows of it. p.mu is
// held.
func (p *Partition) forget(in *instance) {
	if p.instances[in.id] == in {
		delete(p.instances, in.id)
	}
	p.idle.remove(in)
	p.exit(in)
	p.setStalled(in, nil)
	p.calm()
}

// putBack returns messages to the front of the inbox. With a reason the instance
// is stalled: it stays awake, so that nothing wakes it.
func (p *Partition) putBack(in *instance, batch []Message, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in.inbox = append(batch, in.inbox...)
	p.setStalled(in, reason)
	if reason != nil {
		p.exit(in)
		p.watchers.tell(in.id)
		p.calm()
	}
}

// setStalled notes why an instance cannot go on; nil: it can. p.mu is held.
func (p *Partition) setStalled(in *instance, reason error) {
	switch {
	case in.stalled == nil && reason != nil:
		p.stalls++
	case in.stalled != nil && reason == nil:
		p.stalls--
	}
	p.countWaiting(in.stalled, -1)
	p.countWaiting(reason, 1)
	in.stalled = reason
}

// takeTerminate gives a turn the first message of the inbox that ends the instance
// without its code. The partition's lock is held.
func (in *instance) takeTerminate(t *turn) bool {
	i := slices.IndexFunc(in.inbox, terminates)
	if i < 0 {
		return false
	}
	t.batch, t.terminates = append(t.batch, in.inbox[i]), true
	in.inbox = slices.Delete(in.inbox, i, i+1)
	return true
}

// unstall lets an instance go on. It is awake already.
func (p *Partition) unstall(in *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setStalled(in, nil)
}

// refused logs an append that was refused, unless that is because the partition
// is closing, or another node leads, which is no news.
func (p *Partition) refused(instance string, execution uint64, err error) {
	p.system.counters.refusals.Add(1)
	level := slog.LevelWarn
	if p.context.Err() != nil || p.place.Superseded != nil && p.place.Superseded(err) {
		level = slog.LevelDebug
	}
	p.logger.Log(p.context, level, "append refused", "instance", instance, "execution", execution, "error", err)
}

// stalled logs that an instance cannot go on, without payloads.
func (p *Partition) stalled(in *instance, mismatch *replay.Mismatch, reason error) {
	logger := p.logger.With("instance", in.id, "execution", in.number)
	if mismatch == nil {
		logger.Warn("instance stalled", "reason", reason)
		return
	}
	shown := mismatch.WithoutPayloads()
	logger.Warn("instance stalled", "reason", shown.Kind, "event_id", shown.EventID,
		"expected", shown.Expected, "found", shown.Found, "source", shown.Source)
}

// Stalled returns why an instance cannot go on: a [*replay.Mismatch] or a
// [*replay.NoCodeError]; nil if it can.
func (p *Partition) Stalled(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.instances[id]; in != nil {
		return in.stalled
	}
	return nil
}

// Close ends every actor of the partition: instances are dropped from memory,
// activities are told to stop, messages that wait are answered with ErrStopped.
// It returns when all are gone but the activities, and the code that is blocked outside
// of durable calls for more than a second: that is left behind. It may be called twice.
func (p *Partition) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	blocked, waiting := p.leaveBlocked()
	var live []*instance
	if first {
		for _, in := range p.instances {
			live = append(live, in)
		}
	}
	p.mu.Unlock()
	for _, m := range waiting {
		m.answer(Answer{Err: ErrStopped})
	}
	p.logBlocked(blocked)
	p.unwatch()
	p.cancel(replay.ErrNodeStopping)
	p.taking.Wait()
	p.system.activities.forget(p)
	for _, in := range live {
		p.tell(in, leave{})
	}
	p.live.Wait()
	p.closeCode()
	p.rejoining.Wait()
	p.clock.close()
}

// operation names the operation of the instance that an event schedules.
func (in *instance) operation(eventID uint64) *journalpb.OperationRef {
	return &journalpb.OperationRef{Instance: in.id, Incarnation: in.incarnation, Execution: in.number, EventId: eventID}
}

// incarnations reports whether runs that begin get an incarnation.
func (p *Partition) incarnations() bool { return p.place.Incarnations != nil && p.place.Incarnations() }

// applied returns the index of the journal that executions are told; 0 as long as replicas
// would not keep what follows from it.
func (p *Partition) applied() uint64 {
	if p.place.AppliedIndex == nil || !p.incarnations() {
		return 0
	}
	return p.place.AppliedIndex()
}

// incarnate gives a start that is about to begin a run the run's incarnation, in a
// message of its own: the sender may still repeat the one it has.
func (p *Partition) incarnate(m *Message, instance string, execution uint64) {
	if !p.incarnations() {
		return
	}
	started := new(journalpb.OrchestrationStarted)
	m.started().ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		started.ProtoReflect().Set(field, value)
		return true
	})
	if p.place.Incarnation != nil {
		started.Incarnation = p.place.Incarnation(instance, execution)
	} else {
		started.Incarnation = journalpb.NewIncarnation(p.epoch, p.starts.Add(1))
	}
	started.RequestHorizon = p.applied()
	if started.Version == replay.NewestVersion { // asked for by a partition whose leader has no code for it
		started.Version = p.version(started.Name, started.Version)
	}
	m.Event = &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: started}}
}

// completion returns the message that completes an operation. done is called
// when it need not be repeated any more.
func completion(ref *journalpb.OperationRef, event *journalpb.Event, done func(Answer)) Message {
	event.SourceEventId = ref.EventId
	return Message{
		Message:  replay.Message{Execution: ref.Execution, Incarnation: ref.Incarnation, Event: event},
		Internal: true,
		Done:     done,
	}
}
