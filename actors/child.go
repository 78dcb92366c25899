package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// children starts the children and the chained instances of this partition's instances, cancels
// children, and reports their ends to parents.
type children struct {
	context      context.Context // of the partition
	journal      Journal
	sender       *sender
	runs         *runs
	timers       *timerActor
	logger       *slog.Logger
	traceContext func(instance string, execution uint64) string
}

// startChild starts a child, repeating until the start is recorded. A repeated start is recognized
// because it names the same parent.
func (c *children) startChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled) {
	c.sender.deliverReliably(child.Instance, Message{
		Message: engine.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:    child.Name,
				Version: c.runs.chooseVersion(child.Name, child.Version),
				Input:   child.Input,
				Parent:  parent,
				Summary: child.Summary,
				Retry:   child.Retry,
				Trace:   c.traceContext(parent.Instance, parent.Execution),
				Headers: child.Headers,
			},
		}}},
		Attach:   true,
		Internal: true,
		Done:     func(a Answer) { c.handleChildStarted(parent, child, a) },
	})
}

// startChained starts a detached instance, repeating until the start is recorded. An existing
// instance of that ID is not an error.
func (c *children) startChained(ref *journalpb.OperationRef, chained *journalpb.OrchestrationChained) {
	c.sender.deliverReliably(chained.Instance, Message{
		Message: engine.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:      chained.Name,
				Version:   c.runs.chooseVersion(chained.Name, chained.Version),
				Input:     chained.Input,
				Summary:   chained.Summary,
				RequestId: "tenuto.chain/" + ref.Key(),
				Trace:     c.traceContext(ref.Instance, ref.Execution),
				Headers:   chained.Headers,
			},
		}}},
		Attach:   true,
		Internal: true,
		Done:     func(Answer) { c.forgetChainedStart(chained.Instance) },
	})
}

// forgetChainedStart removes the record of a start from the journal after another partition has
// made the start. Nothing else would remove it.
func (c *children) forgetChainedStart(target string) {
	if !c.sender.isInOtherPartition(target) {
		return
	}
	c.sender.others.ForgetChainedStart(target, func(err error) {
		if err != nil && c.context.Err() == nil {
			c.timers.ScheduleAfter(sched.BackoffMax, func() { c.forgetChainedStart(target) })
		}
	})
}

// handleChildStarted handles the answer to the start of a child.
func (c *children) handleChildStarted(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, a Answer) {
	if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
		c.forgetChainedStart(child.Instance)
	}
	if !a.Dropped {
		return // just started: its end will be reported later
	}
	if c.sender.isInOtherPartition(child.Instance) {
		c.handleExistingChild(parent, child, a.Instance, a.LastEvent)
		return
	}
	c.recoverChild(parent, child)
}

// recoverChild continues with a child that may already exist. If this node's replica does not show
// it, recoverChild starts it.
func (c *children) recoverChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled) {
	meta, ok := c.sender.replica(child.Instance).Instance(child.Instance)
	if !ok { // if the replica lags and the child exists, the start has no effect
		c.startChild(parent, child)
		return
	}
	c.handleExistingChild(parent, child, meta, nil)
}

// handleExistingChild handles an instance that exists under the child's ID: the child itself,
// running or ended, or an unrelated instance. end is its last event, nil if it must be read.
func (c *children) handleExistingChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, meta *journalpb.Instance, end *journalpb.Event) {
	switch {
	case !proto.Equal(meta.Parent, parent):
		c.sender.deliverReliably(parent.Instance, completion(parent, childFailedEvent(fmt.Errorf("%w: %q", replay.ErrInstanceExists, child.Instance)), nil))
	case meta.Status != journalpb.Status_STATUS_RUNNING:
		if end == nil {
			var err error
			end, err = c.sender.replica(meta.Instance).Event(meta.Instance, meta.Execution, meta.LastEventId)
			if err != nil {
				c.logger.Error("cannot read end of child", "instance", meta.Instance, "execution", meta.Execution, "error", err)
				return
			}
		}
		c.reportEnd(meta.Parent, end)
	}
}

// reportEnd tells the parent of an instance, if there is one, how the instance ended. It repeats
// until the parent has recorded the end or no longer needs it.
func (c *children) reportEnd(parent *journalpb.OperationRef, endEvent *journalpb.Event) {
	if parent == nil {
		return
	}
	if end := c.childEndEvent(endEvent); end != nil {
		c.sender.deliverReliably(parent.Instance, completion(parent, end, nil))
	}
}

// childEndEvent returns the event that records the end of a child in its parent's history.
func (c *children) childEndEvent(endEvent *journalpb.Event) *journalpb.Event {
	switch body := endEvent.Body.(type) {
	case *journalpb.Event_OrchestrationCompleted:
		return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationCompleted{
			SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: body.OrchestrationCompleted.Output},
		}}
	case *journalpb.Event_OrchestrationFailed:
		return childFailedEventFrom(body.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationCanceled:
		return c.childCanceledEvent(body.OrchestrationCanceled.Reason)
	case *journalpb.Event_OrchestrationTerminated:
		return childFailedEvent(errors.Join(replay.ErrTerminated, errors.New(body.OrchestrationTerminated.Reason)))
	}
	return nil
}

// childCanceledEvent returns the end of a canceled child. Its error message is the bare reason
// until every node reads protocol 3.
func (c *children) childCanceledEvent(reason string) *journalpb.Event {
	record := engine.EncodeError(&replay.CanceledError{Reason: reason})
	if reason != "" && !c.runs.hasIncarnations() {
		record.Message = reason
	}
	return childFailedEventFrom(record)
}

func childFailedEvent(err error) *journalpb.Event {
	return childFailedEventFrom(engine.EncodeError(err))
}

func childFailedEventFrom(record *journalpb.Error) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationFailed{
		SubOrchestrationFailed: &journalpb.SubOrchestrationFailed{Error: record},
	}}
}

// cancelChild applies the close policy of a child that its parent has canceled.
func (c *children) cancelChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, delay time.Duration) {
	if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
		return
	}
	if c.sender.isInOtherPartition(child.Instance) {
		if event := closeEvent(child.ClosePolicy); event != nil {
			c.sender.sendReliably(&CrossMessage{Instance: child.Instance, Event: event, ChildOf: parent}, nil, delay)
		}
		return
	}
	meta, ok := c.journal.Instance(child.Instance)
	if !ok {
		// The child's start is in flight and is repeated until it is recorded.
		c.timers.ScheduleAfter(delay, func() { c.cancelChild(parent, child, sched.NextBackoff(delay)) })
		return
	}
	if !proto.Equal(meta.Parent, parent) {
		return // an unrelated instance under the child's ID
	}
	c.closeChild(meta, child.ClosePolicy)
}

// closeChild applies a close policy to this run of a child.
func (c *children) closeChild(child *journalpb.Instance, policy journalpb.ClosePolicy) {
	if event := closeEvent(policy); event != nil {
		c.sender.deliverReliably(child.Instance, Message{Message: engine.Message{Incarnation: child.Incarnation, Event: event}, Internal: true})
	}
}

// closeEvent returns the event that a close policy sends to a child, nil if it sends none.
func closeEvent(policy journalpb.ClosePolicy) *journalpb.Event {
	const reason = "canceled by its parent"
	switch policy {
	case journalpb.ClosePolicy_CLOSE_POLICY_CANCEL:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
			OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: reason, ByParent: true},
		}}
	case journalpb.ClosePolicy_CLOSE_POLICY_TERMINATE:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
			OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: reason},
		}}
	}
	return nil
}

// closeOrphan applies the close policy of a child whose parent no longer waits for it. If the
// parent was purged, the policy is unknown and the child is left alone. If the parent is in another
// partition, this node's replica must show that the parent does not wait; see
// Partition.ResendAfterFailover.
func (c *children) closeOrphan(child *journalpb.Instance) {
	parents := c.sender.replica(child.Parent.Instance)
	if c.sender.isInOtherPartition(child.Parent.Instance) && !isChildAbandoned(parents, child.Parent) {
		return
	}
	event, err := eventOf(parents, child.Parent)
	if err != nil {
		return
	}
	c.closeChild(child, event.GetSubOrchestrationScheduled().GetClosePolicy())
}

// isChildAbandoned reports whether it is certain that a parent in another partition no longer
// waits for a child. The replica may lag behind the parent.
func isChildAbandoned(r Replica, parent *journalpb.OperationRef) bool {
	meta, ok := r.Instance(parent.Instance)
	switch {
	case !ok, meta.Incarnation < parent.Incarnation:
		return false
	case meta.Incarnation > parent.Incarnation:
		return true // later runs have larger incarnations
	case meta.Execution != parent.Execution:
		return meta.Execution > parent.Execution
	}
	for open := range r.InstanceOperations(parent.Instance) {
		if proto.Equal(open.Ref, parent) {
			return false
		}
	}
	// The replica must still show the instance after the operations were read; see Replica.
	if _, ok := r.Instance(parent.Instance); !ok {
		return false
	}
	return meta.LastEventId >= parent.EventId
}

// closeIfOrphaned applies the close policy of a new child if its parent is in another partition and
// has canceled it meanwhile. The parent's leader may have failed before it sent the cancellation.
func (c *children) closeIfOrphaned(instance string, parent *journalpb.OperationRef) {
	if parent == nil || !c.sender.isInOtherPartition(parent.Instance) {
		return
	}
	if meta, ok := c.journal.Instance(instance); ok && proto.Equal(meta.Parent, parent) {
		c.closeOrphan(meta)
	}
}

// resendAfterFailover implements Partition.ResendAfterFailover.
func (c *children) resendAfterFailover(isAffected func(instance string) bool) {
	for child := range c.journal.Orphans() {
		if c.context.Err() != nil {
			return
		}
		if c.sender.isInOtherPartition(child.Parent.Instance) && isAffected(child.Parent.Instance) {
			c.closeOrphan(child)
		}
	}
	for open := range c.journal.OpenOperations() {
		if c.context.Err() != nil {
			return
		}
		if int(open.Kind) == journalpb.TypeSubOrchestrationScheduled && c.sender.isInOtherPartition(open.Child) && isAffected(open.Child) {
			c.reportEndedChild(open)
		}
	}
}

// reportEndedChild reports the end of a child of another partition if it has ended.
func (c *children) reportEndedChild(open *journalpb.Operation) {
	meta, ok := c.sender.replica(open.Child).Instance(open.Child)
	if ok && meta.Status != journalpb.Status_STATUS_RUNNING && proto.Equal(meta.Parent, open.Ref) {
		c.handleExistingChild(open.Ref, nil, meta, nil)
	}
}
