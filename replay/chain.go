package replay

import (
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Chain starts an instance that stands on its own: there is no result, it is no
// child, and neither cancelling this instance nor its end touches it. Without
// [ChildID] its ID is derived from this instance's,
// "<id>::<incarnation>.<execution>.<event_id>", or shortened as in
// [OrchestrationHandle.Start]. If an instance of that ID exists, nothing is started.
func (h OrchestrationHandle[I, O]) Chain(ctx *Context, input I, options ...ChildOption) error {
	asked, err := h.child(ctx, input, options)
	if err != nil {
		return err
	}
	x := ctx.x
	x.running("Chain")
	if x.dropping {
		return ErrDehydrating
	}
	if err := ctx.scope.err(); err != nil {
		return x.told(err)
	}
	x.enqueue(&journalpb.Event{Body: &journalpb.Event_OrchestrationChained{OrchestrationChained: &journalpb.OrchestrationChained{
		Name:     h.name,
		Version:  asked.Version,
		Instance: asked.Instance,
		Input:    asked.Input,
	}}}, nil)
	return nil
}

// ChildVersion names the version that a child or chained instance runs. Defaults
// to the newest that the node has which starts it; if it has no code of that name, to
// the newest of the first node that leads the instance and has code. See [NewestVersion].
func ChildVersion(version string) ChildOption {
	return func(child *journalpb.SubOrchestrationScheduled) { child.Version = version }
}

// ClosePolicy says what becomes of a child when its parent gives it up or ends.
type ClosePolicy = journalpb.ClosePolicy

// The close policies.
const (
	// CancelChild asks the child to cancel; it may clean up. The default.
	CancelChild = journalpb.ClosePolicy_CLOSE_POLICY_CANCEL
	// TerminateChild ends the child at once, without running its code.
	TerminateChild = journalpb.ClosePolicy_CLOSE_POLICY_TERMINATE
	// AbandonChild leaves the child alone.
	AbandonChild = journalpb.ClosePolicy_CLOSE_POLICY_ABANDON
)

// OnParentClose sets the close policy of a child.
func OnParentClose(policy ClosePolicy) ChildOption {
	return func(child *journalpb.SubOrchestrationScheduled) { child.ClosePolicy = policy }
}
