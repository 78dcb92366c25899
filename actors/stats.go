package actors

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Stats are the metrics of a [System]. Counters start at 0 when the system is made.
type Stats struct {
	// Turns, Events and Messages count committed turns, their events, and the messages that they
	// took, including repeated and late ones.
	Turns    uint64
	Events   uint64
	Messages uint64
	// Activations counts instances brought into memory by replay. Evictions counts idle instances
	// evicted because too many were in memory.
	Activations uint64
	Evictions   uint64
	// Rejections counts messages refused with ErrBusy. AppendsRefused counts appends that the
	// journal refused.
	Rejections     Rejections
	AppendsRefused uint64
	// Stalls counts how often an instance could not continue because its code did not fit or was
	// missing. Faults counts panics of the engine.
	Stalls uint64
	Faults uint64

	// Blocked is the number of instances whose code has been blocked outside of durable calls for
	// a second. AbandonedCode is the number of calls of abandoned code that have not returned.
	Blocked       int
	AbandonedCode int
	// Live is the number of instances with an actor, in the partitions that this node leads. Idle
	// is how many of them have nothing to do.
	Live int
	Idle int
	// MessagesInFlight is the number of external messages that wait for a turn or its commit.
	// TurnsInFlight is the number of turns whose appends are not decided. TurnsWaiting is the
	// number of instances that wait because Config.TurnsMax turns are in flight.
	MessagesInFlight int
	TurnsInFlight    int
	TurnsWaiting     int
	// TimersDeferred is the number of partitions that defer due timers because too many instances
	// are busy.
	TimersDeferred int
	// ActivitiesOpen is the number of activities that are scheduled and not ended.
	// ActivitiesWaiting is how many of them wait for a slot or a worker.
	ActivitiesOpen    int
	ActivitiesWaiting int
}

type counters struct {
	turns, events, messages        atomic.Uint64
	activations, evictions         atomic.Uint64
	rejections                     rejections
	appendsRefused, stalls, faults atomic.Uint64
	abandonedCode                  atomic.Int64
}

// Rejections counts refused messages by the bound that they exceeded.
type Rejections struct{ Instance, InFlight, Delay uint64 }

type rejections struct{ instance, inFlight, delay atomic.Uint64 }

func (r *rejections) of(b Bound) *atomic.Uint64 {
	switch b {
	case BoundInstance:
		return &r.instance
	case BoundInFlight:
		return &r.inFlight
	}
	return &r.delay
}

// Stats returns the metrics of the system. partitions are those that it leads; nil elements are
// skipped.
func (s *System) Stats(partitions ...*Partition) Stats {
	c := &s.counters
	stats := Stats{
		Turns: c.turns.Load(), Events: c.events.Load(), Messages: c.messages.Load(),
		Activations: c.activations.Load(), Evictions: c.evictions.Load(),
		Rejections:     Rejections{c.rejections.instance.Load(), c.rejections.inFlight.Load(), c.rejections.delay.Load()},
		AppendsRefused: c.appendsRefused.Load(),
		Stalls:         c.stalls.Load(), Faults: c.faults.Load(),
		AbandonedCode: int(c.abandonedCode.Load()),
	}
	for _, partition := range partitions {
		if partition == nil {
			continue
		}
		partition.mu.Lock()
		stats.Live += len(partition.instances)
		stats.Idle += partition.idle.Len()
		stats.Blocked += partition.runningCode.blocked
		stats.MessagesInFlight += partition.admission.inFlight.messages
		stats.TurnsInFlight += partition.turnLimiter.InFlight()
		stats.TurnsWaiting += partition.turnLimiter.Waiting()
		if partition.timersDeferred {
			stats.TimersDeferred++
		}
		partition.mu.Unlock()
	}
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, tasks := range p.tasks {
		stats.ActivitiesOpen += len(tasks)
	}
	for _, l := range p.queues {
		stats.ActivitiesWaiting += l.tasks.Len()
	}
	return stats
}

// An Observer is told about events in a system as they happen. Its methods are called concurrently
// and must not block.
type Observer interface {
	// Committed is called on the leader when the events of a turn are committed. The events must
	// not be changed.
	Committed(instance string, execution uint64, events []*journalpb.Event)
	// TimerFired is called when a timer fires. late is the time since the timer was due.
	TimerFired(late time.Duration)
	// Attempted is called when the body of an attempt made on this node has returned. ran is how
	// long the body ran. queuedFor is how long the attempt waited for its slot since the activity
	// was recorded; negative means unknown.
	Attempted(a *replay.Attempt, queuedFor, ran time.Duration, outcome AttemptOutcome)
}

// An AttemptOutcome is how one attempt ended.
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

// A Tracer makes spans of attempts. Its methods are called concurrently.
type Tracer interface {
	// TraceContext returns the text that is sent to nodes that make attempts of an execution, and
	// recorded with the children that it starts; "" for none.
	TraceContext(instance string, execution uint64) string
	// Attempt is called before the body of an attempt runs on this node. The body gets tracedCtx.
	// ended is called after the body has returned.
	Attempt(ctx context.Context, a *replay.Attempt, traceContext string) (tracedCtx context.Context, ended func(AttemptOutcome))
}

func (s *System) observeCommitted(instance string, execution uint64, events []*journalpb.Event) {
	if len(events) == 0 {
		return
	}
	s.counters.turns.Add(1)
	s.counters.events.Add(uint64(len(events)))
	if s.config.Observer != nil {
		s.config.Observer.Committed(instance, execution, events)
	}
}

func (p *Partition) observeTimerFired(due int64) {
	if observer := p.system.config.Observer; observer != nil {
		observer.TimerFired(p.now().Sub(clustertime.FromUnixNano(due)))
	}
}

func (s *System) observeAttempt(run *invocation, outcome AttemptOutcome) {
	if s.config.Observer != nil {
		s.config.Observer.Attempted(&run.info, run.queuedFor, time.Since(run.bodyStartedAt), outcome)
	}
}

// traceContext returns the tracer's context for an execution, "" without a tracer.
func (s *System) traceContext(instance string, execution uint64) string {
	if s.config.Tracer == nil {
		return ""
	}
	return s.config.Tracer.TraceContext(instance, execution)
}

func (s *System) runBody(run *invocation) {
	ctx, resolve := run.context, run.resolver.resolve
	if s.config.Tracer != nil {
		tracedCtx, ended := s.config.Tracer.Attempt(ctx, &run.info, run.traceContext)
		ctx = tracedCtx
		resolve = func(output *journalpb.Payload, err error) {
			_, pending := readError(err)
			ended(outcomeOf(err, pending))
			run.resolver.resolve(output, err)
		}
	}
	run.bodyStartedAt = time.Now()
	s.config.Registry.RunActivity(ctx, &run.info, resolve)
}
