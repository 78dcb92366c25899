package actors

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Stats are figures of a [System], counted since it was made.
type Stats struct {
	// Turns whose events are committed, the events in them, and the messages that
	// they have taken, repetitions and what came too late included.
	Turns    uint64
	Events   uint64
	Messages uint64
	// Activations are instances that were brought into memory by replaying their
	// history, Dehydrations those that had to leave because others were used later.
	Activations  uint64
	Dehydrations uint64
	// Rejections are messages that were refused at the door with ErrBusy, Refusals
	// appends that the journal did not take.
	Rejections Rejections
	Refusals   uint64
	// Stalls is how often an instance could not go on because its code did not fit
	// or was not there, Faults how often one was given up after a panic of the
	// engine.
	Stalls uint64
	Faults uint64

	// Blocked is how many instances wait for code that has been blocked outside of
	// durable calls for a second, and LeftBehind how many such calls of code were left
	// behind and have not returned yet.
	Blocked    int
	LeftBehind int
	// Live is how many instances have an actor now, of the partitions that are led,
	// and Idle how many of those have nothing to do.
	Live int
	Idle int
	// MessagesHeld is how many messages from outside are on their way: they wait for
	// their turn, or for its commit. TurnsOnTheirWay are begun, and their appends are
	// not decided; TurnsWaiting is how many instances wait to begin one, because
	// Config.TurnsMax are on their way.
	MessagesHeld    int
	TurnsOnTheirWay int
	TurnsWaiting    int
	// TimersKept is how many partitions keep timers back that are due, because too
	// many instances have something to do.
	TimersKept int
	// ActivitiesOpen is how many activities are scheduled and not ended, and
	// ActivitiesWaiting how many of those wait for somebody who can take them.
	ActivitiesOpen    int
	ActivitiesWaiting int
}

// counters are what Stats is read from.
type counters struct {
	turns, events, messages   atomic.Uint64
	activations, dehydrations atomic.Uint64
	rejections                rejections
	refusals, stalls, faults  atomic.Uint64
	leftBehind                atomic.Int64
}

// Rejections are how many messages were refused, by the bound that they met.
type Rejections struct{ Instance, Window, Delay uint64 }

type rejections struct{ instance, window, delay atomic.Uint64 }

func (r *rejections) of(b Bound) *atomic.Uint64 {
	switch b {
	case BoundInstance:
		return &r.instance
	case BoundWindow:
		return &r.window
	}
	return &r.delay
}

// Stats returns the figures of the system. The partitions are those that it leads;
// nil is none.
func (s *System) Stats(partitions ...*Partition) Stats {
	c := &s.counters
	stats := Stats{
		Turns: c.turns.Load(), Events: c.events.Load(), Messages: c.messages.Load(),
		Activations: c.activations.Load(), Dehydrations: c.dehydrations.Load(),
		Rejections: Rejections{c.rejections.instance.Load(), c.rejections.window.Load(), c.rejections.delay.Load()},
		Refusals:   c.refusals.Load(),
		Stalls:     c.stalls.Load(), Faults: c.faults.Load(),
		LeftBehind: int(c.leftBehind.Load()),
	}
	for _, partition := range partitions {
		if partition == nil {
			continue
		}
		partition.mu.Lock()
		stats.Live += len(partition.instances)
		stats.Idle += partition.idle.count
		stats.Blocked += partition.code.blocked
		stats.MessagesHeld += partition.window.held.messages
		stats.TurnsOnTheirWay += partition.turnstile.turns
		stats.TurnsWaiting += len(partition.turnstile.waiting)
		if partition.keeping {
			stats.TimersKept++
		}
		partition.mu.Unlock()
	}
	p := s.activities
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, tasks := range p.tasks {
		stats.ActivitiesOpen += len(tasks)
	}
	for _, l := range p.lines {
		stats.ActivitiesWaiting += l.tasks.Len()
	}
	return stats
}

// An Observer is told what happens in a system, as it happens. Its methods are
// called by many goroutines at once and must not block.
type Observer interface {
	// Committed is called by the node that leads when the events of a turn are
	// committed. They must not be changed.
	Committed(instance string, execution uint64, events []*journalpb.Event)
	// TimerFired is called when a timer rings, with how long after its time.
	TimerFired(late time.Duration)
	// Attempted is called when the body of an attempt that was made here has
	// returned, with how long it ran, and how long the attempt had waited for its place
	// since the activity was recorded: negative if that is unknown.
	Attempted(a *replay.Attempt, waited, ran time.Duration, outcome AttemptOutcome)
}

// An AttemptOutcome is what one attempt has come to.
type AttemptOutcome uint8

// The outcomes of attempts.
const (
	AttemptCompleted AttemptOutcome = iota
	AttemptFailed
	AttemptPending // its end will come from outside
)

func outcomeOf(err error, pending bool) AttemptOutcome {
	switch {
	case pending:
		return AttemptPending
	case err != nil:
		return AttemptFailed
	}
	return AttemptCompleted
}

// A Tracer makes spans of attempts. Its methods are called by many goroutines at
// once.
type Tracer interface {
	// Carried returns what is to be carried to the nodes that make attempts of an
	// execution, and recorded with the children that it starts; "" for nothing.
	Carried(instance string, execution uint64) string
	// Attempt is called before the body of an attempt runs here, which gets the
	// context that it returns. ended is called when the body has returned.
	Attempt(ctx context.Context, a *replay.Attempt, carried string) (traced context.Context, ended func(AttemptOutcome))
}

// committed counts a turn whose events are committed.
func (s *System) committed(instance string, execution uint64, events []*journalpb.Event) {
	if len(events) == 0 {
		return
	}
	s.counters.turns.Add(1)
	s.counters.events.Add(uint64(len(events)))
	if s.config.Observer != nil {
		s.config.Observer.Committed(instance, execution, events)
	}
}

func (p *Partition) timerFired(due int64) {
	if observer := p.system.config.Observer; observer != nil {
		observer.TimerFired(p.now().Sub(clustertime.FromUnix(due)))
	}
}

func (s *System) attempted(run *running, outcome AttemptOutcome) {
	if s.config.Observer != nil {
		s.config.Observer.Attempted(&run.info, run.waited, time.Since(run.began), outcome)
	}
}

// carried returns what a tracer wants to be carried, "" without one.
func (s *System) carried(instance string, execution uint64) string {
	if s.config.Tracer == nil {
		return ""
	}
	return s.config.Tracer.Carried(instance, execution)
}

// perform runs the body of an attempt.
func (s *System) perform(run *running) {
	ctx, settle := run.context, run.settler.settle
	if s.config.Tracer != nil {
		traced, ended := s.config.Tracer.Attempt(ctx, &run.info, run.carried)
		ctx = traced
		settle = func(output *journalpb.Payload, err error) {
			_, pending := read(err)
			ended(outcomeOf(err, pending))
			run.settler.settle(output, err)
		}
	}
	run.began = time.Now()
	s.config.Registry.Run(ctx, &run.info, settle)
}
