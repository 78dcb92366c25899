package engine

import (
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An Execution is one execution of an instance in memory: the coroutines of its code, and the
// cursor in its history. Live turns and replays use the same code.
//
// Its methods must not be called concurrently. After one returns an error, only [Execution.Evict]
// may be called.
type Execution struct {
	id          host.ID
	registry    *Registry
	logger      *slog.Logger
	monitor     *Monitor
	ownMonitor  Monitor                         // the monitor until SetMonitor is called
	foreignCall atomic.Pointer[replay.Mismatch] // a durable call from another goroutine
	explainer   *Execution                      // the second replay, if a mismatch was explained

	// The cursor: event_id and timestamp of the last event consumed.
	lastEventID uint64
	now         time.Time

	startInfo startInfo
	input     *journalpb.Payload // until the code receives it
	code      *host.Orchestration
	root      *scope
	phase     *scope // encloses all scopes of the body, later of the clean-up

	coroutines     scheduler
	queue          []*action                 // scheduled by the code, not yet bound to an event
	openOperations table[uint64, *operation] // by event_id
	scheduledIDs   bitmap                    // event_ids that scheduled an operation
	inbox          inbox
	deferred       []*journalpb.Event // recorded while suspended, not yet applied

	// The request to cancel the instance, nil if there is none.
	cancelRequest *journalpb.OrchestrationCancelRequested
	requestIDs    requestIDs // of recorded inputs
	resolvedCount uint64

	bytes         int                // of payloads and errors up to the cursor
	startedAt     int64              // timestamp of OrchestrationStarted
	status        *journalpb.Payload // last value of SetStatus, as recorded
	patches       map[string]bool    // decisions of Patched
	markers       map[string]bool    // patch markers in the history that is being replayed
	historyEnd    uint64             // last event_id of that history
	random        *rand.Rand         // created at first use
	successor     *journalpb.OrchestrationContinuedAsNew
	queryHandlers map[string]queryHandler
	updates       updates

	closers       []func(s host.Scope, failure error) error
	output        *journalpb.Payload // outcome of the body: output, failure or continuation
	failure       error              // includes errors of the clean-up
	continuation  *continuation
	cleanUpFailed bool

	legacyBytes          int  // like bytes, by the rule before protocol 3
	countAllPayloadsNext bool // the next execution counts all payloads

	progress         progress
	replaying        bool
	explaining       bool // this replay locates a call for a mismatch
	lookedAhead      bool // lookAhead has run for this replay
	suspended        bool // the code does not run, and inputs are deferred
	canceledByParent bool // the parent has asked to cancel, in this or an earlier execution
	cancelObserved   bool // an await or Context.Err has returned the cancellation to the code
	starting         bool // this turn records the start
	evicting         bool
	inSideEffect     bool // a function given to SideEffect is running
}

// A progress is how far an execution has come.
type progress uint8

const (
	inBody    progress = iota
	inCleanUp          // the body has ended
	codeDone           // the clean-up has ended; the terminal action is last in the queue
	ended              // the cursor has passed a terminal event, perhaps that of a termination
)

// NewExecution returns an execution with an empty history. The logger is given to orchestration
// code; nil means slog.Default().
func NewExecution(instance string, number uint64, registry *Registry, logger *slog.Logger) *Execution {
	if logger == nil {
		logger = slog.Default()
	}
	x := &Execution{
		id:       host.ID{Instance: instance, Number: number},
		registry: registry,
		logger:   logger,
	}
	x.phase = x.newScope(nil)
	x.root = x.newScope(x.phase)
	x.SetMonitor(&x.ownMonitor)
	return x
}

// Replay moves the cursor over a recorded history. The history must be complete, because
// [replay.Patched] reads ahead. The error is a [*replay.Mismatch] if code and history disagree, a
// [*replay.NoCodeError] if there is no code for the orchestration, a [*replay.CodecError] if a
// payload cannot be read, or an error of the sequence.
func (x *Execution) Replay(history iter.Seq2[*journalpb.Event, error]) error {
	err := x.replay(history)
	if m, ok := err.(*replay.Mismatch); ok && m.Kind == replay.ScheduledDifferently && !x.explaining {
		x.explain(m, history)
	}
	return err
}

func (x *Execution) replay(history iter.Seq2[*journalpb.Event, error]) error {
	x.replaying, x.lookedAhead = true, false
	defer func() { x.replaying = false }()
	var rest []*journalpb.Event // events after the point where Patched halted the code
	for event, err := range history {
		switch {
		case err != nil:
			return fmt.Errorf("read history: %w", err)
		case x.coroutines.halted:
			rest = append(rest, event)
			continue
		}
		if err := x.advance(event); err != nil {
			return err
		}
	}
	if x.coroutines.halted {
		x.lookAhead(rest)
		x.applyDeferred()
	}
	for _, event := range rest {
		if err := x.advance(event); err != nil {
			return err
		}
	}
	return x.interruption()
}

// explain replays the history once more to find the line of the call that differs. Recording the
// line of every call would slow every replay (see DESIGN.md).
func (x *Execution) explain(m *replay.Mismatch, history iter.Seq2[*journalpb.Event, error]) {
	again := NewExecution(x.id.Instance, x.id.Number, x.registry, x.logger)
	again.explaining = true
	again.SetMonitor(x.monitor)
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
func (x *Execution) LastEventID() uint64 { return x.lastEventID }

// Parent returns the parent's operation that waits for this instance, nil if there is none.
func (x *Execution) Parent() *journalpb.OperationRef { return x.startInfo.parent }

// Incarnation returns the incarnation of the instance; see journalpb.OrchestrationStarted.
func (x *Execution) Incarnation() uint64 { return x.startInfo.incarnation }

// Ended reports whether the cursor has passed a terminal event.
func (x *Execution) Ended() bool { return x.progress == ended }

// Evict ends every coroutine and waits until all are gone. Their deferred functions run; durable
// calls in them do nothing and return [replay.ErrEvicting].
func (x *Execution) Evict() {
	x.evicting = true
	x.coroutines.unwindAll()
	if x.explainer != nil {
		x.explainer.Evict()
	}
}

// step runs the code until all its coroutines are blocked.
func (x *Execution) step() {
	for {
		crashed := x.coroutines.run()
		if crashed == nil || x.progress >= codeDone {
			return
		}
		x.inSideEffect = false
		x.handleCrash(crashed)
	}
}

// begin starts the code of the orchestration.
func (x *Execution) begin(started *journalpb.OrchestrationStarted) error {
	code, ok := x.registry.orchestration(started.Name, started.Version)
	if !ok {
		return &replay.NoCodeError{Name: started.Name, Version: started.Version}
	}
	x.startInfo, x.input, x.code = startInfoOf(started), started.Input, code
	x.startedAt = x.now.UnixNano()
	x.requestIDs.restore(started)
	for _, event := range started.Inbox {
		x.inbox.deliver(inboxEvent{event: event})
	}
	x.canceledByParent = started.CanceledByParent
	if carried := started.CancelRequested; carried != nil {
		x.cancelRequest = carried
		x.cancelScope(x.root, x.canceledError(carried.Reason))
	}
	startAt := started.StartAt
	x.coroutines.spawn(x.root, func() { x.run(startAt) })
	return nil
}

// run is the body of the first coroutine.
func (x *Execution) run(startAt int64) {
	err := x.root.sleepUntil(startAt)
	var output *journalpb.Payload
	if err == nil {
		output, err = x.runBody()
	}
	if !x.evicting && x.progress == inBody {
		x.endBody(output, err)
	}
}

// runBody calls the body of the orchestration.
func (x *Execution) runBody() (*journalpb.Payload, error) {
	input, name := x.input, x.code.Name
	x.input = nil // frees the input, which may be large
	if x.code.Version == NewestVersion {
		return nil, &continuation{input: input, version: x.registry.Newest(name)}
	}
	output, err := x.code.Run(x.root, decoder("orchestration", name, input))
	if err != nil {
		return nil, err
	}
	return x.encode(replay.PayloadInfo{Kind: "orchestration", Name: name, Part: "output"}, output)
}

// startInfo holds the fields of OrchestrationStarted that the execution needs later.
type startInfo struct {
	name, version    string
	requestID, trace string
	parent           *journalpb.OperationRef
	incarnation      uint64
	protocol3        bool // the execution began under protocol 3 or later
	tags             map[string]string
}

func startInfoOf(started *journalpb.OrchestrationStarted) startInfo {
	return startInfo{
		name: started.Name, version: started.Version,
		requestID: started.RequestId, trace: started.Trace,
		parent: started.Parent, incarnation: started.Incarnation, tags: started.Tags,
		protocol3: started.Incarnation != 0 || started.CountsAllPayloads,
	}
}
