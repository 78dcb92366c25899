package actors

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// startChild asks for the start of a child until it is recorded. Asking again
// is the same start, because it names the same parent.
func (p *Partition) startChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled) {
	p.insist(child.Instance, Message{
		Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:    child.Name,
				Version: p.version(child.Name, child.Version),
				Input:   child.Input,
				Parent:  parent,
				Trace:   p.system.carried(parent.Instance, parent.Execution),
			},
		}}},
		Attach:   true,
		Internal: true,
		Done:     func(a Answer) { p.childStarted(parent, child, a) },
	})
}

// version returns the version that a new instance runs. Without code of that name the choice
// is left to a node that has some, if every replica and every node knows what that means.
func (p *Partition) version(name, asked string) string {
	registry := p.system.config.Registry
	switch newest := registry.Newest(name); {
	case asked != "" && asked != replay.NewestVersion:
		return asked
	case registry.HasOrchestration(name, newest) || !p.incarnations():
		return newest
	}
	return replay.NewestVersion
}

// startChained asks for the start of an instance that stands on its own until
// it is recorded. If one of that ID exists, that is all right.
func (p *Partition) startChained(ref *journalpb.OperationRef, chained *journalpb.OrchestrationChained) {
	p.insist(chained.Instance, Message{
		Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:      chained.Name,
				Version:   p.version(chained.Name, chained.Version),
				Input:     chained.Input,
				RequestId: "tenuto.chain/" + ref.Key(),
				Trace:     p.system.carried(ref.Instance, ref.Execution),
			},
		}}},
		Attach:   true,
		Internal: true,
		Done:     func(Answer) { p.startedElsewhere(chained.Instance) },
	})
}

// startedElsewhere has a start forgotten that outlives whoever asked for it, if it
// was made in another partition.
func (p *Partition) startedElsewhere(target string) {
	if !p.elsewhere(target) {
		return
	}
	p.place.Elsewhere.Started(target, func(err error) {
		if err != nil && p.context.Err() == nil {
			p.clock.after(repeatLongest, func() { p.startedElsewhere(target) })
		}
	})
}

// childStarted looks at whom the start has met.
func (p *Partition) childStarted(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, a Answer) {
	if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
		p.startedElsewhere(child.Instance)
	}
	if !a.Dropped {
		return // begun just now: its end will be reported when it comes
	}
	if p.elsewhere(child.Instance) {
		p.meetChild(parent, child, a.Instance, a.End)
		return
	}
	p.takeUpChild(parent, child)
}

// takeUpChild goes on with a child where the node before has left it.
func (p *Partition) takeUpChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled) {
	known, ok := p.replica(child.Instance).Instance(child.Instance)
	if !ok { // as far as is known here, and if it does exist the start does no harm
		p.startChild(parent, child)
		return
	}
	p.meetChild(parent, child, known, nil)
}

// meetChild deals with an instance that exists under the child's ID: the child
// itself, running or ended, or a stranger. end is its last event, nil if that is to
// be looked up.
func (p *Partition) meetChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, known *journalpb.Instance, end *journalpb.Event) {
	switch {
	case !proto.Equal(known.Parent, parent):
		p.insist(parent.Instance, completion(parent, childFailed(fmt.Errorf("%w: %q", replay.ErrInstanceExists, child.Instance)), nil))
	case known.Status != journalpb.Status_STATUS_RUNNING:
		if end == nil {
			var err error
			end, err = p.replica(known.Instance).Event(known.Instance, known.Execution, known.LastEventId)
			if err != nil {
				p.logger.Error("read end of child", "instance", known.Instance, "execution", known.Execution, "error", err)
				return
			}
		}
		p.reportEnd(known.Parent, end)
	}
}

// reportEnd tells the parent of an instance, if it has one, how it ended, until
// the parent has recorded it or does not care any more.
func (p *Partition) reportEnd(parent *journalpb.OperationRef, terminal *journalpb.Event) {
	if parent == nil {
		return
	}
	if end := p.endOfChild(terminal); end != nil {
		p.insist(parent.Instance, completion(parent, end, nil))
	}
}

// endOfChild returns what the end of a child is in its parent's history.
func (p *Partition) endOfChild(terminal *journalpb.Event) *journalpb.Event {
	switch body := terminal.Body.(type) {
	case *journalpb.Event_OrchestrationCompleted:
		return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationCompleted{
			SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: body.OrchestrationCompleted.Output},
		}}
	case *journalpb.Event_OrchestrationFailed:
		return childFailure(body.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationCancelled:
		return p.childCanceled(body.OrchestrationCancelled.Reason)
	case *journalpb.Event_OrchestrationTerminated:
		return childFailed(errors.Join(replay.ErrTerminated, errors.New(body.OrchestrationTerminated.Reason)))
	}
	return nil
}

// childCanceled has the words of protocol 3 only if every node reads them: which they are is
// told by the message.
func (p *Partition) childCanceled(reason string) *journalpb.Event {
	record := replay.EncodeError(&replay.CanceledError{Reason: reason})
	if reason != "" && !p.incarnations() {
		record.Message = reason
	}
	return childFailure(record)
}

func childFailed(err error) *journalpb.Event { return childFailure(replay.EncodeError(err)) }

func childFailure(record *journalpb.Error) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationFailed{
		SubOrchestrationFailed: &journalpb.SubOrchestrationFailed{Error: record},
	}}
}

// cancelChild asks a child to cancel, because its parent has given it up.
func (p *Partition) cancelChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, pause time.Duration) {
	if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
		return
	}
	if p.elsewhere(child.Instance) {
		if event := closing(child.ClosePolicy); event != nil {
			p.cross(&Crossing{Instance: child.Instance, Event: event, ChildOf: parent}, nil, pause)
		}
		return
	}
	known, ok := p.journal.Instance(child.Instance)
	if !ok {
		// Its start is on its way and will be repeated until it is taken.
		p.clock.after(pause, func() { p.cancelChild(parent, child, growing(pause)) })
		return
	}
	if !proto.Equal(known.Parent, parent) {
		return // a stranger under the child's ID
	}
	p.closeChild(known, child.ClosePolicy)
}

// closeChild applies a close policy to this run of a child.
func (p *Partition) closeChild(child *journalpb.Instance, policy journalpb.ClosePolicy) {
	if event := closing(policy); event != nil {
		p.insist(child.Instance, Message{Message: replay.Message{Incarnation: child.Incarnation, Event: event}, Internal: true})
	}
}

// closing returns what a close policy asks of a child, nil for nothing.
func closing(policy journalpb.ClosePolicy) *journalpb.Event {
	const reason = "given up by its parent"
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

// closeOrphan applies its close policy to a child whose parent does not wait for
// it any more. A child of a parent that was purged is left alone: nobody knows
// any more whether it was to be abandoned. Of a parent in another partition this
// one only believes what this node has heard; see Review.
func (p *Partition) closeOrphan(child *journalpb.Instance) {
	parents := p.replica(child.Parent.Instance)
	if p.elsewhere(child.Parent.Instance) && !givenUp(parents, child.Parent) {
		return
	}
	event, err := eventOf(parents, child.Parent)
	if err != nil {
		return
	}
	p.closeChild(child, event.GetSubOrchestrationScheduled().GetClosePolicy())
}
