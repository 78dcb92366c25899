package replay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// UpdatePrefix begins the names under which updates are recorded, and no others
// may begin so: an ExternalEvent, with the update's name behind the prefix, when
// one is accepted; and a SideEffectRecorded, with its request ID, when it is
// done. The query that validates one has the name of the event.
const UpdatePrefix = "tenuto.update/"

// An UpdateHandle is the stable name of a request that running instances carry
// out and answer, with the types of what goes in and comes out.
type UpdateHandle[I, O any] struct{ name string }

// Update declares an update. The name is what histories keep: 1 to 128 bytes,
// checked where the handle is used.
func Update[I, O any](name string) UpdateHandle[I, O] { return UpdateHandle[I, O]{name} }

// Name returns the name.
func (h UpdateHandle[I, O]) Name() string { return h.name }

// Handle has the instance carry the update out by calling fn, from now on, each
// time in a coroutine of its own, in the order in which the updates were
// accepted. fn may make durable calls; what it returns is recorded and is the
// caller's answer. Its scope is that of ctx. A panic in it fails the instance,
// as anywhere in its code.
//
// validate is called before anything is recorded, between turns, and reads only,
// as the function of a query does. What it refuses leaves no trace. It may be
// nil. Other updates may be carried out between its look at the instance and
// fn, so what must hold is for fn to check.
//
// An update that was accepted while there was no handler waits for it, also
// across continue-as-new. One that is being carried out when the instance ends,
// or continues as new, is given up, and its caller is told; [AwaitUpdates]
// prevents that.
func (h UpdateHandle[I, O]) Handle(ctx *Context, validate func(input I) error, fn func(ctx *Context, input I) (O, error)) error {
	if err := checkName("update", h.name); err != nil {
		return err
	}
	if fn == nil {
		return fmt.Errorf("tenuto: update %q is handled by nil", h.name)
	}
	x := ctx.x
	x.running("Handle")
	if x.dropping {
		return ErrDehydrating
	}
	of := PayloadOf{"update", h.name, "input"}
	x.updates.handle(UpdatePrefix+h.name, &updateHandler{
		scope: ctx.scope,
		validate: func(in *journalpb.Payload) error {
			var input I
			if err := deserialize(of, in, &input); err != nil {
				return err
			}
			if validate == nil {
				return nil
			}
			return validate(input)
		},
		run: func(in *journalpb.Payload) (*journalpb.Payload, error) {
			var input I
			if err := deserialize(of, in, &input); err != nil {
				return nil, err
			}
			output, err := fn(&Context{x: x, scope: ctx.scope}, input)
			if err != nil {
				return nil, err
			}
			return x.encode(PayloadOf{"update", h.name, "output"}, output)
		},
	})
	x.validates(UpdatePrefix + h.name)
	for !x.closing {
		early, ok := x.inbox.take(UpdatePrefix + h.name)
		if !ok {
			break
		}
		x.carryOut(early.event)
	}
	return nil
}

// AwaitUpdates waits until no update is being carried out. It is for the body of
// an orchestration, before it returns or continues as new, and not for updates
// themselves, which would wait for their own end.
func AwaitUpdates(ctx *Context) error {
	x := ctx.x
	x.running("AwaitUpdates")
	if x.dropping {
		return ErrDehydrating
	}
	for x.updates.running > 0 && !x.closing {
		if x.updates.idle == nil {
			x.updates.idle = new(promise)
		}
		if err := x.await(ctx, x.updates.idle); err != nil {
			return err
		}
	}
	return nil
}

// updates are those of an execution.
type updates struct {
	handlers map[string]*updateHandler // by the name of the event
	running  int
	idle     *promise // settled when none is running; nil if nobody waits
}

type updateHandler struct {
	scope    *scope
	validate func(*journalpb.Payload) error
	run      func(*journalpb.Payload) (*journalpb.Payload, error)
}

func (u *updates) handle(name string, handler *updateHandler) {
	if u.handlers == nil {
		u.handlers = make(map[string]*updateHandler)
	}
	u.handlers[name] = handler
}

// validates lets a query of the update's name ask whether it would be accepted.
func (x *Execution) validates(name string) {
	if x.queries == nil {
		x.queries = make(map[string]func(*journalpb.Payload) (*journalpb.Payload, error))
	}
	x.queries[name] = func(in *journalpb.Payload) (*journalpb.Payload, error) {
		if x.closing || x.over() {
			return nil, &NoQueryError{Name: name}
		}
		return nil, x.updates.handlers[name].validate(in)
	}
}

// update begins an update, if that is what the event is, there is a handler, and
// the body is not done. Otherwise the event is for the inbox.
func (x *Execution) update(event *journalpb.ExternalEvent) bool {
	if x.updates.handlers[event.Name] == nil || x.closing {
		return false
	}
	x.carryOut(event)
	return true
}

// carryOut runs the handler in a coroutine and records what it comes to.
func (x *Execution) carryOut(event *journalpb.ExternalEvent) {
	handler := x.updates.handlers[event.Name]
	x.updates.running++
	x.coroutines.spawn(handler.scope, func() {
		output, err := handler.run(event.Data)
		if x.dropping || x.closing {
			return
		}
		var next *continuation
		if errors.As(err, &next) {
			err = fmt.Errorf("tenuto: update %q asks to continue as new, which is for the body of the orchestration",
				strings.TrimPrefix(event.Name, UpdatePrefix))
		}
		x.bytesBefore += len(output.GetData())
		x.enqueue(&journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{SideEffectRecorded: &journalpb.SideEffectRecorded{
			Label: UpdatePrefix + event.RequestId,
			Value: output,
			Error: encodeError(err),
		}}}, nil)
		x.updateDone()
	})
}

func (x *Execution) updateDone() {
	x.updates.running--
	if idle := x.updates.idle; idle != nil && x.updates.running == 0 {
		x.updates.idle = nil
		x.settle(idle)
	}
}

// A NoUpdateError reports that an instance does not carry out an update: its
// code has no handler for it, has not come to it yet, or is done.
type NoUpdateError struct{ Name string }

func (e *NoUpdateError) Error() string {
	return fmt.Sprintf("the instance does not carry out update %q", e.Name)
}
