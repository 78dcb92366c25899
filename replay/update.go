package replay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// UpdatePrefix is the prefix of recorded update names; no other name may begin with it. An accepted
// update is recorded as an ExternalEvent with the update's name after the prefix; a finished one as
// a SideEffectRecorded with its request ID after the prefix. The query that validates an update has
// the name of the event.
const UpdatePrefix = "tenuto.update/"

// An UpdateHandle is the stable name of a request that running instances execute and answer, with
// its input and output types.
type UpdateHandle[I, O any] struct{ name string }

// Update declares an update. Histories record the name. Each use of the handle checks that the name
// has 1 to 128 bytes.
func Update[I, O any](name string) UpdateHandle[I, O] { return UpdateHandle[I, O]{name} }

// Name returns the name.
func (h UpdateHandle[I, O]) Name() string { return h.name }

// Handle registers fn as the handler of the update. Each accepted update runs in its own coroutine,
// in the order of acceptance. fn may make durable calls; its result is recorded and returned to the
// caller. Its scope is that of ctx. A panic in it fails the instance.
//
// validate is called between turns, before anything is recorded. It may be nil. It must only read,
// like a query function. An update that it rejects leaves no trace. Other updates may run between
// validate and fn, so fn must repeat checks that depend on the state.
//
// An update that was accepted before a handler was registered waits for one, also across
// continue-as-new. An update that is running when the instance ends or continues as new is
// canceled, and its caller gets an error; [AwaitUpdates] prevents that.
func (h UpdateHandle[I, O]) Handle(ctx *Context, validate func(input I) error, fn func(ctx *Context, input I) (O, error)) error {
	if err := checkName("update", h.name); err != nil {
		return err
	}
	if fn == nil {
		return fmt.Errorf("tenuto: update %q has a nil handler", h.name)
	}
	x := ctx.x
	x.currentCoroutine("Handle")
	if x.evicting {
		return ErrEvicting
	}
	info := PayloadInfo{"update", h.name, "input"}
	x.updates.setHandler(UpdatePrefix+h.name, &updateHandler{
		scope: ctx.scope,
		validate: func(in *journalpb.Payload) error {
			var input I
			if err := deserialize(info, in, &input); err != nil {
				return err
			}
			if validate == nil {
				return nil
			}
			return validate(input)
		},
		run: func(in *journalpb.Payload) (*journalpb.Payload, error) {
			var input I
			if err := deserialize(info, in, &input); err != nil {
				return nil, err
			}
			output, err := fn(&Context{x: x, scope: ctx.scope}, input)
			if err != nil {
				return nil, err
			}
			return x.encode(PayloadInfo{"update", h.name, "output"}, output)
		},
	})
	x.addValidator(UpdatePrefix + h.name)
	for !x.bodyDone {
		buffered, ok := x.inbox.take(UpdatePrefix + h.name)
		if !ok {
			break
		}
		x.runUpdate(buffered.event)
	}
	return nil
}

// AwaitUpdates waits until no update is running. Call it from the body of an orchestration before
// it returns or continues as new. An update must not call it: it would wait for itself.
func AwaitUpdates(ctx *Context) error {
	x := ctx.x
	x.currentCoroutine("AwaitUpdates")
	if x.evicting {
		return ErrEvicting
	}
	for x.updates.inFlight > 0 && !x.bodyDone {
		if x.updates.idle == nil {
			x.updates.idle = new(promise)
		}
		if err := x.await(ctx, x.updates.idle); err != nil {
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
	if x.queryHandlers == nil {
		x.queryHandlers = make(map[string]func(*journalpb.Payload) (*journalpb.Payload, error))
	}
	x.queryHandlers[name] = func(in *journalpb.Payload) (*journalpb.Payload, error) {
		if x.bodyDone || x.isDone() {
			return nil, &NoQueryError{Name: name}
		}
		return nil, x.updates.handlers[name].validate(in)
	}
}

// startUpdate starts an update and returns true if event is one, its handler is registered, and the
// body is not done. Otherwise the event belongs in the inbox.
func (x *Execution) startUpdate(event *journalpb.ExternalEvent) bool {
	if x.updates.handlers[event.Name] == nil || x.bodyDone {
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
		if x.evicting || x.bodyDone {
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

// A NoUpdateError reports that an instance has no handler for an update: its code has none, has not
// registered it yet, or is done.
type NoUpdateError struct{ Name string }

func (e *NoUpdateError) Error() string {
	return fmt.Sprintf("the instance does not handle update %q", e.Name)
}
