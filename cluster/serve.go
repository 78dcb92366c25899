package cluster

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// serve answers a request on the node that leads.
func (n *Node) serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	response, err := n.answer(ctx, request)
	if err != nil {
		response = &clusterpb.Response{Failure: failure(err)}
	}
	response.Protocol = protocolVersion
	return response
}

func (n *Node) answer(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if request.Protocol < protocolVersion-1 || request.Protocol > protocolVersion+1 {
		return nil, fmt.Errorf("%w: %d and %d", ErrProtocol, request.Protocol, protocolVersion)
	}
	partition := n.partition.Load()
	if partition == nil {
		return nil, journal.ErrNotLeader
	}
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		return n.start(ctx, partition, request.Instance, call.Start)
	case *clusterpb.Request_Send:
		return n.send(ctx, partition, request.Instance, call.Send)
	case *clusterpb.Request_Get:
		return n.get(ctx, partition, request.Instance)
	case *clusterpb.Request_History:
		return n.history(ctx, request.Instance, call.History)
	}
	return nil, fmt.Errorf("%w: a call that this node does not know", ErrProtocol)
}

func (n *Node) start(ctx context.Context, p *actors.Partition, instance string, r *clusterpb.StartRequest) (*clusterpb.Response, error) {
	if !n.registry.HasOrchestration(r.Name, r.Version) {
		return nil, fmt.Errorf("%w: %q", ErrNoCode, r.Name)
	}
	answer, err := deliver(ctx, p, instance, actors.Message{
		Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:      r.Name,
				Version:   r.Version,
				Input:     r.Input,
				RequestId: r.RequestId,
				Tags:      r.Tags,
			},
		}}},
		Attach: r.Attach,
	})
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{
		FirstExecution: answer.Instance.GetFirstExecution(),
		Attached:       answer.Attached,
	}}}, nil
}

func (n *Node) send(ctx context.Context, p *actors.Partition, instance string, r *clusterpb.SendRequest) (*clusterpb.Response, error) {
	_, err := deliver(ctx, p, instance, actors.Message{
		Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_ExternalEvent{
			ExternalEvent: &journalpb.ExternalEvent{Name: r.Name, Data: r.Data, RequestId: r.RequestId},
		}}},
	})
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Send{Send: new(clusterpb.SendResult)}}, nil
}

// deliver gives a message to an instance and waits for the answer. When ctx
// ends first the outcome is unknown.
func deliver(ctx context.Context, p *actors.Partition, instance string, m actors.Message) (actors.Answer, error) {
	answers := make(chan actors.Answer, 1)
	m.Done = func(a actors.Answer) { answers <- a }
	p.Deliver(instance, m)
	select {
	case answer := <-answers:
		return answer, answer.Err
	case <-ctx.Done():
		return actors.Answer{}, ctx.Err()
	}
}

func (n *Node) get(ctx context.Context, p *actors.Partition, instance string) (*clusterpb.Response, error) {
	if err := n.journal.Barrier(ctx); err != nil {
		return nil, err
	}
	known, ok := n.journal.Instance(instance)
	if !ok {
		return nil, ErrNotFound
	}
	status := &clusterpb.Status{
		Instance:       known.Instance,
		Execution:      known.Execution,
		FirstExecution: known.FirstExecution,
		Name:           known.Name,
		Version:        known.Version,
		LastEventId:    known.LastEventId,
		CreatedAt:      known.CreatedAt,
		UpdatedAt:      known.UpdatedAt,
		Parent:         known.Parent,
	}
	if err := n.fillState(p, known, status); err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Get{Get: &clusterpb.GetResult{Status: status}}}, nil
}

// fillState adds what the instance is doing, or how it ended.
func (n *Node) fillState(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	if known.Status != journalpb.Status_STATUS_RUNNING {
		last, err := n.journal.Event(known.Instance, known.Execution, known.LastEventId)
		if err != nil {
			return err
		}
		fillEnd(last, status)
		return nil
	}
	status.State = string(Running)
	if !n.registry.HasOrchestration(known.Name, known.Version) {
		status.State = string(WaitingForCode)
	}
	if mismatch, stalled := p.Stalled(known.Instance).(*replay.Mismatch); stalled {
		status.State = string(Stalled)
		status.Mismatch = &clusterpb.Mismatch{
			Kind:     string(mismatch.Kind),
			EventId:  mismatch.EventID,
			Expected: mismatch.Expected,
			Found:    mismatch.Found,
			Source:   mismatch.Source,
		}
	}
	return nil
}

func fillEnd(last *journalpb.Event, status *clusterpb.Status) {
	switch body := last.Body.(type) {
	case *journalpb.Event_OrchestrationCompleted:
		status.State = string(Completed)
		status.Output = body.OrchestrationCompleted.Output
	case *journalpb.Event_OrchestrationFailed:
		status.State = string(Failed)
		status.Error = body.OrchestrationFailed.Error
	case *journalpb.Event_OrchestrationCancelled:
		status.State = string(Cancelled)
		status.Reason = body.OrchestrationCancelled.Reason
	case *journalpb.Event_OrchestrationTerminated:
		status.State = string(Terminated)
		status.Reason = body.OrchestrationTerminated.Reason
	}
}

func (n *Node) history(ctx context.Context, instance string, r *clusterpb.HistoryRequest) (*clusterpb.Response, error) {
	if err := n.journal.Barrier(ctx); err != nil {
		return nil, err
	}
	known, ok := n.journal.Instance(instance)
	if !ok || r.Execution > known.Execution {
		return nil, ErrNotFound
	}
	result := &clusterpb.HistoryResult{Execution: r.Execution}
	if result.Execution == 0 {
		result.Execution = known.Execution
	}
	for event, err := range n.journal.Events(instance, result.Execution, 1) {
		if err != nil {
			return nil, err
		}
		encoded, err := proto.Marshal(event)
		if err != nil {
			return nil, err
		}
		result.Events = append(result.Events, encoded)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_History{History: result}}, nil
}
