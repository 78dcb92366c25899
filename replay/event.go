package replay

import (
	"reflect"
	"time"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An EventHandle is the stable name of an external event with the type of its data.
type EventHandle[T any] struct{ name string }

// Event declares an external event. Histories record the name. Each use of the handle checks that
// the name has 1 to 128 bytes.
func Event[T any](name string) EventHandle[T] { return EventHandle[T]{name} }

// Name returns the name.
func (h EventHandle[T]) Name() string { return h.name }

// An AnyEvent is an [EventHandle] of any type.
type AnyEvent interface{ eventType() host.EventType }

func (h EventHandle[T]) eventType() host.EventType {
	return host.EventType{Name: h.name, Data: reflect.TypeFor[T]()}
}

// Receives declares the types of events that the orchestration waits for. It applies to
// [OrchestrationHandle.Bind]; several of them add up. If the code waits for one name with several
// types, declare all of them, each with its own handle.
//
// A leader that has the code refuses an event of a declared name whose data decodes as none of its
// types: nothing is recorded, and the sender gets a [*PayloadError]. What the code has subscribed
// to makes no difference for a declared name. An event of another name is refused if its data
// decodes as none of the types with which the code has subscribed to the name. An execution knows
// them for up to 1,000 names; a name with more than 8 of them counts as unknown. Other events are
// recorded, and a wait that cannot decode the data fails.
//
// Data fits a type if encoding/json decodes it. So null fits every type without its own
// UnmarshalJSON: it leaves a pointer, map or slice nil, and any other variable zero. Each check
// decodes the data once more. A custom UnmarshalJSON must not block, like code of orchestrations.
func Receives(events ...AnyEvent) Option {
	types := make([]host.EventType, len(events))
	for i, event := range events {
		if event != nil {
			types[i] = event.eventType()
		}
	}
	return Option{host.NewOption("Receives", func(o *host.Orchestration) { o.Receives = append(o.Receives, types...) })}
}

// Wait waits for the next event of that name. Earlier events are buffered and taken in order; none
// is lost.
func (h EventHandle[T]) Wait(ctx *Context) (T, error) { return h.Subscribe(ctx).Await(ctx) }

// WaitFor is Wait with a timeout. After d the subscription is canceled, the error is [ErrTimeout],
// and the next event goes to the next subscription.
func (h EventHandle[T]) WaitFor(ctx *Context, d time.Duration) (T, error) {
	return h.Subscribe(ctx).AwaitFor(ctx, d)
}

// SendTo sends the event to another instance and returns after that instance has recorded it. The
// instance may be in another partition. It records the event once, whatever fails meanwhile, and
// takes it like one from a client.
//
// While the instance is stalled, SendTo waits. The error is [ErrNotFound] or [ErrEnded] if there is
// no running instance with that ID, or not any more. If the scope of ctx ends first, the error is
// that of the scope, and the event may be recorded. An ID that is not valid is an [*InvalidError],
// data that cannot be encoded a [*PayloadError], as is data that the receiver refuses (see
// [Receives]). As long as a node runs a build before protocol 4,
// the call is not recorded and the instance does not continue.
func (h EventHandle[T]) SendTo(ctx *Context, instance string, data T) error {
	_, err := ctx.scope.Await(ctx.scope.SendEvent(instance, h.name, host.ValueOf(data)).Promise(), nil)
	return err
}

// CancelInstance asks another instance to end, as a client's Cancel does, and returns after that
// instance has recorded the request. reason has at most 4,096 bytes. Errors are those of
// [EventHandle.SendTo]. To cancel a child, cancel its future or the scope of its call instead.
func CancelInstance(ctx *Context, instance, reason string) error {
	_, err := ctx.scope.Await(ctx.scope.CancelInstance(instance, reason).Promise(), nil)
	return err
}

// Subscribe returns the future of the next event of that name: the k-th subscription, not counting
// canceled ones, gets the k-th event. [Future.Header] returns its headers.
func (h EventHandle[T]) Subscribe(ctx *Context) *Future[T] {
	return (*Future[T])(ctx.scope.Subscribe(h.name, reflect.TypeFor[T]()))
}
