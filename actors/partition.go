package actors

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/actors/internal/usercode"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Partition runs the instances of one partition for one epoch, on the node that leads it. Its
// methods may be called concurrently.
type Partition struct {
	system  *System
	config  PartitionConfig
	journal Journal
	epoch   uint64
	logger  *slog.Logger

	// context ends when the partition is closed, or the context given to Lead ends. Attempts do not
	// use it: they continue for the next leader.
	context      context.Context
	cancel       context.CancelCauseFunc
	stopWatching func() bool // stops watching the context given to Lead

	timers     *timerActor
	sender     *sender
	runs       *runs
	children   *children
	effects    *effects
	conditions *conditions
	receiver   *receiver
	activities *activity.Partition
	recovery   *recovery

	recovering sync.WaitGroup // of the recovery and retries of stalled instances

	mu             sync.Mutex
	closed         bool
	admission      admission
	turnLimiter    sched.TurnLimiter[*instance]
	timersDeferred bool                 // due timers are deferred
	instances      map[string]*instance // those that have an actor
	stalls         stalls
	idle           sched.IdleList[*instance]
	liveActors     sync.WaitGroup // actors of instances, except those whose code was abandoned
	code           *usercode.Watchdog
}

// Lead opens the partition whose journal this node has led since epoch. Messages can be delivered
// at once. Open operations are recovered in the background; instances with waiting messages come
// first. The end of ctx stops recovery and repetitions, but the caller must still call Close.
func (s *System) Lead(ctx context.Context, journal Journal, epoch uint64) *Partition {
	return s.LeadPartition(ctx, PartitionConfig{}, journal, epoch)
}

// LeadPartition is [System.Lead] for one of several partitions. A system may have several open.
func (s *System) LeadPartition(ctx context.Context, partitionConfig PartitionConfig, journal Journal, epoch uint64) *Partition {
	p := &Partition{
		system:      s,
		config:      partitionConfig,
		journal:     journal,
		epoch:       epoch,
		logger:      s.logger.With("epoch", epoch),
		instances:   make(map[string]*instance),
		turnLimiter: sched.NewTurnLimiter[*instance](s.config.TurnsMax),
	}
	// Not derived from ctx, so that ErrNodeStopping is the cause.
	p.context, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	p.stopWatching = context.AfterFunc(ctx, func() { p.cancel(replay.ErrNodeStopping) })
	p.admission = admission{mu: &p.mu, config: &s.config, rejections: &s.counters.rejections}
	p.stalls = stalls{mu: &p.mu, waitingForCode: make(map[session.Code]int), watchers: make(stallWatchers)}
	p.code = usercode.NewWatchdog(&p.mu, p.system.config.HungAfter, codeActorFunction, p.logger)
	p.timers = newTimerActor(p)
	p.activities = p.leadActivities()
	p.assemble()
	p.activities.ServeLocal()
	p.recovering.Go(p.effects.recoverRest)
	p.recovering.Go(func() {
		p.recovery.run()
		p.conditions.retryStalled()
	})
	return p
}

// assemble makes the parts of the partition that send messages and begin operations.
func (p *Partition) assemble() {
	s := p.system
	p.runs = &runs{config: &p.config, registry: s.config.Registry, journal: p.journal, epoch: p.epoch}
	p.sender = &sender{
		context: p.context, journal: p.journal, others: p.config.OtherPartitions, timers: p.timers, local: p,
	}
	p.children = &children{
		context: p.context, journal: p.journal, sender: p.sender, runs: p.runs, timers: p.timers,
		logger: p.logger, traceContext: s.traceContext,
	}
	outbox := &outbox{
		context: p.context, journal: p.journal, send: p.config.SendMessage, timers: p.timers, sender: p.sender,
		faults: &s.counters.faults, logger: p.logger, open: make(map[operation.Key]*delivery),
	}
	if outbox.send == nil {
		outbox.send = p.SendMessage
	}
	p.effects = &effects{
		context: p.context, journal: p.journal, timers: p.timers, activities: p.activities,
		children: p.children, sender: p.sender, outbox: outbox, now: p.now, observer: s.config.Observer, logger: p.logger,
	}
	p.conditions = &conditions{
		context: p.context, journal: p.journal, epoch: p.epoch, timers: p.timers, instances: p,
		hasCode: s.config.Registry.HasOrchestration, retryWait: 2 * s.config.HungAfter,
	}
	p.receiver = &receiver{
		journal: p.journal, local: p, mu: &p.mu, pending: make(map[crossMessageKey]func(Answer)),
	}
	p.recovery = &recovery{
		context: p.context, journal: p.journal, recoverer: p.effects, waker: p, logger: p.logger,
		mu: &p.mu, recoveredEarly: make(map[string]bool),
	}
}

// now returns the cluster time. Everything that is recorded, or compared with a record, uses this
// clock.
func (p *Partition) now() clustertime.Time {
	if p.config.Now != nil {
		return p.config.Now()
	}
	return p.system.config.Now()
}

// Epoch returns the epoch for which the partition was opened.
func (p *Partition) Epoch() uint64 { return p.epoch }

// Deliver puts a message into the inbox of an instance and wakes the instance. It does not block.
// The outcome goes to the message's Done.
func (p *Partition) Deliver(id string, m Message) {
	if err := p.admit(id, m); err != nil {
		m.resolve(Answer{Err: err})
	}
}

func (p *Partition) admit(id string, m Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrStopped
	}
	in, bytes := p.instances[id], 0
	external := !m.Internal && !terminatesStalled(in, &m)
	if external {
		bytes = m.size()
		if busy := p.admission.rejection(in, &m, bytes); busy != nil {
			return busy
		}
	}
	if in == nil {
		in = newInstance(p, id)
		p.instances[id] = in
	}
	if external {
		p.admission.track(in, &m, bytes)
	}
	in.inbox = append(in.inbox, m)
	switch {
	case in.code.Blocked() && in.endsRun(m):
		p.replaceActor(in)
		return nil
	case in.stallReason != nil && isTermination(m):
		p.send(in, wakeUp{})
	}
	if !in.awake {
		in.awake = true
		p.idle.Remove(in)
		if p.recovery.isRecovered(id) {
			p.send(in, wakeUp{})
		} else {
			p.recovery.wait(in)
		}
	}
	return nil
}

// terminatesStalled reports whether a message is the first waiting termination of an instance that
// is stalled or whose code is blocked. Such a message is accepted even if the inbox is full,
// because the instance takes no other message until its code fits or returns. The partition's lock
// is held.
func terminatesStalled(in *instance, m *Message) bool {
	return in != nil && (in.stallReason != nil || in.code.Blocked()) && isTermination(*m) && !slices.ContainsFunc(in.inbox, isTermination)
}

func (p *Partition) send(in *instance, message any) {
	p.system.actors.Root.Send(in.pid, message)
}

// takeBatch moves waiting messages of an instance to a turn, and reports whether the turn may run.
// A stalled instance gets only a termination. An instance waits while too many turns are in
// flight. Without messages it becomes idle, and the longest idle instance may be evicted; an
// instance that is not loaded stops.
func (p *Partition) takeBatch(in *instance, t *turn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.stallReason != nil {
		return in.takeTerminate(t)
	}
	if in.turnState.InFlight() {
		p.releaseTurn(in) // of the last turn
	}
	if n := in.held.batchSize(in); n > 0 {
		if !p.turnLimiter.Acquire(in) {
			return false
		}
		t.batch = append(t.batch, in.inbox[:n]...)
		clear(in.inbox[:n])
		if in.inbox = in.inbox[n:]; len(in.inbox) == 0 {
			in.inbox = in.inboxArray[:0]
		}
		in.enterCode(false)
		in.codeStarting = in.execution == nil && !in.startOnly && slices.ContainsFunc(t.batch, isStart)
		return true
	}
	if p.closed {
		return false
	}
	in.awake = false
	defer p.resumeTimers()
	if in.execution == nil {
		delete(p.instances, in.id)
		in.stopping = true
		return false
	}
	if len(in.held) > 0 {
		return false // not evicted: the updates are in memory only
	}
	p.idle.Add(in)
	if p.idle.Len() > p.system.config.ResidentMax {
		p.evict(p.idle.Oldest())
	}
	return false
}

// releaseTurn ends the turn of an instance, and wakes the next one that waits. p.mu is held.
func (p *Partition) releaseTurn(in *instance) {
	if next, woken := p.turnLimiter.Release(in); woken {
		p.send(next, wakeUp{})
	}
}

// evict drops an idle instance from memory. The next message makes a new actor. Nothing is lost,
// because the inbox is empty. p.mu is held.
func (p *Partition) evict(in *instance) {
	p.system.counters.evictions.Add(1)
	p.idle.Remove(in)
	delete(p.instances, in.id)
	p.send(in, stopRequest{})
}

// EvictIdle evicts an instance if it is idle. It is for tests of orchestrations.
func (p *Partition) EvictIdle(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.instances[id]; in != nil && in.idleLinks.Idle() {
		p.evict(in)
	}
}

// detach removes an instance from the partition and returns its waiting messages. No message
// reaches it afterwards.
func (p *Partition) detach(in *instance) []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(in)
	waiting := slices.Concat(in.held, in.inbox)
	in.inbox, in.held = nil, nil
	return waiting
}

// forget removes an instance from the partition's state. p.mu is held.
func (p *Partition) forget(in *instance) {
	if p.instances[in.id] == in {
		delete(p.instances, in.id)
	}
	p.idle.Remove(in)
	p.releaseTurn(in)
	p.stalls.set(in, nil)
	p.resumeTimers()
}

// putBack inserts messages into the inbox at an index, at most its length. If reason is not nil,
// the instance stalls. It then stays marked as awake, so that new messages do not wake its actor.
func (p *Partition) putBack(in *instance, index int, batch []Message, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in.inbox = slices.Insert(in.inbox, min(index, len(in.inbox)), batch...)
	p.stalls.set(in, reason)
	if reason != nil {
		p.releaseTurn(in)
		p.stalls.watchers.notify(in.id)
		p.resumeTimers()
	}
}

// takeTerminate moves the first termination in the inbox to a turn. The partition's lock is held.
func (in *instance) takeTerminate(t *turn) bool {
	i := slices.IndexFunc(in.inbox, isTermination)
	if i < 0 {
		return false
	}
	t.batch, t.terminateOnly, t.takenFrom = append(t.batch, in.inbox[i]), true, i
	in.inbox = slices.Delete(in.inbox, i, i+1)
	return true
}

// logRejectedAppend logs a rejected append. It uses debug level if the partition is closing or
// another node leads.
func (p *Partition) logRejectedAppend(instance string, execution uint64, err error) {
	if refused := interface{ RefusesCopy() }(nil); errors.As(err, &refused) {
		return // the caller's mistake
	}
	p.system.counters.appendsRejected.Add(1)
	level := slog.LevelWarn
	if p.context.Err() != nil || p.config.IsSuperseded != nil && p.config.IsSuperseded(err) {
		level = slog.LevelDebug
	}
	p.logger.Log(p.context, level, "append rejected, the turn is discarded and its messages are answered with the error", "instance", instance, "execution", execution, "error", err)
}

// Close ends every actor of the partition: it evicts instances, and answers waiting messages with
// ErrStopped. Attempts that run in slots of this node continue for the next leader, until
// System.Close. Close abandons code that is blocked outside of durable calls for more than a
// second. It may be called twice.
func (p *Partition) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.receiver.close()
	reportBlocked := p.code.CheckBlocked()
	var live []*instance
	if first {
		for _, in := range p.instances {
			live = append(live, in)
		}
	}
	p.mu.Unlock()
	reportBlocked()
	p.stopWatching()
	p.cancel(replay.ErrNodeStopping)
	p.recovering.Wait()
	p.effects.outbox.close()
	p.activities.Close()
	for _, in := range live {
		p.send(in, stopRequest{})
	}
	p.liveActors.Wait()
	p.code.Stop()
	p.timers.close()
}

// operationRef returns the reference of the operation that an event schedules.
func (in *instance) operationRef(eventID uint64) *journalpb.OperationRef {
	return &journalpb.OperationRef{Instance: in.id, Incarnation: in.incarnation, Execution: in.executionNumber, EventId: eventID}
}

// completion returns the message that completes an operation. done is called when the message need
// not be repeated.
func completion(ref *journalpb.OperationRef, event *journalpb.Event, done func(Answer)) Message {
	event.SourceEventId = ref.EventId
	return Message{
		Message:  engine.Message{Execution: ref.Execution, Incarnation: ref.Incarnation, Event: event},
		Internal: true,
		Done:     done,
	}
}
