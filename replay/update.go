package replay

import "github.com/tenuto-dev/tenuto/replay/internal/host"

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
	var handler host.UpdateHandler
	if fn != nil {
		handler.Validate = func(input host.Decoder) error {
			var in I
			if err := input.Decode(&in); err != nil {
				return err
			}
			if validate == nil {
				return nil
			}
			return validate(in)
		}
		handler.Run = func(s host.Scope, input host.Decoder) (any, error) {
			var in I
			if err := input.Decode(&in); err != nil {
				return nil, err
			}
			return fn(&Context{s}, in)
		}
	}
	return ctx.scope.HandleUpdate(h.name, handler)
}

// AwaitUpdates waits until no update is running. Call it from the body of an orchestration before
// it returns or continues as new. An update must not call it: it would wait for itself.
func AwaitUpdates(ctx *Context) error { return ctx.scope.AwaitUpdates() }
