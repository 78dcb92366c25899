package actors

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An Observer is told about events in a system as they happen. Its methods are called concurrently
// and must not block.
type Observer interface {
	// Committed is called on the leader when the events of a turn are committed. The events must
	// not be changed.
	Committed(instance string, execution uint64, events []*journalpb.Event)
	// TimerFired is called when a timer fires. late is the time since the timer was due.
	TimerFired(late time.Duration)
	// Attempted is called when the body of an attempt on this node has returned. ran is how long
	// the body ran. queuedFor is how long the attempt waited for its slot since the activity was
	// recorded; negative means unknown.
	Attempted(a *replay.Attempt, queuedFor, ran time.Duration, outcome AttemptOutcome)
}

// An AttemptOutcome is how one attempt ended.
type AttemptOutcome uint8

// The outcomes of attempts.
const (
	AttemptCompleted AttemptOutcome = iota
	AttemptFailed
	AttemptPending // its end will come from outside
	// AttemptAbandoned: its body still runs after its CancelGrace.
	AttemptAbandoned
)

// A Tracer makes spans of attempts. Its methods are called concurrently.
type Tracer interface {
	// TraceContext returns the text that is sent to nodes that run attempts of an execution, and
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

// traceContext returns the tracer's context for an execution, "" without a tracer.
func (s *System) traceContext(instance string, execution uint64) string {
	if s.config.Tracer == nil {
		return ""
	}
	return s.config.Tracer.TraceContext(instance, execution)
}
