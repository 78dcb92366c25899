package engine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A queryHandler answers a query, or validates an update.
type queryHandler func(input *journalpb.Payload) (*journalpb.Payload, error)

// handlers holds the handlers of queries and updates that the code has registered.
type handlers struct {
	queries  map[string]queryHandler
	updates  map[string]*updateHandler // by the name of the event
	inFlight int                       // number of updates that are running
	idle     *promise                  // resolved when none is running; nil if there is no waiter
	// inStep holds the updates of this turn that are validated when their handlers are registered,
	// by request ID.
	inStep map[string]*updateDecision
}

// An updateDecision is what became of an update that is validated in the step that begins the code.
type updateDecision struct {
	accepted  bool
	began     bool  // its handler has begun
	rejection error // by the validation
}

// validateInStep adds the update of a message, which is validated when its handler is registered.
func (h *handlers) validateInStep(message *journalpb.Event) {
	if h.inStep == nil {
		h.inStep = make(map[string]*updateDecision)
	}
	h.inStep[updateOf(message).GetRequestId()] = new(updateDecision)
}

func (h *handlers) setQuery(name string, handler queryHandler) {
	if h.queries == nil {
		h.queries = make(map[string]queryHandler)
	}
	h.queries[name] = handler
}

func (h *handlers) setUpdate(name string, handler *updateHandler) {
	if h.updates == nil {
		h.updates = make(map[string]*updateHandler)
	}
	h.updates[name] = handler
}

// awaitIdle returns the promise that is resolved when no update is running.
func (h *handlers) awaitIdle() *promise {
	if h.idle == nil {
		h.idle = new(promise)
	}
	return h.idle
}

// finishUpdate counts an update that has ended. It returns the promise to resolve, nil if there is
// none.
func (h *handlers) finishUpdate() (idle *promise) {
	if h.inFlight--; h.inFlight == 0 {
		idle, h.idle = h.idle, nil
	}
	return idle
}

// handleQuery registers the handler of a query.
func (p *program) handleQuery(name string, handler host.Handler) error {
	if err := checkName("query", name); err != nil {
		return err
	}
	p.calls.current("Handle")
	if p.coroutines.evicting() {
		return replay.ErrEvicting
	}
	if handler == nil {
		return fmt.Errorf("tenuto: query %q has a nil handler", name)
	}
	p.handlers.setQuery(name, func(in *journalpb.Payload) (*journalpb.Payload, error) {
		output, err := handler(codeInput{"query", name, in})
		if err != nil {
			return nil, err
		}
		return p.encode(replay.PayloadInfo{Kind: "query", Name: name, Part: "output"}, output)
	})
	return nil
}

// Query calls the handler of a query. It must be called between turns. A panic of the handler is a
// [*replay.PanicError]. Input and output are encoded as by a client; with a codec, so are errors:
// see [DecodeError].
func (x *Execution) Query(name string, input *journalpb.Payload) (output *journalpb.Payload, err error) {
	fn, ok := x.program.handlers.queries[name]
	switch {
	case !ok && name == StackQuery:
		return x.queryStack()
	case !ok:
		return nil, x.program.noHandlerError(name)
	}
	payloads := x.program.registry.payloads
	if input, err = payloads.open(input); err != nil {
		return nil, err
	}
	x.program.calls.answering.Store(true)
	defer x.program.calls.answering.Store(false)
	if crashed := callIsolated(func() {
		output, err = fn(input)
		err = payloads.sealUserError(err)
	}); crashed != nil {
		return nil, payloads.sealUserError(crashed)
	}
	if err != nil {
		return nil, err
	}
	return payloads.seal(output)
}

// noHandlerError says that the code does not handle a query, and why if it has not begun.
func (p *program) noHandlerError(name string) error {
	err := &replay.NotRegisteredError{Kind: "query", Name: name}
	if p.bodyBegan || p.progress > inBody || p.id.options.startAt == 0 {
		return err
	}
	handles, name, why := "answer query", name, ""
	if update, ok := strings.CutPrefix(name, UpdatePrefix); ok {
		handles, name = "handle update", update
	}
	if p.id.options.failedAttempts > 0 {
		why = fmt.Sprintf(" (attempt %d)", p.id.attempt())
	}
	err.Host().Leader = fmt.Sprintf("the instance does not %s %q yet: its code begins at %s%s", handles, name,
		unixTime(p.id.options.startAt).Format(time.RFC3339Nano), why)
	return err
}

// awaitsAttempt reports whether the run has failed and its next attempt, this execution, has not
// begun.
func (p *program) awaitsAttempt() bool {
	return p.id.options.failedAttempts > 0 && !p.bodyBegan && p.progress == inBody
}

// AwaitsAttempt reports whether the message is an update that is not recorded and waits for the
// code: the run has failed, and its next attempt, the execution x, has not begun.
func (m *Message) AwaitsAttempt(x *Execution) bool {
	return m.Validation != ValidateNone && x.program.awaitsAttempt() && !m.HasKnownID(x)
}

// UpdatePrefix is the prefix of recorded update names; no other name may begin with it. An accepted
// update is recorded as an ExternalEvent with the update's name after the prefix; a finished one as
// a SideEffectRecorded with its request ID after the prefix. The query that validates an update has
// the name of the event.
const UpdatePrefix = "tenuto.update/"

func (s *scope) HandleUpdate(name string, handler host.UpdateHandler) error {
	if err := checkName("update", name); err != nil {
		return err
	}
	if handler.Run == nil {
		return fmt.Errorf("tenuto: update %q has a nil handler", name)
	}
	p := s.p
	p.calls.current("Handle")
	if p.coroutines.evicting() {
		return replay.ErrEvicting
	}
	p.handlers.setUpdate(UpdatePrefix+name, &updateHandler{
		scope: s,
		validate: func(in *journalpb.Payload) error {
			return handler.Validate(refusableInput{codeInput{"update", name, in}, &p.registry.payloads})
		},
		run: func(s *scope, in *journalpb.Payload) (*journalpb.Payload, error) {
			output, err := handler.Run(s, codeInput{"update", name, in})
			if err != nil {
				return nil, err
			}
			return p.encode(replay.PayloadInfo{Kind: "update", Name: name, Part: "output"}, output)
		},
	})
	p.addValidator(UpdatePrefix + name)
	for p.progress == inBody {
		buffered, ok := p.operations.inbox.take(UpdatePrefix + name)
		if !ok {
			break
		}
		if !p.rejects(buffered.event) {
			p.runUpdate(buffered.event)
		}
	}
	return nil
}

// rejects validates an update whose handler the running coroutine has just registered, if it is to
// be validated now, and reports whether it is rejected.
func (p *program) rejects(update *journalpb.ExternalEvent) bool {
	decision := p.handlers.inStep[update.RequestId]
	if decision == nil {
		return false
	}
	var err error
	p.calls.answering.Store(true)
	if crashed := callIsolated(func() { err = p.handlers.updates[update.Name].validate(update.Data) }); crashed != nil {
		err = crashed
	}
	p.calls.answering.Store(false)
	decision.rejection = p.registry.payloads.sealUserError(err)
	decision.accepted = err == nil
	return !decision.accepted
}

func (s *scope) AwaitUpdates() error {
	p := s.p
	p.calls.current("AwaitUpdates")
	if p.coroutines.evicting() {
		return replay.ErrEvicting
	}
	for p.handlers.inFlight > 0 && p.progress == inBody {
		if err := p.await(s, p.handlers.awaitIdle()); err != nil {
			return err
		}
	}
	return nil
}

type updateHandler struct {
	scope    *scope
	validate func(*journalpb.Payload) error
	run      func(s *scope, in *journalpb.Payload) (*journalpb.Payload, error)
}

// addValidator registers a query of the update's name that validates an update.
func (p *program) addValidator(name string) {
	p.handlers.setQuery(name, func(in *journalpb.Payload) (*journalpb.Payload, error) {
		if p.progress > inBody {
			return nil, &replay.NotRegisteredError{Kind: "query", Name: name}
		}
		return nil, p.handlers.updates[name].validate(in)
	})
}

// deliver passes an external event to its update handler, unless the body is done, or to its
// subscription, or buffers it.
func (p *program) deliver(a inboxEvent) {
	if p.handlers.updates[a.event.Name] != nil && p.progress == inBody {
		p.runUpdate(a.event)
		return
	}
	p.operations.deliver(a)
}

// runUpdate runs the handler in a coroutine and records its result. The handler's calls carry the
// headers of the update, and those headers of the run that the update does not set. If they are too
// many together, the update fails.
func (p *program) runUpdate(event *journalpb.ExternalEvent) {
	handler := p.handlers.updates[event.Name]
	p.handlers.inFlight++
	s, invalid := handler.scope.withHeaders(event.Headers)
	decision := p.handlers.inStep[event.RequestId]
	p.coroutines.spawn(s, func() {
		if decision != nil {
			decision.began = true
		}
		var output *journalpb.Payload
		err := invalid
		if err == nil {
			output, err = handler.run(s, event.Data)
		}
		if p.coroutines.evicting() || p.progress > inBody {
			return
		}
		var next *continuation
		if errors.As(err, &next) {
			err = fmt.Errorf("tenuto: update %q asks to continue as new, which is for the body of the orchestration",
				strings.TrimPrefix(event.Name, UpdatePrefix))
		}
		p.cursor.size.addUpdate(output)
		p.operations.queue.add(&journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{SideEffectRecorded: &journalpb.SideEffectRecorded{
			Label: UpdatePrefix + event.RequestId,
			Value: output,
			Error: encodeError(err),
		}}}, nil)
		if idle := p.handlers.finishUpdate(); idle != nil {
			p.coroutines.resolve(idle)
		}
	})
}
