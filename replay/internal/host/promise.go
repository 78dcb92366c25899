package host

// A Promise is pending, then resolved once.
type Promise interface {
	// Seq numbers the promises of an execution in the order in which they were resolved, from 1. It
	// is 0 while the promise is pending.
	Seq() uint64
	// Err returns the error with which the promise was resolved.
	Err() error
	// OnResolved adds a function that is called when the promise is resolved, before waiting
	// coroutines become ready.
	OnResolved(fn func())
	// Header returns the header of the event that a subscription has received.
	Header(name string) (value string, ok bool)
}

// A Future is the untyped form of replay.Future, which has the same memory layout. The engine
// allocates it together with its promise.
type Future struct{ promise Promise }

// Init sets the promise and returns f.
func (f *Future) Init(p Promise) *Future {
	f.promise = p
	return f
}

// Promise returns the promise.
func (f *Future) Promise() Promise { return f.promise }
