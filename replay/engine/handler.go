package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A queryHandler answers a query, or validates an update.
type queryHandler func(input *journalpb.Payload) (*journalpb.Payload, error)

// handleQuery registers the handler of a query.
func (x *Execution) handleQuery(name string, handler host.Handler) error {
	if err := checkName("query", name); err != nil {
		return err
	}
	x.currentCoroutine("Handle")
	if x.evicting {
		return replay.ErrEvicting
	}
	if handler == nil {
		return fmt.Errorf("tenuto: query %q has a nil handler", name)
	}
	x.setQueryHandler(name, func(in *journalpb.Payload) (*journalpb.Payload, error) {
		output, err := handler(decoder("query", name, in))
		if err != nil {
			return nil, err
		}
		return x.encode(replay.PayloadInfo{Kind: "query", Name: name, Part: "output"}, output)
	})
	return nil
}

func (x *Execution) setQueryHandler(name string, handler queryHandler) {
	if x.queryHandlers == nil {
		x.queryHandlers = make(map[string]queryHandler)
	}
	x.queryHandlers[name] = handler
}

// Query calls the handler of a query. It must be called between turns. A panic of the handler is a
// [*replay.PanicError]. Input and output are encoded as by a client; with a codec, so are errors:
// see [DecodeError].
func (x *Execution) Query(name string, input *journalpb.Payload) (output *journalpb.Payload, err error) {
	fn, ok := x.queryHandlers[name]
	if !ok {
		return nil, &replay.NoQueryError{Name: name}
	}
	payloads := x.registry.payloads
	if input, err = payloads.open(input); err != nil {
		return nil, err
	}
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
	x := s.x
	x.currentCoroutine("Handle")
	if x.evicting {
		return replay.ErrEvicting
	}
	x.updates.setHandler(UpdatePrefix+name, &updateHandler{
		scope:    s,
		validate: func(in *journalpb.Payload) error { return handler.Validate(decoder("update", name, in)) },
		run: func(in *journalpb.Payload) (*journalpb.Payload, error) {
			output, err := handler.Run(s, decoder("update", name, in))
			if err != nil {
				return nil, err
			}
			return x.encode(replay.PayloadInfo{Kind: "update", Name: name, Part: "output"}, output)
		},
	})
	x.addValidator(UpdatePrefix + name)
	for x.progress == inBody {
		buffered, ok := x.inbox.take(UpdatePrefix + name)
		if !ok {
			break
		}
		x.runUpdate(buffered.event)
	}
	return nil
}

func (s *scope) AwaitUpdates() error {
	x := s.x
	x.currentCoroutine("AwaitUpdates")
	if x.evicting {
		return replay.ErrEvicting
	}
	for x.updates.inFlight > 0 && x.progress == inBody {
		if x.updates.idle == nil {
			x.updates.idle = new(promise)
		}
		if err := x.await(s, x.updates.idle); err != nil {
			return err
		}
	}
	return nil
}

// updates holds the update handlers and state of an execution.
type updates struct {
	handlers map[string]*updateHandler // by the name of the event
	inFlight int
	idle     *promise // resolved when no update is running; nil if there is no waiter
}

type updateHandler struct {
	scope    *scope
	validate func(*journalpb.Payload) error
	run      func(*journalpb.Payload) (*journalpb.Payload, error)
}

func (u *updates) setHandler(name string, handler *updateHandler) {
	if u.handlers == nil {
		u.handlers = make(map[string]*updateHandler)
	}
	u.handlers[name] = handler
}

// addValidator registers a query of the update's name that validates an update.
func (x *Execution) addValidator(name string) {
	x.setQueryHandler(name, func(in *journalpb.Payload) (*journalpb.Payload, error) {
		if x.progress > inBody {
			return nil, &replay.NoQueryError{Name: name}
		}
		return nil, x.updates.handlers[name].validate(in)
	})
}

// startUpdate starts an update and returns true if event is one, its handler is registered, and the
// body is not done. Otherwise the event belongs in the inbox.
func (x *Execution) startUpdate(event *journalpb.ExternalEvent) bool {
	if x.updates.handlers[event.Name] == nil || x.progress > inBody {
		return false
	}
	x.runUpdate(event)
	return true
}

// runUpdate runs the handler in a coroutine and records its result.
func (x *Execution) runUpdate(event *journalpb.ExternalEvent) {
	handler := x.updates.handlers[event.Name]
	x.updates.inFlight++
	x.coroutines.spawn(handler.scope, func() {
		output, err := handler.run(event.Data)
		if x.evicting || x.progress > inBody {
			return
		}
		var next *continuation
		if errors.As(err, &next) {
			err = fmt.Errorf("tenuto: update %q asks to continue as new, which is for the body of the orchestration",
				strings.TrimPrefix(event.Name, UpdatePrefix))
		}
		x.legacyBytes += len(output.GetData())
		x.enqueue(&journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{SideEffectRecorded: &journalpb.SideEffectRecorded{
			Label: UpdatePrefix + event.RequestId,
			Value: output,
			Error: encodeError(err),
		}}}, nil)
		x.finishUpdate()
	})
}

func (x *Execution) finishUpdate() {
	x.updates.inFlight--
	if idle := x.updates.idle; idle != nil && x.updates.inFlight == 0 {
		x.updates.idle = nil
		x.resolve(idle)
	}
}
