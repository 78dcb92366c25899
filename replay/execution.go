package replay

import (
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An Execution is one execution of an instance in memory: the coroutines of
// its code, and the cursor that walks its history. The same code serves live
// turns and replays.
//
// It is the engine's side of this package; authors never meet it. Its methods
// must not be called concurrently. After an error it is good for [Execution.Drop]
// alone.
type Execution struct {
	instance string
	number   uint64
	registry *Registry
	logger   *slog.Logger
	watch    *Watch
	own      Watch                    // what watch is until SetWatch
	stray    atomic.Pointer[Mismatch] // a durable call from a goroutine of the author's own
	again    *Execution               // the second replay, if a mismatch had to be explained

	// The cursor: the event_id of the last event consumed, and its timestamp.
	last uint64
	now  time.Time

	origin origin
	input  *journalpb.Payload // until the code has it
	code   *orchestration
	root   *scope
	phase  *scope // around all scopes of the body, and later of the clean-up

	coroutines scheduler
	queue      []*action                 // asked for, not yet bound to an event
	open       table[uint64, *operation] // by event_id
	schedules  bitmap                    // which events scheduled an operation
	inbox      inbox
	held       []*journalpb.Event // recorded while suspended, without effect so far

	// The request to cancel the instance; nil if there is none.
	cancelRequest *journalpb.OrchestrationCancelRequested
	requests      requests // of recorded inputs
	settlements   uint64

	bytes     int                // of the payloads and errors behind the cursor
	startedAt int64              // the timestamp of OrchestrationStarted
	status    *journalpb.Payload // what SetStatus published last, as it is recorded
	patches   map[string]bool    // what Patched has decided
	markers   map[string]bool    // of patches, in the history that is being replayed
	horizon   uint64             // the last event_id of that history
	random    *rand.Rand         // made at the first use
	successor *journalpb.OrchestrationContinuedAsNew
	queries   map[string]func(*journalpb.Payload) (*journalpb.Payload, error)
	updates   updates

	closers       []func(*Context, error) error
	output        *journalpb.Payload // what the body has come to: output, error or continuation
	failure       error              // joined by what the clean-up has come to
	next          *continuation
	cleanUpFailed bool

	bytesBefore   int  // the same by the rule before protocol 3
	countsAllNext bool // the next execution decides by all bytes

	replaying  bool
	explaining bool // this replay is to find the line of a call
	foreseen   bool // the rest of the history that is being replayed is known
	suspended  bool // the code does not run, and inputs are held
	closing    bool // the body is done
	returned   bool // the clean-up is done: a terminal action is the last in the queue
	ended      bool // the cursor has passed a terminal event
	byParent   bool // the parent has asked the run to cancel, now or in an execution before
	cancelSeen bool // an await or Context.Err has returned the cancellation to the code
	starting   bool // the start is an event of this turn
	dropping   bool
	sideways   bool // a function given to Once is running
}

// NewExecution returns an execution with an empty history. The logger is the
// one that orchestration code gets; nil means slog.Default().
func NewExecution(instance string, number uint64, registry *Registry, logger *slog.Logger) *Execution {
	if logger == nil {
		logger = slog.Default()
	}
	phase := new(scope)
	x := &Execution{
		instance: instance,
		number:   number,
		registry: registry,
		logger:   logger,
		root:     &scope{parent: phase},
		phase:    phase,
	}
	x.SetWatch(&x.own)
	return x
}

// Replay walks the cursor over recorded history, which must be all there is:
// [Patched] decides by what follows. The error is a [*Mismatch] when code and
// history disagree, a [*NoCodeError] when no code is registered for the
// orchestration, a [*CodecError] when a payload cannot be read, or whatever the
// sequence yields.
func (x *Execution) Replay(history iter.Seq2[*journalpb.Event, error]) error {
	err := x.replay(history)
	if m, ok := err.(*Mismatch); ok && m.Kind == ScheduledDifferently && !x.explaining {
		x.explain(m, history)
	}
	return err
}

func (x *Execution) replay(history iter.Seq2[*journalpb.Event, error]) error {
	x.replaying, x.foreseen = true, false
	defer func() { x.replaying = false }()
	var rest []*journalpb.Event // of an orchestration that asks for patches
	for event, err := range history {
		switch {
		case err != nil:
			return fmt.Errorf("read history: %w", err)
		case x.coroutines.halted:
			rest = append(rest, event)
			continue
		}
		if err := x.walk(event); err != nil {
			return err
		}
	}
	if x.coroutines.halted {
		x.foresee(rest)
		x.applyHeld()
	}
	for _, event := range rest {
		if err := x.walk(event); err != nil {
			return err
		}
	}
	return x.interrupted()
}

// explain finds the line of the call that differs by replaying the history
// once more: to note every call costs a tenth of a replay.
func (x *Execution) explain(m *Mismatch, history iter.Seq2[*journalpb.Event, error]) {
	again := NewExecution(x.instance, x.number, x.registry, x.logger)
	again.explaining = true
	again.SetWatch(x.watch)
	x.again = again
	if same, ok := again.Replay(history).(*Mismatch); ok && same.EventID == m.EventID && same.Found == m.Found {
		m.Source = same.Source
	}
}

// SetApplied says up to which index of the journal everything is applied: before Replay, and
// before each Turn. An input that comes later is recorded at a larger one. An execution that
// is never told, or told 0, records no indexes, and no message to it is [Forgotten].
func (x *Execution) SetApplied(index uint64) { x.requests.applied = index }

// LastEventID returns the event_id at which the cursor stands, 0 for an empty
// history.
func (x *Execution) LastEventID() uint64 { return x.last }

// Parent returns the operation that waits for the end of the instance, nil if
// there is none.
func (x *Execution) Parent() *journalpb.OperationRef { return x.origin.parent }

// Incarnation returns that of the run; see journalpb.OrchestrationStarted.
func (x *Execution) Incarnation() uint64 { return x.origin.incarnation }

// Ended tells whether the cursor has passed a terminal event.
func (x *Execution) Ended() bool { return x.ended }

// Drop ends every coroutine and waits until each is gone. Their deferred
// functions run; durable calls in them do nothing and return [ErrDehydrating].
func (x *Execution) Drop() {
	x.dropping = true
	x.coroutines.drop()
	if x.again != nil {
		x.again.Drop()
	}
}

// step runs the code until each of its coroutines is blocked.
func (x *Execution) step() {
	for {
		crashed := x.coroutines.run()
		if crashed == nil || x.returned {
			return
		}
		x.sideways = false
		x.crashed(crashed)
	}
}

// begin starts the code of the orchestration.
func (x *Execution) begin(started *journalpb.OrchestrationStarted) error {
	code, ok := x.registry.orchestration(started.Name, started.Version)
	if !ok {
		return &NoCodeError{Name: started.Name, Version: started.Version}
	}
	x.origin, x.input, x.code = originOf(started), started.Input, code
	x.startedAt = x.now.UnixNano()
	x.requests.resume(started)
	for _, event := range started.Inbox {
		x.inbox.arrive(arrival{event: event})
	}
	x.byParent = started.CanceledByParent
	if carried := started.CancelRequested; carried != nil {
		x.cancelRequest = carried
		x.cancelScope(x.root, x.canceled(carried.Reason))
	}
	startAt := started.StartAt
	x.coroutines.spawn(x.root, func() { x.run(startAt) })
	return nil
}

// run is the first coroutine.
func (x *Execution) run(startAt int64) {
	ctx := &Context{x: x, scope: x.root}
	err := ctx.sleepUntil(startAt)
	var output *journalpb.Payload
	if err == nil {
		input := x.input
		x.input = nil // it may be large, and nobody asks for it again
		output, err = x.code.run(ctx, input)
	}
	if !x.dropping && !x.closing {
		x.end(output, err)
	}
}

// An origin is what is kept of OrchestrationStarted for as long as the execution
// is in memory.
type origin struct {
	name, version    string
	requestID, trace string
	parent           *journalpb.OperationRef
	incarnation      uint64
	protocol3        bool // it began under protocol 3 or a newer one
	tags             map[string]string
}

func originOf(started *journalpb.OrchestrationStarted) origin {
	return origin{
		name: started.Name, version: started.Version,
		requestID: started.RequestId, trace: started.Trace,
		parent: started.Parent, incarnation: started.Incarnation, tags: started.Tags,
		protocol3: started.Incarnation != 0 || started.CountsAllPayloads,
	}
}
