package replay

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A QueryHandle is the stable name of a question that running instances answer
// from their memory, with the types of what goes in and comes out.
type QueryHandle[I, O any] struct{ name string }

// Query declares a query. The name is 1 to 128 bytes, checked where the handle
// is used.
func Query[I, O any](name string) QueryHandle[I, O] { return QueryHandle[I, O]{name} }

// Name returns the name.
func (h QueryHandle[I, O]) Name() string { return h.name }

// Answer has the instance answer the query by calling fn, from now on. fn is
// called between turns, so that it sees what the code has come to, and nothing
// changes meanwhile. It reads only: what it changes is lost when the instance is
// dropped from memory, and durable calls in it panic. It must not block: the
// instance waits for it. Neither query nor answer is recorded. A nil fn is refused.
func (h QueryHandle[I, O]) Answer(ctx *Context, fn func(input I) (O, error)) error {
	if err := checkName("query", h.name); err != nil {
		return err
	}
	x := ctx.x
	x.running("Answer")
	if x.dropping {
		return ErrDehydrating
	}
	if fn == nil {
		return fmt.Errorf("tenuto: query %q is answered by nil", h.name)
	}
	if x.queries == nil {
		x.queries = make(map[string]func(*journalpb.Payload) (*journalpb.Payload, error))
	}
	x.queries[h.name] = func(in *journalpb.Payload) (*journalpb.Payload, error) {
		var input I
		if err := deserialize(PayloadOf{"query", h.name, "input"}, in, &input); err != nil {
			return nil, err
		}
		output, err := fn(input)
		if err != nil {
			return nil, err
		}
		return x.encode(PayloadOf{"query", h.name, "output"}, output)
	}
	return nil
}

// A NoQueryError reports that an instance does not answer a query.
type NoQueryError struct{ Name string }

func (e *NoQueryError) Error() string {
	return fmt.Sprintf("the instance does not answer query %q", e.Name)
}

// Query has the code answer a query. It must be called between turns. A panic of
// the author's function is a [*PanicError]. Input and output are as a client
// encodes and decodes them; with a codec, so are errors: see [DecodeError].
func (x *Execution) Query(name string, input *journalpb.Payload) (output *journalpb.Payload, err error) {
	fn, ok := x.queries[name]
	if !ok {
		return nil, &NoQueryError{Name: name}
	}
	payloads := x.registry.payloads
	if input, err = payloads.open(input); err != nil {
		return nil, err
	}
	if crashed := apart(func() {
		output, err = fn(input)
		err = payloads.sealed(err)
	}); crashed != nil {
		return nil, payloads.sealed(crashed)
	}
	if err != nil {
		return nil, err
	}
	return payloads.seal(output)
}
