package actors

import (
	"errors"
	"fmt"

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
				Version: child.Version,
				Input:   child.Input,
				Parent:  parent,
			},
		}}},
		Attach:   true,
		Internal: true,
		Done:     func(a Answer) { p.childStarted(parent, child, a) },
	})
}

// childStarted looks at whom the start has met.
func (p *Partition) childStarted(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, a Answer) {
	if !a.Dropped {
		return // begun just now: its end will be reported when it comes
	}
	p.meetChild(parent, child, a.Instance)
}

// takeUpChild goes on with a child where the node before has left it.
func (p *Partition) takeUpChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled) {
	known, ok := p.journal.Instance(child.Instance)
	if !ok {
		p.startChild(parent, child)
		return
	}
	p.meetChild(parent, child, known)
}

// meetChild deals with an instance that exists under the child's ID: the child
// itself, running or ended, or a stranger.
func (p *Partition) meetChild(parent *journalpb.OperationRef, child *journalpb.SubOrchestrationScheduled, known *journalpb.Instance) {
	switch {
	case !proto.Equal(known.Parent, parent):
		p.insist(parent.Instance, completion(parent, childFailed(fmt.Errorf("%w: %q", replay.ErrInstanceExists, child.Instance)), nil))
	case known.Status != journalpb.Status_STATUS_RUNNING:
		last, err := p.journal.Event(known.Instance, known.Execution, known.LastEventId)
		if err != nil {
			p.logger.Error("read end of child", "instance", known.Instance, "error", err)
			return
		}
		p.reportEnd(known.Instance, last)
	}
}

// reportEnd tells the parent of an instance, if it has one, how it ended, until
// the parent has recorded it or does not care any more.
func (p *Partition) reportEnd(instance string, terminal *journalpb.Event) {
	known, ok := p.journal.Instance(instance)
	if !ok || known.Parent == nil {
		return
	}
	if end := endOfChild(terminal); end != nil {
		p.insist(known.Parent.Instance, completion(known.Parent, end, nil))
	}
}

// endOfChild returns what the end of a child is in its parent's history.
func endOfChild(terminal *journalpb.Event) *journalpb.Event {
	switch body := terminal.Body.(type) {
	case *journalpb.Event_OrchestrationCompleted:
		return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationCompleted{
			SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: body.OrchestrationCompleted.Output},
		}}
	case *journalpb.Event_OrchestrationFailed:
		return childFailure(body.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationCancelled:
		return childFailed(&replay.CanceledError{Reason: body.OrchestrationCancelled.Reason})
	case *journalpb.Event_OrchestrationTerminated:
		return childFailed(errors.Join(replay.ErrTerminated, errors.New(body.OrchestrationTerminated.Reason)))
	}
	return nil
}

func childFailed(err error) *journalpb.Event { return childFailure(replay.EncodeError(err)) }

func childFailure(record *journalpb.Error) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationFailed{
		SubOrchestrationFailed: &journalpb.SubOrchestrationFailed{Error: record},
	}}
}

// cancelChild asks a child to cancel, because its parent has given it up.
func (p *Partition) cancelChild(child *journalpb.SubOrchestrationScheduled) {
	if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
		return
	}
	p.insist(child.Instance, Message{
		Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
			OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: "given up by its parent"},
		}}},
		Internal: true,
	})
}
