package replay

import (
	"fmt"
	"reflect"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An OrchestrationHandle is the stable name of an orchestration with its input and output types. It
// starts instances from outside (see package cluster) and children from orchestrations.
type OrchestrationHandle[I, O any] struct{ name string }

// Orchestration declares an orchestration. Histories record the name. Bind and each call check that
// it has 1 to 128 bytes.
func Orchestration[I, O any](name string) OrchestrationHandle[I, O] {
	return OrchestrationHandle[I, O]{name}
}

// Name returns the name.
func (h OrchestrationHandle[I, O]) Name() string { return h.name }

// Call starts a child instance and awaits its result. The options are [Version], [ChildID],
// [OnParentClose], [Retry] and [Summary]. The error is a [*ChildError] if the child did not
// complete.
func (h OrchestrationHandle[I, O]) Call(ctx *Context, input I, options ...Option) (O, error) {
	return h.Start(ctx, input, options...).Await(ctx)
}

// Start starts a child instance and returns the future of its result. The child's ID is
// "<parent>::<incarnation>.<execution>.<event_id>" unless [ChildID] sets one. A derived ID of more
// than 128 bytes is shortened to the first 94 bytes of the parent's ID, "::" and 32 hexadecimal
// digits of the SHA-256 of the full derived ID.
func (h OrchestrationHandle[I, O]) Start(ctx *Context, input I, options ...Option) *Future[O] {
	return (*Future[O])(ctx.scope.StartChild(h.name, host.ValueOf(input), childOptions(options)))
}

// Chain starts an independent instance: it has no result and is not a child, and canceling or
// ending this instance does not affect it. Without [ChildID] its ID is
// "<id>::<incarnation>.<execution>.<event_id>", derived from this instance's ID and shortened as in
// [OrchestrationHandle.Start]. If an instance of that ID exists, nothing is started. The options
// are [Version], [ChildID] and [Summary].
func (h OrchestrationHandle[I, O]) Chain(ctx *Context, input I, options ...Option) error {
	return ctx.scope.StartChain(h.name, host.ValueOf(input), chainOptions(options))
}

// ContinueAsNew returns an error that the body of this orchestration must return. The execution
// then ends, and the next one begins with input and an empty history, in one append. Unconsumed
// external events are carried over in order. So is a cancel request that no await and no
// [Context.Err] has returned yet. The status set by [SetStatus] remains. Open operations are
// canceled. Functions registered with OnClose are not called. The only option is [Version].
//
//	return total, Counter.ContinueAsNew(ctx, total)
func (h OrchestrationHandle[I, O]) ContinueAsNew(ctx *Context, input I, options ...Option) error {
	return ctx.execution().ContinueAsNew(h.name, host.ValueOf(input), continueOptions(options))
}

func continueOptions(options []Option) (all host.ContinueOptions) {
	if len(options) > 0 {
		all.Invalid = applyOptions(options, &all, "a continue-as-new")
	}
	return all
}

// ShouldContinueAsNew reports whether the history has reached 10,000 events or 8 MiB of payloads.
// Then the orchestration should continue as new.
func (c *Context) ShouldContinueAsNew() bool { return c.execution().ShouldContinueAsNew() }

// Bind binds the orchestration, or one of its versions, to a body. The options are [Version],
// [Pinned] and [Receives].
func (h OrchestrationHandle[I, O]) Bind(body func(ctx *Context, input I) (O, error), options ...Option) Definition {
	if body == nil {
		return Definition{host.Definition{Err: fmt.Errorf("tenuto: orchestration %q is bound to nil", h.name)}}
	}
	o := &host.Orchestration{Name: h.name, Body: body, OutputType: reflect.TypeFor[O]()}
	o.Run = func(s host.Scope, input host.Decoder) (any, error) {
		var in I
		if err := input.Decode(&in); err != nil {
			return nil, err
		}
		return body(&Context{s}, in)
	}
	o.Invalid = applyOptions(options, o, "Bind")
	return Definition{host.Definition{Orchestration: o}}
}

func childOptions(options []Option) (all host.ChildOptions) {
	if len(options) > 0 {
		all.Invalid = applyOptions(options, &all, "a child")
	}
	return all
}

func chainOptions(options []Option) (all host.ChainOptions) {
	if len(options) > 0 {
		all.Invalid = applyOptions(options, &all, "a chained instance")
	}
	return all
}

// ChildID sets the ID of a child or chained instance instead of a derived one. The ID must be 1 to
// 128 characters of A-Z a-z 0-9 . _ : @ / + -; otherwise the call fails with an [*InvalidError] and
// starts nothing. "" means the derived ID. If an instance of that ID exists, the child fails with
// [ErrInstanceExists].
func ChildID(id string) Option {
	return Option{host.NewOption("ChildID", func(o interface{ SetID(id string) }) { o.SetID(id) })}
}

// A ClosePolicy decides what happens to a child when its parent cancels it or ends.
type ClosePolicy int32

// The close policies.
const (
	// CancelChild asks the child to cancel; it may clean up. This is the default.
	CancelChild ClosePolicy = 0
	// TerminateChild ends the child at once, without running its code.
	TerminateChild ClosePolicy = 1
	// AbandonChild leaves the child running.
	AbandonChild ClosePolicy = 2
)

// String returns "cancel", "terminate" or "abandon".
func (p ClosePolicy) String() string {
	switch p {
	case CancelChild:
		return "cancel"
	case TerminateChild:
		return "terminate"
	case AbandonChild:
		return "abandon"
	}
	return fmt.Sprintf("close policy %d", int32(p))
}

// OnParentClose sets the close policy of a child. It does not apply to a chained instance, which is
// not a child.
func OnParentClose(policy ClosePolicy) Option {
	return Option{host.NewOption("OnParentClose", func(o *host.ChildOptions) { o.ClosePolicy = int32(policy) })}
}
