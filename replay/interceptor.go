package replay

import (
	"context"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An OrchestrationInterceptor runs around the body of every orchestration, once in each execution.
// It begins at the time of StartAt, if there is one, and ends before the functions of
// [Context.OnClose] run. It does not run around handlers of queries and updates.
//
// An interceptor is orchestration code. It must be deterministic, runs again on replay, and may
// make durable calls. Adding, removing or changing such a call changes the code of running
// instances (see [Patched]). [Context] reports which instance runs, and whether it is replayed.
//
// next calls the next interceptor, or the body after the last one, with the Context that it gets,
// and returns the error of the body. It must be called at most once, in the coroutine of the
// interceptor. A call that breaks this rule returns an error and does nothing else.
//
// What the interceptor returns replaces the error of the body:
//
//   - An error fails the run, also if next was not called. If it wraps the error of next, the run
//     is still canceled, or still continues as new.
//   - nil, after next has returned nil, completes the run with the output of the body.
//   - nil otherwise becomes an error that says so. It wraps the error of next, if there is one.
//
// A panic of the body passes through the interceptor, and one of the interceptor counts as one of
// the body.
type OrchestrationInterceptor func(ctx *Context, next func(ctx *Context) error) error

// Host returns the interceptor in the form that package engine calls.
func (i OrchestrationInterceptor) Host() host.OrchestrationInterceptor {
	return func(s host.Scope, next func(host.Scope) error) error {
		return i(&Context{s}, func(ctx *Context) error { return next(ctx.scope) })
	}
}

// An ActivityInterceptor runs around every attempt of an activity, on the node that runs the
// attempt. [ActivityInfo] and [HeaderKey.From] take its context. Values that it adds to the context
// of next reach the body. It must be safe for concurrent use.
//
// The rules for next and for the error are those of [OrchestrationInterceptor]: the error of the
// interceptor is that of the attempt, under the retry policy of the call. An error that wraps
// [ErrResultPending] leaves the attempt to be completed from outside. next must be called on the
// goroutine of the interceptor.
type ActivityInterceptor func(ctx context.Context, next func(ctx context.Context) error) error

// A ClientInterceptor runs around every call of a client, once, however often the client sends the
// request. It may set headers, by next(key.With(ctx, value)). The rules for next and for the error
// are those of [OrchestrationInterceptor]. It must be safe for concurrent use.
type ClientInterceptor func(ctx context.Context, call ClientCall, next func(ctx context.Context) error) error

// A ClientCall describes a call of a client. A function that sends several requests, such as Call,
// makes several calls. An update is one call until its result is known, and so is the reading of a
// whole history.
type ClientCall struct {
	// Kind is what the call does, in the words of the type Action of package cluster: "start",
	// "send", "update", "cancel", "get" and so on; also "wait", for the end of a run, and "watch".
	Kind string
	// Instance is the ID of the instance, "" if the call concerns no single one.
	Instance string
	// Name is that of the orchestration, event, update or query, "" for other calls.
	Name string
}
