package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A program is the code of one execution as it runs: its coroutines, and everything that their
// durable calls read and change. It does not know the history: it reads the cursor, adds the sizes
// of values that it computes, queues actions, and runs a step when an event has been applied.
type program struct {
	id       *identity // of the execution
	cursor   *cursor   // of the execution
	registry *Registry
	logger   *slog.Logger

	code  *host.Orchestration
	input *journalpb.Payload // until the code receives it

	coroutines   scheduler
	calls        callChecker
	operations   operations
	cancellation cancellation
	patches      patches
	handlers     handlers
	subscribed   eventTypes
	conditions   conditions
	state        instanceState // as the code sees it
	valuesAhead  *valuesAhead  // after a look ahead, until the end of the replay
	random       *rand.Rand    // created at first use

	progress  progress
	bodyBegan bool
	// deadlinePassed says that the run was canceled at its deadline.
	deadlinePassed bool
	phase          *scope // encloses all scopes of the body, later of the clean-up
	closers        []func(s host.Scope, failure error) error
	outcome        outcome
}

// A progress is how far an execution has come.
type progress uint8

const (
	inBody    progress = iota
	inCleanUp          // the body has ended
	codeDone           // the clean-up has ended; the terminal action is last in the queue
	ended              // the cursor has passed a terminal event, perhaps that of a termination
)

// isDone reports whether the code has ended, even if its end is not recorded yet.
func (p *program) isDone() bool { return p.progress >= codeDone }

// begin starts the code of the orchestration.
func (p *program) begin(code *host.Orchestration, started *journalpb.OrchestrationStarted) {
	p.code, p.input = code, started.Input
	for _, event := range started.Inbox {
		p.operations.inbox.deliver(inboxEvent{event: event})
	}
	p.cancellation.restore(started)
	p.state.restore(started)
	if carried := started.CancelRequested; carried != nil {
		p.cancel(carried.Reason)
	}
	p.coroutines.spawn(p.cancellation.root, p.run)
}

// step runs the code until all its coroutines are blocked and none of their conditions holds.
func (p *program) step() {
	p.conditions.changed = true
	for {
		crashed := p.coroutines.run()
		switch {
		case p.isDone():
			return
		case crashed != nil:
			p.handleCrash(crashed)
		case !p.checkConditions():
			return
		}
	}
}

// conditions are what coroutines wait for that depends on the variables of the code.
type conditions struct {
	waiting      []conditionWait // in the order in which coroutines began to wait
	lastPosition uint64
	changed      bool // code has run since the conditions were checked
}

// A conditionWait is a coroutine that waits for the next check of its condition.
type conditionWait struct {
	position uint64
	check    *promise
}

// checkConditions lets each coroutine check its condition again, in the order in which they began
// to wait. It returns false if none waits or nothing has changed.
func (p *program) checkConditions() bool {
	waiting := p.conditions.waiting
	if len(waiting) == 0 || !p.conditions.changed || p.coroutines.state != resuming {
		return false
	}
	p.conditions.waiting, p.conditions.changed = nil, false
	for _, w := range waiting {
		p.coroutines.resolve(w.check)
	}
	return true
}

// run is the body of the first coroutine.
func (p *program) run() {
	p.startDeadline()
	err := p.cancellation.root.sleepUntil(p.id.options.startAt)
	var output *journalpb.Payload
	if err == nil {
		p.bodyBegan = true
		output, err = p.runBody()
	}
	if !p.coroutines.evicting() && p.progress == inBody {
		p.endBody(output, err)
	}
}

// DeadlineReason is the reason of a cancellation at the deadline of a run.
const DeadlineReason = "the deadline of the run has passed"

// startDeadline starts the timer that cancels the run at its deadline. The timer is open until the
// body has ended, also in a canceled run.
func (p *program) startDeadline() {
	deadline := p.id.options.deadline
	if deadline == 0 || p.coroutines.evicting() {
		return
	}
	left := time.Unix(0, deadline).Sub(p.cursor.now)
	timer := p.phase.StartTimer(left).Promise().(*promise)
	p.id.options.deadlineTimer = timer
	timer.OnResolved(func() {
		if timer.err != nil {
			return // the body has ended
		}
		p.deadlinePassed = true
		p.cancellation.add(&journalpb.OrchestrationCancelRequested{Reason: DeadlineReason})
		p.cancel(p.cancellation.request.Reason)
	})
}

// endCopy applies the end of a copied history: the run has another deadline. The timer of the
// deadline is replaced unless it is not started yet, or has passed.
func (p *program) endCopy(copied *journalpb.HistoryCopied) {
	options := p.id.options
	if copied.Deadline == 0 || options == &noOptions {
		return
	}
	options.deadline = copied.Deadline
	timer := options.deadlineTimer
	if timer == nil || !timer.pending() {
		return
	}
	p.coroutines.spawn(p.phase, func() {
		if timer.pending() {
			p.operations.cancel(timer.op, replay.ErrCanceled)
			p.startDeadline()
		}
	})
}

// runBody calls the body of the orchestration within its interceptors.
func (p *program) runBody() (*journalpb.Payload, error) {
	input, name := p.input, p.code.Name
	p.input = nil // frees the input, which may be large
	if p.code.Version == NewestVersion {
		return nil, &continuation{input: input, version: p.registry.Newest(name)}
	}
	around := p.registry.interceptors.orchestrations
	if len(around) == 0 {
		return p.callBody(p.cancellation.root, input)
	}
	var output *journalpb.Payload
	call := func(i int, s host.Scope, next func(host.Scope) error) error {
		return around[i](s, func(s host.Scope) error {
			p.calls.current("next")
			return next(s)
		})
	}
	err := Intercept(host.Scope(p.cancellation.root), len(around), call, func(s host.Scope) error {
		result, err := p.callBody(s, input)
		output = result
		return err
	})
	if err != nil {
		return nil, err
	}
	return output, nil
}

// callBody calls the body of the orchestration in a scope and encodes its output.
func (p *program) callBody(s host.Scope, input *journalpb.Payload) (*journalpb.Payload, error) {
	output, err := p.code.Run(s, codeInput{"orchestration", p.code.Name, input})
	if err != nil {
		return nil, err
	}
	p.outcome.outputType = p.code.OutputType
	return p.encode(replay.PayloadInfo{Kind: "orchestration", Name: p.code.Name, Part: "output"}, output)
}

// encode serializes a value of orchestration code. The codec is applied when the event is recorded
// (see seal).
func (p *program) encode(info replay.PayloadInfo, value any) (*journalpb.Payload, error) {
	plain, err := serialize(info, value, p.payloadMax())
	if err == nil && !p.cursor.replaying() && !p.coroutines.evicting() {
		p.registry.payloads.warn(p.logger, info, plain)
	}
	return plain, err
}

// payloadMax returns the bound that the execution recorded when it began: its code may have seen
// that a larger value was rejected. An execution without one uses the bound of this node.
func (p *program) payloadMax() int {
	return int(cmp.Or(uint64(p.id.payloadMax), p.registry.payloads.recordedMax(), replay.PayloadMax))
}

// encodeInput encodes the input of a named operation.
func (p *program) encodeInput(kind, name string, input any) (*journalpb.Payload, error) {
	p.calls.current("a durable call")
	if err := checkName(kind, name); err != nil {
		return nil, err
	}
	return p.encode(replay.PayloadInfo{Kind: kind, Name: name, Part: "input"}, input)
}

// A programView is a program as its code sees it; see [host.Execution].
type programView program

func (v *programView) ID() *host.ID { return &v.id.ID }

func (v *programView) Recorder() host.ID {
	of, _ := v.id.codeRecorder()
	return of
}

func (v *programView) Name() string { return v.id.name }

func (v *programView) Version() string { return v.id.version }

func (v *programView) Attempt() int { return v.id.attempt() }

func (v *programView) Tags() map[string]string { return v.id.options.tags }

func (v *programView) Now() time.Time { return v.cursor.now }

func (v *programView) Replaying() bool { return v.cursor.replaying() }

func (v *programView) Evicting() bool { return v.coroutines.evicting() }

func (v *programView) Logger() *slog.Logger {
	p := (*program)(v)
	return slog.New(&replayLogHandler{p.logger.Handler(), p}).
		With("instance", p.id.Instance, "execution", p.id.Number)
}

// replayLogHandler drops log records during replay and eviction.
type replayLogHandler struct {
	slog.Handler
	p *program
}

func (h *replayLogHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return !h.p.cursor.replaying() && !h.p.coroutines.evicting() && !h.p.calls.monitor.abandoned.Load() && h.Handler.Enabled(ctx, level)
}

func (h *replayLogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &replayLogHandler{h.Handler.WithAttrs(attrs), h.p}
}

func (h *replayLogHandler) WithGroup(name string) slog.Handler {
	return &replayLogHandler{h.Handler.WithGroup(name), h.p}
}

func (v *programView) Random() *rand.Rand {
	v.calls.current("Random")
	if v.random == nil {
		v.random = v.id.newRandom()
	}
	return v.random
}

func (v *programView) Check(what string) { v.calls.current(what) }

func (v *programView) CheckOwner(what, kind string, owner *host.ID) {
	v.calls.checkOwner(what, kind, owner)
}

func (v *programView) NewPromise() host.Promise { return new(promise) }

func (v *programView) Resolve(p host.Promise, err error) { v.coroutines.resolveErr(p.(*promise), err) }

func (v *programView) NewPosition() uint64 {
	v.conditions.lastPosition++
	return v.conditions.lastPosition
}

func (v *programView) NextCheck(position uint64) host.Promise {
	w := conditionWait{position, &promise{owner: &v.id.ID}}
	waiting := v.conditions.waiting
	at := len(waiting)
	for at > 0 && waiting[at-1].position > position {
		at--
	}
	v.conditions.waiting = slices.Insert(waiting, at, w)
	return w.check
}

func (v *programView) Holds(condition func() bool) bool {
	c := v.calls.current("Await")
	c.callback = "Await"
	defer func() { c.callback = "" }()
	// If the condition holds or panics, code goes on, and may change what others wait for.
	changed := v.conditions.changed
	v.conditions.changed = true
	if condition() {
		return true
	}
	v.conditions.changed = changed
	return false
}

func (v *programView) SetStatus(status any) error {
	v.calls.current("SetStatus")
	payload, err := (*program)(v).encode(replay.PayloadInfo{Kind: "orchestration", Name: v.id.name, Part: "status"}, status)
	if err != nil {
		return err
	}
	if v.coroutines.evicting() {
		return replay.ErrEvicting
	}
	v.operations.queue.add(&journalpb.Event{Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{Value: payload}}}, nil)
	return nil
}

func (v *programView) Patch(id string, marks bool) bool { return (*program)(v).patch(id, marks) }

func (v *programView) HandleQuery(name string, handler host.Handler) error {
	return (*program)(v).handleQuery(name, handler)
}

func (v *programView) OnClose(fn func(s host.Scope, failure error) error) {
	v.calls.current("OnClose")
	if v.coroutines.evicting() || v.progress >= codeDone {
		return
	}
	v.closers = append(v.closers, fn)
}

// ShouldContinueAsNew does not count events that a copy has kept: the code would continue as new
// before it could receive them.
func (v *programView) ShouldContinueAsNew() bool {
	return v.cursor.eventID >= continueAfterEvents || v.cursor.size.forContinueAsNew(v.id.protocol3)-v.id.options.copied.kept >= continueAfterBytes
}

func (v *programView) ContinueAsNew(orchestration string, input host.Value, options host.ContinueOptions) error {
	if orchestration != v.id.name {
		return fmt.Errorf("tenuto: orchestration %q cannot continue as %q", v.id.name, orchestration)
	}
	payload, err := (*program)(v).encodeInput("orchestration", orchestration, input.Any)
	if err != nil {
		return err
	}
	if options.Invalid != nil {
		return invalidOption(options.Invalid)
	}
	version := options.Version
	if version == "" {
		version = v.registry.Newest(orchestration)
	}
	if err := checkVersion(orchestration, version); err != nil {
		return err
	}
	return &continuation{input: payload, inputType: input.Type, version: version}
}
