package engine

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An Execution is one execution of an instance in memory: the cursor in its history, and the
// program that runs its code. Live turns and replays use the same code.
//
// Its methods must not be called concurrently. After one returns an error, only [Execution.Evict]
// may be called.
type Execution struct {
	id         identity
	cursor     cursor
	program    program
	deferred   deferredInputs
	requestIDs requestIDs // of recorded inputs
	refusals   refusals   // why messages of the latest turn were refused, by index
	carryOver  carryOver
	ownMonitor Monitor    // the monitor until SetMonitor is called
	explainer  *Execution // the second replay, if a mismatch was explained
}

// NewExecution returns an execution with an empty history. The logger is given to orchestration
// code; nil means slog.Default().
func NewExecution(instance string, number uint64, registry *Registry, logger *slog.Logger) *Execution {
	if logger == nil {
		logger = slog.Default()
	}
	x := new(Execution)
	x.id.ID, x.id.options = host.ID{Instance: instance, Number: number}, &noOptions
	p := &x.program
	p.id, p.cursor, p.registry, p.logger = &x.id, &x.cursor, registry, logger
	p.calls.id, p.calls.coroutines = &x.id.ID, &p.coroutines
	p.operations.deferred, p.operations.coroutines = &x.deferred, &p.coroutines
	p.phase = p.newScope(nil)
	p.cancellation.root = p.newScope(p.phase)
	x.SetMonitor(&x.ownMonitor)
	return x
}

// Replay moves the cursor over a recorded history. The history must be complete, because
// [replay.Patched] reads ahead. The error is a [*replay.Mismatch] if code and history disagree, a
// [*replay.NotRegisteredError] if there is no code for the orchestration, a [*replay.CodecError] if
// a payload cannot be read, or an error of the sequence.
func (x *Execution) Replay(history iter.Seq2[*journalpb.Event, error]) error {
	err := x.replay(history)
	explaining := x.program.operations.queue.recordsCallers
	if m, ok := err.(*replay.Mismatch); ok && m.Kind == replay.ScheduledDifferently && !explaining {
		x.explain(m, history)
	}
	return err
}

// FirstStep tells the execution that no code has run on its history, which holds only the start:
// the next execution after a continue-as-new, or a start that was recorded before its code could
// run. For the code, Replay is then no replay, so that it logs. Call it before Replay.
func (x *Execution) FirstStep() { x.cursor.beginsLive = true }

func (x *Execution) replay(history iter.Seq2[*journalpb.Event, error]) error {
	if !x.cursor.beginsLive {
		x.cursor.mode = replayingBeforeLookAhead
	}
	defer func() { x.cursor.mode, x.program.valuesAhead = live, nil }()
	var rest []*journalpb.Event // events after the point where a call halted the code
	for event, err := range history {
		switch {
		case err != nil:
			return fmt.Errorf("read history: %w", err)
		case x.program.coroutines.state == halted:
			rest = append(rest, event)
			continue
		}
		if err := x.advance(event); err != nil {
			return err
		}
	}
	if x.program.coroutines.state == halted {
		x.lookAhead(rest)
		x.applyDeferred()
	}
	for _, event := range rest {
		if err := x.advance(event); err != nil {
			return err
		}
	}
	return x.program.calls.interruption()
}

// lookAhead reads the rest of the history for [replay.Patched] and for values that would be
// rejected today, and resumes the step that was halted for it.
func (x *Execution) lookAhead(rest []*journalpb.Event) {
	x.cursor.mode = replayingAfterLookAhead
	x.program.patches.lookAhead(x.cursor.eventID, rest)
	x.program.valuesAhead = newValuesAhead(rest)
	x.program.coroutines.state = resuming
	x.program.step()
}

// explain replays the history once more to find the line of the call that differs. Recording the
// line of every call would slow every replay (see DESIGN.md).
func (x *Execution) explain(m *replay.Mismatch, history iter.Seq2[*journalpb.Event, error]) {
	again := NewExecution(x.id.Instance, x.id.Number, x.program.registry, x.program.logger)
	again.program.operations.queue.recordsCallers = true
	again.SetMonitor(x.program.calls.monitor)
	x.explainer = again
	if same, ok := again.Replay(history).(*replay.Mismatch); ok && same.EventID == m.EventID && same.Found == m.Found {
		m.Source = same.Source
	}
}

// SetAppliedIndex sets the journal index up to which everything is applied. Call it before Replay
// and before each Turn. Later inputs are recorded at larger indexes. Without it, or with 0, the
// execution records no indexes, and no message to it is [Forgotten].
func (x *Execution) SetAppliedIndex(index uint64) { x.requestIDs.appliedIndex = index }

// LastEventID returns the event_id of the last event consumed, 0 for an empty history.
func (x *Execution) LastEventID() uint64 { return x.cursor.eventID }

// Parent returns the parent's operation that waits for this instance, nil if there is none.
func (x *Execution) Parent() *journalpb.OperationRef { return x.id.parent }

// Incarnation returns the incarnation of the instance; see journalpb.OrchestrationStarted.
func (x *Execution) Incarnation() uint64 { return x.id.incarnation }

// Ended reports whether the cursor has passed a terminal event.
func (x *Execution) Ended() bool { return x.program.progress == ended }

// Evict ends every coroutine and waits until all are gone. Their deferred functions run; durable
// calls in them do nothing and return [replay.ErrEvicting].
func (x *Execution) Evict() {
	x.program.coroutines.unwindAll()
	if x.explainer != nil {
		x.explainer.Evict()
	}
}

// errAbandoned ends a turn or a replay of an abandoned execution.
var errAbandoned = errors.New("tenuto: the execution was abandoned while its code ran")

// A Monitor lets other goroutines observe the progress of an execution while its code runs, and
// abandon it. Its methods are safe for concurrent use. One Monitor may serve the successive
// executions of an instance. The zero value is ready.
type Monitor struct {
	eventID       atomic.Uint64
	abandoned     atomic.Bool
	onForeignCall func(*replay.Mismatch)
}

// EventID returns the event_id that the execution consumed last; the code is running the step that
// follows it.
func (m *Monitor) EventID() uint64 { return m.eventID.Load() }

// Abandon stops the execution permanently. Running code continues until its next durable call
// blocks. After that no coroutine is resumed, except to be ended by [Execution.Evict].
// [Execution.Turn] and [Execution.Replay] return an error, and nothing more is logged.
func (m *Monitor) Abandon() { m.abandoned.Store(true) }

// OnForeignCall sets a function that is called when a durable call comes from a goroutine that the
// author's code started: once for each execution, on that goroutine. It must be set before the
// first execution is monitored. The next turn, if any, returns the same [replay.Mismatch].
func (m *Monitor) OnForeignCall(f func(*replay.Mismatch)) { m.onForeignCall = f }

// SetMonitor sets the execution's monitor. It must be called before the first event.
func (x *Execution) SetMonitor(w *Monitor) {
	x.program.calls.monitor = w
	x.program.coroutines.abandoned = &w.abandoned
}
