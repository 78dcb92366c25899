package replay

import (
	"context"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A HeaderKey is the stable name of a header: text that accompanies calls, such as the ID of a
// tenant or of a request. A client's call carries headers from its context to the run that it
// starts, or to the event or update that it sends. The run passes its headers to its activities,
// children and chained instances, and to the events that it sends. A child does the same. The body
// of an activity has them in its context, so the calls that it makes as a client carry them too.
//
// The headers of a run are those of its start and never change; continue-as-new keeps them. They
// are recorded with the start and with every call, and count in the size of the history. No codec
// encrypts them: they must not hold secrets, and should be short.
type HeaderKey struct{ name string }

// Header declares a header. Histories record the name: 1 to 128 bytes of a-z 0-9 . _ -. A value has
// at most 1,024 bytes of UTF-8. A call carries at most 32 headers, of at most 8 KiB together, names
// included. A call with others fails with an [*InvalidError].
func Header(name string) HeaderKey { return HeaderKey{name} }

// Name returns the name.
func (k HeaderKey) Name() string { return k.name }

// With returns a context that carries the header, for the calls of a client. It replaces a value
// that ctx carries already. The call checks name and value.
func (k HeaderKey) With(ctx context.Context, value string) context.Context {
	present, _ := ctx.Value(host.HeadersKey{}).(host.Headers)
	return context.WithValue(ctx, host.HeadersKey{}, present.With(k.name, value))
}

// From returns the value that ctx carries: in the body of an activity that of the call, unless
// [HeaderKey.With] has replaced it. ok is false if there is none.
func (k HeaderKey) From(ctx context.Context) (value string, ok bool) {
	headers, _ := ctx.Value(host.HeadersKey{}).(host.Headers)
	return headers.Get(k.name)
}

// Value returns the value for orchestration code, which is also what its calls carry: the header of
// the run, or in the handler of an update the header of the update, if its caller has sent it. ok
// is false if there is none.
func (k HeaderKey) Value(ctx *Context) (value string, ok bool) { return ctx.scope.Header(k.name) }

// Header returns the header of the event that a subscription has received; see
// [EventHandle.Subscribe]. ok is false if the sender has not sent it, while no event has arrived,
// and for the future of any other operation.
func (f *Future[T]) Header(key HeaderKey) (value string, ok bool) {
	promise := f.core()
	if promise == nil {
		return "", false
	}
	return promise.Header(key.name)
}
