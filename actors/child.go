package actors

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// startChild starts a child, repeating until the start is recorded. A repeated start is recognized
// because it names the same parent.
func (p *Partition) startChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled) {
	p.deliverReliably(child.Instance, Message{
		Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:    child.Name,
				Version: p.chooseVersion(child.Name, child.Version),
				Input:   child.Input,
				Parent:  parent,
				Trace:   p.system.traceContext(parent.Instance, parent.Execution),
			},
		}}},
		Attach:   true,
		Internal: true,
		Done:     func(a Answer) { p.handleChildStarted(parent, child, a) },
	})
}

// chooseVersion returns the version that a new instance runs. Without code of that name it returns
// replay.NewestVersion, so that a node with the code chooses. It does so only if every node knows
// that version, which came with protocol 3.
func (p *Partition) chooseVersion(name, requested string) string {
	registry := p.system.config.Registry
	switch newest := registry.Newest(name); {
	case requested != "" && requested != replay.NewestVersion:
		return requested
	case registry.HasOrchestration(name, newest) || !p.hasIncarnations():
		return newest
	}
	return replay.NewestVersion
}

// startChained starts a detached instance, repeating until the start is recorded. An existing
// instance of that ID is not an error.
func (p *Partition) startChained(ref *journalpb.OperationRef, chained *journalpb.OrchestrationChained) {
	p.deliverReliably(chained.Instance, Message{
		Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:      chained.Name,
				Version:   p.chooseVersion(chained.Name, chained.Version),
				Input:     chained.Input,
				RequestId: "tenuto.chain/" + ref.Key(),
				Trace:     p.system.traceContext(ref.Instance, ref.Execution),
			},
		}}},
		Attach:   true,
		Internal: true,
		Done:     func(Answer) { p.forgetChainedStart(chained.Instance) },
	})
}

// forgetChainedStart removes the record of a start from the journal after another partition has
// made the start. Nothing else would remove it.
func (p *Partition) forgetChainedStart(target string) {
	if !p.isInOtherPartition(target) {
		return
	}
	p.config.OtherPartitions.ForgetChainedStart(target, func(err error) {
		if err != nil && p.context.Err() == nil {
			p.timers.ScheduleAfter(sched.BackoffMax, func() { p.forgetChainedStart(target) })
		}
	})
}

// handleChildStarted handles the answer to the start of a child.
func (p *Partition) handleChildStarted(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, a Answer) {
	if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
		p.forgetChainedStart(child.Instance)
	}
	if !a.Dropped {
		return // just started: its end will be reported later
	}
	if p.isInOtherPartition(child.Instance) {
		p.handleExistingChild(parent, child, a.Instance, a.LastEvent)
		return
	}
	p.recoverChild(parent, child)
}

// recoverChild continues with a child that may already exist. If this node's replica does not show
// it, recoverChild starts it.
func (p *Partition) recoverChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled) {
	meta, ok := p.replica(child.Instance).Instance(child.Instance)
	if !ok { // if the replica lags and the child exists, the start has no effect
		p.startChild(parent, child)
		return
	}
	p.handleExistingChild(parent, child, meta, nil)
}

// handleExistingChild handles an instance that exists under the child's ID: the child itself,
// running or ended, or an unrelated instance. end is its last event, nil if it must be read.
func (p *Partition) handleExistingChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, meta *journalpb.Instance, end *journalpb.Event) {
	switch {
	case !proto.Equal(meta.Parent, parent):
		p.deliverReliably(parent.Instance, completion(parent, childFailedEvent(fmt.Errorf("%w: %q", replay.ErrInstanceExists, child.Instance)), nil))
	case meta.Status != journalpb.Status_STATUS_RUNNING:
		if end == nil {
			var err error
			end, err = p.replica(meta.Instance).Event(meta.Instance, meta.Execution, meta.LastEventId)
			if err != nil {
				p.logger.Error("cannot read end of child", "instance", meta.Instance, "execution", meta.Execution, "error", err)
				return
			}
		}
		p.reportEnd(meta.Parent, end)
	}
}

// reportEnd tells the parent of an instance, if there is one, how the instance ended. It repeats
// until the parent has recorded the end or no longer needs it.
func (p *Partition) reportEnd(parent *journalpb.OperationRef, endEvent *journalpb.Event) {
	if parent == nil {
		return
	}
	if end := p.childEndEvent(endEvent); end != nil {
		p.deliverReliably(parent.Instance, completion(parent, end, nil))
	}
}

// childEndEvent returns the event that records the end of a child in its parent's history.
func (p *Partition) childEndEvent(endEvent *journalpb.Event) *journalpb.Event {
	switch body := endEvent.Body.(type) {
	case *journalpb.Event_OrchestrationCompleted:
		return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationCompleted{
			SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: body.OrchestrationCompleted.Output},
		}}
	case *journalpb.Event_OrchestrationFailed:
		return childFailedEventFrom(body.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationCanceled:
		return p.childCanceledEvent(body.OrchestrationCanceled.Reason)
	case *journalpb.Event_OrchestrationTerminated:
		return childFailedEvent(errors.Join(replay.ErrTerminated, errors.New(body.OrchestrationTerminated.Reason)))
	}
	return nil
}

// childCanceledEvent returns the end of a canceled child. Its error message is the bare reason
// until every node reads protocol 3.
func (p *Partition) childCanceledEvent(reason string) *journalpb.Event {
	record := replay.EncodeError(&replay.CanceledError{Reason: reason})
	if reason != "" && !p.hasIncarnations() {
		record.Message = reason
	}
	return childFailedEventFrom(record)
}

func childFailedEvent(err error) *journalpb.Event {
	return childFailedEventFrom(replay.EncodeError(err))
}

func childFailedEventFrom(record *journalpb.Error) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationFailed{
		SubOrchestrationFailed: &journalpb.SubOrchestrationFailed{Error: record},
	}}
}

// cancelChild applies the close policy of a child that its parent has canceled.
func (p *Partition) cancelChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, delay time.Duration) {
	if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
		return
	}
	if p.isInOtherPartition(child.Instance) {
		if event := closeEvent(child.ClosePolicy); event != nil {
			p.sendReliably(&CrossMessage{Instance: child.Instance, Event: event, ChildOf: parent}, nil, delay)
		}
		return
	}
	meta, ok := p.journal.Instance(child.Instance)
	if !ok {
		// The child's start is in flight and is repeated until it is recorded.
		p.timers.ScheduleAfter(delay, func() { p.cancelChild(parent, child, sched.NextBackoff(delay)) })
		return
	}
	if !proto.Equal(meta.Parent, parent) {
		return // an unrelated instance under the child's ID
	}
	p.closeChild(meta, child.ClosePolicy)
}

// closeChild applies a close policy to this run of a child.
func (p *Partition) closeChild(child *journalpb.Instance, policy journalpb.ClosePolicy) {
	if event := closeEvent(policy); event != nil {
		p.deliverReliably(child.Instance, Message{Message: replay.Message{Incarnation: child.Incarnation, Event: event}, Internal: true})
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
// partition, this node's replica must show that the parent does not wait; see Review.
func (p *Partition) closeOrphan(child *journalpb.Instance) {
	parents := p.replica(child.Parent.Instance)
	if p.isInOtherPartition(child.Parent.Instance) && !isChildAbandoned(parents, child.Parent) {
		return
	}
	event, err := eventOf(parents, child.Parent)
	if err != nil {
		return
	}
	p.closeChild(child, event.GetSubOrchestrationScheduled().GetClosePolicy())
}
