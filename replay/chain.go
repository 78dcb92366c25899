package replay

import (
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Chain starts an independent instance: it has no result and is not a child, and canceling or
// ending this instance does not affect it. Without [ChildID] its ID is
// "<id>::<incarnation>.<execution>.<event_id>", derived from this instance's ID and shortened as in
// [OrchestrationHandle.Start]. If an instance of that ID exists, nothing is started.
func (h OrchestrationHandle[I, O]) Chain(ctx *Context, input I, options ...ChildOption) error {
	requested, err := h.childStart(ctx, input, options)
	if err != nil {
		return err
	}
	x := ctx.x
	x.currentCoroutine("Chain")
	if x.evicting {
		return ErrEvicting
	}
	if err := ctx.scope.err(); err != nil {
		return x.observeCancel(err)
	}
	x.enqueue(&journalpb.Event{Body: &journalpb.Event_OrchestrationChained{OrchestrationChained: &journalpb.OrchestrationChained{
		Name:     h.name,
		Version:  requested.Version,
		Instance: requested.Instance,
		Input:    requested.Input,
	}}}, nil)
	return nil
}

// ChildVersion sets the version that a child or chained instance runs. Defaults to the newest on
// the node that starts it. If that node has no code of that name, the default is the newest on the
// first node that leads the instance's partition and has code. See [NewestVersion].
func ChildVersion(version string) ChildOption {
	return func(child *journalpb.SubOrchestrationScheduled) { child.Version = version }
}

// ClosePolicy decides what happens to a child when its parent cancels it or ends.
type ClosePolicy = journalpb.ClosePolicy

// The close policies.
const (
	// CancelChild asks the child to cancel; it may clean up. This is the default.
	CancelChild = journalpb.ClosePolicy_CLOSE_POLICY_CANCEL
	// TerminateChild ends the child at once, without running its code.
	TerminateChild = journalpb.ClosePolicy_CLOSE_POLICY_TERMINATE
	// AbandonChild leaves the child running.
	AbandonChild = journalpb.ClosePolicy_CLOSE_POLICY_ABANDON
)

// OnParentClose sets the close policy of a child.
func OnParentClose(policy ClosePolicy) ChildOption {
	return func(child *journalpb.SubOrchestrationScheduled) { child.ClosePolicy = policy }
}
