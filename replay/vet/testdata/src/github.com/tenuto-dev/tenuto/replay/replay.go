// Package replay stands in for the real one: what it declares is declared there
// with the same types, which TestStub_MatchesReplayPackage checks.
package replay

import (
	"context"
	"iter"
	"log/slog"
	"math/rand/v2"
	"time"
)

type (
	ActivityHandle[I, O any]      struct{ name string }
	OrchestrationHandle[I, O any] struct{ name string }
	EventHandle[T any]            struct{ name string }
	QueryHandle[I, O any]         struct{ name string }
	UpdateHandle[I, O any]        struct{ name string }
	Future[T any]                 struct{ value T }
	Context                       struct{ id string }
	Definition                    struct{ name string }
	Saga                          struct{ steps int }
	Semaphore                     struct{ free int }
	Channel[T any]                struct{ capacity int }
	Result[T any]                 struct {
		Value T
		Err   error
	}
)

type (
	Option      struct{ name string }
	ClosePolicy int32
	Awaitable   interface{ await() }
)

const stub = "this is no code to run"

const AbandonChild ClosePolicy = 2

func Activity[I, O any](name string) ActivityHandle[I, O]           { panic(stub) }
func Orchestration[I, O any](name string) OrchestrationHandle[I, O] { panic(stub) }
func Event[T any](name string) EventHandle[T]                       { panic(stub) }
func Query[I, O any](name string) QueryHandle[I, O]                 { panic(stub) }
func Update[I, O any](name string) UpdateHandle[I, O]               { panic(stub) }

func (h ActivityHandle[I, O]) Bind(body func(ctx context.Context, input I) (O, error)) Definition {
	panic(stub)
}
func (h ActivityHandle[I, O]) Call(ctx *Context, input I, options ...Option) (O, error) {
	panic(stub)
}
func (h ActivityHandle[I, O]) Start(ctx *Context, input I, options ...Option) *Future[O] {
	panic(stub)
}

func (h OrchestrationHandle[I, O]) Bind(body func(ctx *Context, input I) (O, error), options ...Option) Definition {
	panic(stub)
}
func (h OrchestrationHandle[I, O]) Call(ctx *Context, input I, options ...Option) (O, error) {
	panic(stub)
}
func (h OrchestrationHandle[I, O]) Chain(ctx *Context, input I, options ...Option) error {
	panic(stub)
}
func (h OrchestrationHandle[I, O]) ContinueAsNew(ctx *Context, input I, options ...Option) error {
	panic(stub)
}
func (h OrchestrationHandle[I, O]) Start(ctx *Context, input I, options ...Option) *Future[O] {
	panic(stub)
}

func OnParentClose(policy ClosePolicy) Option { panic(stub) }

func (h EventHandle[T]) Subscribe(ctx *Context) *Future[T]                         { panic(stub) }
func (h EventHandle[T]) Wait(ctx *Context) (T, error)                              { panic(stub) }
func (h EventHandle[T]) WaitFor(ctx *Context, d time.Duration) (T, error)          { panic(stub) }
func (h QueryHandle[I, O]) Handle(ctx *Context, fn func(input I) (O, error)) error { panic(stub) }
func (h UpdateHandle[I, O]) Handle(ctx *Context, validate func(input I) error, fn func(ctx *Context, input I) (O, error)) error {
	panic(stub)
}

func (f *Future[T]) Await(ctx *Context) (T, error)                     { panic(stub) }
func (f *Future[T]) AwaitFor(ctx *Context, d time.Duration) (T, error) { panic(stub) }
func (f *Future[T]) Cancel(ctx *Context)                               {}
func (f *Future[T]) Done() bool                                        { panic(stub) }
func (f *Future[T]) await()                                            {}

func (c *Context) Err() error                                            { panic(stub) }
func (c *Context) InstanceID() string                                    { panic(stub) }
func (c *Context) Log() *slog.Logger                                     { panic(stub) }
func (c *Context) Now() time.Time                                        { panic(stub) }
func (c *Context) OnClose(fn func(ctx *Context, err error) error)        {}
func (c *Context) Random() *rand.Rand                                    { panic(stub) }
func (c *Context) Replaying() bool                                       { panic(stub) }
func (c *Context) Sleep(d time.Duration) error                           { panic(stub) }
func (c *Context) Timer(d time.Duration) *Future[time.Time]              { panic(stub) }
func (c *Context) UUID() string                                          { panic(stub) }
func WithCancel(ctx *Context) (inner *Context, cancel func())            { panic(stub) }
func WithoutCancel(ctx *Context) *Context                                { panic(stub) }
func NewSaga(ctx *Context) *Saga                                         { panic(stub) }
func (s *Saga) Compensate(ctx *Context, fn func(ctx *Context) error)     {}
func NewSemaphore(slots int) *Semaphore                                  { panic(stub) }
func (s *Semaphore) Acquire(ctx *Context) error                          { panic(stub) }
func (s *Semaphore) Release(ctx *Context)                                {}
func All[T any](ctx *Context, futures ...*Future[T]) ([]T, error)        { panic(stub) }
func AwaitUpdates(ctx *Context) error                                    { panic(stub) }
func Await(ctx *Context, holds func() bool) error                        { panic(stub) }
func AwaitFor(ctx *Context, d time.Duration, holds func() bool) error    { panic(stub) }
func NewChannel[T any](capacity int) *Channel[T]                         { panic(stub) }
func (c *Channel[T]) Send(ctx *Context, value T) error                   { panic(stub) }
func (c *Channel[T]) Receive(ctx *Context) (value T, ok bool, err error) { panic(stub) }
func (c *Channel[T]) Close(ctx *Context)                                 {}
func Patched(ctx *Context, id string) bool                               { panic(stub) }
func DeprecatePatch(ctx *Context, id string)                             {}
func SetStatus[T any](ctx *Context, value T) error                       { panic(stub) }

func AsCompleted[T any](ctx *Context, futures ...*Future[T]) iter.Seq2[int, *Future[T]] { panic(stub) }
func Go[T any](ctx *Context, fn func(ctx *Context) (T, error)) *Future[T]               { panic(stub) }
func Map[I, O any](ctx *Context, limit int, inputs []I, fn func(ctx *Context, input I) (O, error)) ([]O, error) {
	panic(stub)
}
func Next(ctx *Context, operations ...Awaitable) (int, error)                       { panic(stub) }
func SideEffect[T any](ctx *Context, label string, fn func() (T, error)) (T, error) { panic(stub) }
func Race(ctx *Context, operations ...Awaitable) (int, error)                       { panic(stub) }
func AllResults[T any](ctx *Context, futures ...*Future[T]) ([]Result[T], error)    { panic(stub) }
func WithTimeout(ctx *Context, d time.Duration) (inner *Context, cancel func())     { panic(stub) }
