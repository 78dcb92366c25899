package host

import (
	"log/slog"
	"math/rand/v2"
	"reflect"
	"time"
)

// ID identifies an execution. There is one for each execution in memory, so two executions are the
// same if the addresses of their IDs are equal.
type ID struct {
	Instance string
	Number   uint64 // of the execution, from 1
}

// An Execution is one execution of an instance, as its code sees it. The methods on its own state
// may be called only by its code.
type Execution interface {
	ID() *ID
	// Recorder returns the ID of the execution that has recorded the present part of the history:
	// ID, except in the copied part of a history.
	Recorder() ID
	Name() string // of the orchestration
	Version() string
	// Attempt returns the number of the attempt of the run, from 1.
	Attempt() int
	Tags() map[string]string
	Now() time.Time
	Replaying() bool
	// Logger returns a logger that is silent on replay.
	Logger() *slog.Logger
	// Random returns the source of random numbers that is the same on every replay.
	Random() *rand.Rand
	// Evicting reports whether the instance is being evicted from memory.
	Evicting() bool

	// Check returns if a durable call may be made here. Otherwise it ends the goroutine, or panics
	// where the engine recovers the panic. what names the call.
	Check(what string)
	// CheckOwner ends the running coroutine and stalls the instance if an object belongs to another
	// execution. kind names the object; a nil owner is no other execution.
	CheckOwner(what, kind string, owner *ID)

	// NewPromise returns a promise that only Resolve resolves.
	NewPromise() Promise
	// Resolve resolves a promise of NewPromise with an error or nil.
	Resolve(p Promise, err error)

	// Holds reports whether a condition of the code holds. The condition must not make durable
	// calls.
	Holds(condition func() bool) bool
	// NewPosition returns a position behind all coroutines that wait for a condition.
	NewPosition() uint64
	// NextCheck returns a promise that is resolved when a condition must be checked again: at the
	// end of a step, if code has run since. Conditions are checked in the order of positions.
	NextCheck(position uint64) Promise

	// SetStatus records a status. The error says why it cannot be encoded.
	SetStatus(status any) error
	// SetAttribute records the value of an attribute, given as AttributeOf returns it; nil removes
	// the attribute.
	SetAttribute(name string, value any) error
	// SetValue and DeleteValue record a change of a key-value map.
	SetValue(kv, key string, value Value) error
	DeleteValue(kv, key string) error
	// GetValue stores the value of a key in the variable that into points to. ok is false if there
	// is none.
	GetValue(kv, key string, into any) (ok bool, err error)
	// Keys returns the keys of a key-value map, in order.
	Keys(kv string) []string
	// Patch returns the decision of a patch. At the end of the history that is marks.
	Patch(id string, marks bool) bool
	// HandleQuery registers the handler of a query. A nil handler is an error.
	HandleQuery(name string, handler Handler) error
	// OnClose registers a function to be called when the instance ends.
	OnClose(fn func(s Scope, failure error) error)
	ShouldContinueAsNew() bool
	// ContinueAsNew returns the error with which the body continues as new.
	ContinueAsNew(orchestration string, input Value, options ContinueOptions) error
}

// A Value is a value of the author in a call. Type is that of the handle; the value may have
// another one if it is an interface.
type Value struct {
	Any  any
	Type reflect.Type
}

// ValueOf returns a value with its static type.
func ValueOf[T any](value T) Value { return Value{value, reflect.TypeFor[T]()} }

// A Scope is the part of the code that one cancellation affects. Operations are scheduled in a
// scope, and coroutines wait in one. Calls with a value of user code encode it first. A future of
// an operation that could not be scheduled is resolved with the reason.
type Scope interface {
	Execution() Execution
	// Header returns the header that calls in the scope carry.
	Header(name string) (value string, ok bool)

	StartActivity(name string, input Value, options *ActivityOptions) *Future
	StartTimer(d time.Duration) *Future
	StartChild(orchestration string, input Value, options ChildOptions) *Future
	StartChain(orchestration string, input Value, options ChainOptions) error
	// Subscribe waits for the next event of that name. data is the type of the handle.
	Subscribe(event string, data reflect.Type) *Future
	// SendEvent sends an event to another instance. The future has no value.
	SendEvent(instance, event string, data Value) *Future
	// CancelInstance asks another instance to cancel. The future has no value.
	CancelInstance(instance, reason string) *Future
	// SideEffect calls fn, or takes its recorded result, and stores the value in the variable that
	// into points to.
	SideEffect(label string, fn func() (any, error), into any) error
	// HandleUpdate registers the handler of an update. A handler without Run is an error.
	HandleUpdate(name string, handler UpdateHandler) error
	AwaitUpdates() error
	// Go starts a coroutine. fn gets a scope of its own within this one.
	Go(fn func(inner Scope) (any, error)) *Future

	// Await waits until the promise of a future is resolved and returns its result. A recorded
	// value is stored in the variable that into points to, any other is returned.
	Await(p Promise, into any) (value any, err error)
	// Result is Await for a resolved promise. It does not check the scope.
	Result(p Promise, into any) (value any, err error)
	// Wait waits until the promise is resolved. The error is that of this scope, not that of the
	// promise; it counts as observed only after Observe.
	Wait(p Promise) error
	// WaitAny is Wait for the first of several promises.
	WaitAny(promises []Promise) error
	// Includes reports whether the promise is resolved and, if the scope has ended, was resolved
	// before that.
	Includes(p Promise) bool
	// CheckFuture ends the running coroutine if the promise belongs to another execution.
	CheckFuture(what string, p Promise)
	// Cancel cancels a pending operation, or ends the scope of a coroutine.
	Cancel(p Promise)

	// Cause returns why the scope has ended, nil while it has not.
	Cause() error
	// Observe records that err is returned to the code, if it is the cancellation of the instance.
	// It returns err.
	Observe(err error) error
	// Nested returns a new scope in this one; Shielded one that ends only with the body.
	Nested() Scope
	Shielded() Scope
	// End ends the scope and cancels the open operations in it.
	End(cause error)
}
