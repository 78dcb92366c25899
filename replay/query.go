package replay

import "github.com/tenuto-dev/tenuto/replay/internal/host"

// A QueryHandle is the stable name of a query that instances answer from memory, also after their
// end, with its input and output types.
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
	var handler host.Handler
	if fn != nil {
		handler = func(input host.Decoder) (any, error) {
			var in I
			if err := input.Decode(&in); err != nil {
				return nil, err
			}
			return fn(in)
		}
	}
	return ctx.execution().HandleQuery(h.name, handler)
}
