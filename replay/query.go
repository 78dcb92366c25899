package replay

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A QueryHandle is the stable name of a query that running instances answer from memory, with its
// input and output types.
type QueryHandle[I, O any] struct{ name string }

// Query declares a query. Each use of the handle checks that the name has 1 to 128 bytes.
func Query[I, O any](name string) QueryHandle[I, O] { return QueryHandle[I, O]{name} }

// Name returns the name.
func (h QueryHandle[I, O]) Name() string { return h.name }

// Handle registers fn as the handler of the query. fn is called between turns, so it sees
// consistent state. It must only read: its changes are lost when the instance is evicted, and
// durable calls in it panic. It must not block, because the instance waits for it. Neither query
// nor answer is recorded. Handle returns an error if fn is nil.
func (h QueryHandle[I, O]) Handle(ctx *Context, fn func(input I) (O, error)) error {
	if err := checkName("query", h.name); err != nil {
		return err
	}
	x := ctx.x
	x.currentCoroutine("Handle")
	if x.evicting {
		return ErrEvicting
	}
	if fn == nil {
		return fmt.Errorf("tenuto: query %q has a nil handler", h.name)
	}
	if x.queryHandlers == nil {
		x.queryHandlers = make(map[string]func(*journalpb.Payload) (*journalpb.Payload, error))
	}
	x.queryHandlers[h.name] = func(in *journalpb.Payload) (*journalpb.Payload, error) {
		var input I
		if err := deserialize(PayloadInfo{"query", h.name, "input"}, in, &input); err != nil {
			return nil, err
		}
		output, err := fn(input)
		if err != nil {
			return nil, err
		}
		return x.encode(PayloadInfo{"query", h.name, "output"}, output)
	}
	return nil
}

// A NoQueryError reports that an instance does not answer a query.
type NoQueryError struct{ Name string }

func (e *NoQueryError) Error() string {
	return fmt.Sprintf("the instance does not answer query %q", e.Name)
}

// Query calls the handler of a query. It must be called between turns. A panic of the handler is a
// [*PanicError]. Input and output are encoded as by a client; with a codec, so are errors: see
// [DecodeError].
func (x *Execution) Query(name string, input *journalpb.Payload) (output *journalpb.Payload, err error) {
	fn, ok := x.queryHandlers[name]
	if !ok {
		return nil, &NoQueryError{Name: name}
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
