package replay

import "time"

// A Coroutine is where a coroutine of an instance is: the body of the orchestration, a function of
// [Go], or the handler of an update.
type Coroutine struct {
	// Call is the function of this package that the coroutine waits in, such as "All" or
	// "ActivityHandle.Call"; "StartAt" if the code may not begin yet. It is empty if the code of
	// the instance is hung: the code runs, and does not reach a durable call.
	Call string
	// WaitsFor are the operations of which one must complete before the call continues. Empty for
	// [All], [AsCompleted], other coroutines and conditions.
	WaitsFor []AwaitedOperation
	// Since is the cluster time at which it began to wait. For hung code it is when the node first
	// saw the code run (up to half of Config.HungAfter late), by the node's clock.
	Since time.Time
	// Source is directory/file:line of the call in the author's code; "" for StartAt and hung code.
	Source string
	// Stack has two lines for each function of the author, innermost first: name, and file:line.
	// For hung code it has all functions of all coroutines that run.
	Stack string
}

// An AwaitedOperation is an operation that a [Coroutine] waits for.
type AwaitedOperation struct {
	EventID uint64 // of the event that scheduled it
	Type    string // of that event, such as "ActivityScheduled"
	Name    string // of the activity, event or orchestration; "" for a timer
	// Instance is the child, or the receiver of a message; "" for other operations.
	Instance string
}
