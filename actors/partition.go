package actors

import (
	"container/list"
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Partition is the live side of one partition of the journal, on the node
// that leads it, for one epoch. Its methods may be called concurrently.
type Partition struct {
	system  *System
	journal Journal
	epoch   uint64
	logger  *slog.Logger

	// Ends when the partition is closed: the context of its activities.
	context context.Context
	cancel  context.CancelCauseFunc
	unwatch func() bool // does not watch the context given to Lead any more

	clock *clock

	mu        sync.Mutex
	opening   bool // what is open is being taken up: nobody is woken yet
	closed    bool
	instances map[string]*instance // those that have an actor
	idle      *list.List           // of *instance, the least recently used first
	live      sync.WaitGroup       // actors of instances
}

// Lead opens the partition whose journal this node leads since epoch: from now
// on messages can be delivered, and what the journal has open is taken up
// again. ctx bounds the partition's life; Close must be called all the same.
func (s *System) Lead(ctx context.Context, journal Journal, epoch uint64) *Partition {
	p := &Partition{
		system:    s,
		journal:   journal,
		epoch:     epoch,
		opening:   true,
		logger:    s.logger.With("epoch", epoch),
		instances: make(map[string]*instance),
		idle:      list.New(),
	}
	// Not derived from ctx, so that activities learn the reason.
	p.context, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	p.unwatch = context.AfterFunc(ctx, func() { p.cancel(replay.ErrNodeStopping) })
	p.clock = newClock(p)
	p.takeUp()
	p.open()
	return p
}

// open wakes the instances that messages wait for already. No turn is taken
// before: it could give up what is still to be taken up, or begin what would
// then be taken up a second time.
func (p *Partition) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opening = false
	for _, in := range p.instances {
		p.tell(in, wakeUp{})
	}
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
	in := p.instances[id]
	if in == nil {
		in = newInstance(p, id)
		p.instances[id] = in
	}
	if !m.Internal && len(in.inbox) >= p.system.config.InboxMax {
		return ErrBusy
	}
	in.inbox = append(in.inbox, m)
	if in.stalled != nil && m.Event.GetOrchestrationTerminated() != nil {
		p.tell(in, wakeUp{})
	}
	if !in.awake {
		in.awake = true
		p.busy(in)
		if !p.opening {
			p.tell(in, wakeUp{})
		}
	}
	return nil
}

// tell sends a message to the actor of an instance.
func (p *Partition) tell(in *instance, message any) {
	p.system.actors.Root.Send(in.pid, message)
}

// busy takes an instance off the idle ones. p.mu is held.
func (p *Partition) busy(in *instance) {
	if in.place != nil {
		p.idle.Remove(in.place)
		in.place = nil
	}
}

// take returns what waits for the instance, as much as one turn takes. With
// nothing there the instance is idle from now on, and the one that has been
// idle longest may have to leave; one that has nothing in memory leaves itself.
func (p *Partition) take(in *instance) []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := turnful(in.inbox, in.batchMax); n > 0 {
		batch := in.inbox[:n:n]
		in.inbox = in.inbox[n:]
		return batch
	}
	in.inbox = nil
	if p.closed {
		return nil
	}
	in.awake = false
	if in.execution == nil {
		delete(p.instances, in.id)
		in.leaving = true
		return nil
	}
	in.place = p.idle.PushBack(in)
	if p.idle.Len() > p.system.config.ResidentMax {
		p.evict(p.idle.Front().Value.(*instance))
	}
	return nil
}

// evict lets an idle instance go. From here on a message to it makes a new
// actor; nothing can be lost, because its inbox is empty. p.mu is held.
func (p *Partition) evict(in *instance) {
	p.busy(in)
	delete(p.instances, in.id)
	p.tell(in, leave{})
}

// detach takes an instance off the partition and returns what waits for it. No
// message reaches it from here on.
func (p *Partition) detach(in *instance) []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.instances[in.id] == in {
		delete(p.instances, in.id)
	}
	p.busy(in)
	waiting := in.inbox
	in.inbox = nil
	return waiting
}

// putBack returns messages to the front of the inbox. With a reason the instance
// is stalled: it stays awake, so that nothing wakes it.
func (p *Partition) putBack(in *instance, batch []Message, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in.inbox = append(batch, in.inbox...)
	in.stalled = reason
}

// takeTerminate takes the first message out of the inbox that ends the instance
// without its code.
func (p *Partition) takeTerminate(in *instance) (*Message, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range in.inbox {
		if m.Event.GetOrchestrationTerminated() != nil {
			in.inbox = slices.Delete(in.inbox, i, i+1)
			return &m, true
		}
	}
	return nil, false
}

// unstall lets an instance go on. It is awake already.
func (p *Partition) unstall(in *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in.stalled = nil
}

// Retry has a stalled instance try again; it does nothing to any other.
func (p *Partition) Retry(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.instances[id]; in != nil && in.stalled != nil {
		in.stalled = nil
		p.tell(in, wakeUp{})
	}
}

// refused logs an append that was refused, unless that is because the partition
// is closing, which is no news.
func (p *Partition) refused(instance string, err error) {
	level := slog.LevelWarn
	if p.context.Err() != nil {
		level = slog.LevelDebug
	}
	p.logger.Log(p.context, level, "append refused", "instance", instance, "error", err)
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
// It returns when all are gone but the activities. It may be called twice.
func (p *Partition) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	var live []*instance
	if first {
		for _, in := range p.instances {
			live = append(live, in)
		}
	}
	p.mu.Unlock()
	p.unwatch()
	p.cancel(replay.ErrNodeStopping)
	p.system.activities.forget(p)
	for _, in := range live {
		p.tell(in, leave{})
	}
	p.live.Wait()
	p.clock.close()
}

// operation names the operation of an instance that an event schedules.
func operation(instance string, execution, eventID uint64) *journalpb.OperationRef {
	return &journalpb.OperationRef{Instance: instance, Execution: execution, EventId: eventID}
}

// completion returns the message that completes an operation. done is called
// when it need not be repeated any more.
func completion(ref *journalpb.OperationRef, event *journalpb.Event, done func(Answer)) Message {
	event.SourceEventId = ref.EventId
	return Message{
		Message:  replay.Message{Execution: ref.Execution, Event: event},
		Internal: true,
		Done:     done,
	}
}
