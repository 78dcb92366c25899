package cluster

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// serve answers a request on the node that leads, or says which one might.
func (n *Node) serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	response, err := n.answer(ctx, request)
	if err != nil {
		response = &clusterpb.Response{Failure: failure(err)}
		if leader, address := n.journal.Leader(); response.Failure.Code == codeNotLeader && leader != n.config.NodeID {
			response.Failure.Leader = address
		}
	}
	response.Protocol = n.config.protocol
	return response
}

func (n *Node) answer(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := n.config.understands(request.Protocol); err != nil {
		return nil, err
	}
	if response, err := n.nearby(ctx, request); response != nil || err != nil {
		return response, err
	}
	if enrol := request.GetEnrol(); enrol != nil {
		return n.enrolOther(ctx, request.Protocol, enrol)
	}
	n.hold(ctx)
	partition := n.serving()
	if partition == nil {
		return nil, journal.ErrNotLeader
	}
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		response, err := n.start(ctx, partition, request, call.Start)
		return response, n.confirm(ctx, partition, err)
	case *clusterpb.Request_Send:
		response, err := n.send(ctx, partition, request, call.Send)
		return response, n.confirm(ctx, partition, err)
	case *clusterpb.Request_Signal:
		response, err := n.signal(ctx, partition, request, call.Signal)
		return response, n.confirm(ctx, partition, err)
	case *clusterpb.Request_Query:
		return n.query(ctx, partition, request.Instance, call.Query)
	case *clusterpb.Request_Update:
		return n.update(ctx, partition, request, call.Update)
	case *clusterpb.Request_Complete:
		return n.complete(ctx, partition, request.Instance, call.Complete)
	case *clusterpb.Request_Pending:
		return n.pending(ctx, partition, request.Instance)
	case *clusterpb.Request_Purge:
		return n.purge(ctx, partition, call.Purge)
	case *clusterpb.Request_RemoveMember:
		return n.removeOther(ctx, call.RemoveMember)
	case *clusterpb.Request_IssueToken:
		return n.issueToken(ctx, call.IssueToken)
	}
	if err := n.barrier(ctx); err != nil {
		return nil, err
	}
	return n.read(ctx, partition, request)
}

// confirm passes on why an input was refused, if that rests on what a leader has
// read. No append shows that this node still led then: one that has lost the lead
// and does not know it yet may lack what another has committed.
func (n *Node) confirm(ctx context.Context, p *actors.Partition, refusal error) error {
	switch {
	case refusal == nil:
		return nil
	case !errors.Is(refusal, ErrNotFound) && !errors.Is(refusal, ErrEnded) && !errors.Is(refusal, ErrInstanceExists):
		return refusal
	}
	if err := n.barrier(ctx); err != nil {
		return fmt.Errorf("%w: %v", journal.ErrNotLeader, err) // for whatever reason: nothing was done
	}
	if n.partition.Load() != p {
		return journal.ErrNotLeader
	}
	return refusal
}

func (n *Node) start(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.StartRequest) (*clusterpb.Response, error) {
	instance := request.Instance
	if first := n.begunBy(request, r); first > 0 {
		return startResult(first, false), nil
	}
	version := r.Version
	if version == "" {
		version = n.registry.Newest(r.Name)
	}
	if !n.registry.HasOrchestration(r.Name, version) {
		return nil, fmt.Errorf("%w: %q, version %q", ErrNoCode, r.Name, version)
	}
	started := send(p, instance, actors.Message{
		Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:      r.Name,
				Version:   version,
				Input:     r.Input,
				RequestId: r.RequestId,
				Tags:      r.Tags,
				StartAt:   r.StartAt,
				Trace:     r.Trace,
			},
		}}},
		Attach: r.Attach,
		Reuse:  reusePolicies[r.Reuse],
	})
	var sent <-chan actors.Answer
	if r.Send != nil {
		// Right behind the start, so that the two are one turn.
		sent = send(p, instance, externalEvent(r.Send))
	}
	answer, err := await(ctx, started)
	if err == nil && sent != nil {
		_, err = await(ctx, sent)
		err = n.unlessRecorded(ctx, request, r.Send.RequestId, err)
		if errors.Is(err, ErrBusy) {
			// Half of it is done, and the same call does the rest.
			err = fmt.Errorf("%w: the event: %v", journal.ErrUnknownOutcome, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return startResult(answer.FirstExecution, answer.Attached), nil
}

func startResult(first uint64, attached bool) *clusterpb.Response {
	return &clusterpb.Response{Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{FirstExecution: first, Attached: attached}}}
}

var reusePolicies = map[clusterpb.ReusePolicy]actors.Reuse{
	clusterpb.ReusePolicy_REUSE_POLICY_NEVER:  actors.ReuseNever,
	clusterpb.ReusePolicy_REUSE_POLICY_ENDED:  actors.ReuseEnded,
	clusterpb.ReusePolicy_REUSE_POLICY_FAILED: actors.ReuseFailed,
}

// externalEvent returns the message of an event that was sent; the three messages
// that it is made of are one allocation.
func externalEvent(r *clusterpb.SendRequest) actors.Message {
	made := &struct {
		event journalpb.Event
		body  journalpb.Event_ExternalEvent
		sent  journalpb.ExternalEvent
	}{}
	made.sent.Name, made.sent.Data, made.sent.RequestId = r.Name, r.Data, r.RequestId
	made.body.ExternalEvent = &made.sent
	made.event.Body = &made.body
	return actors.Message{Message: replay.Message{Event: &made.event}}
}

func (n *Node) send(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.SendRequest) (*clusterpb.Response, error) {
	_, err := await(ctx, send(p, request.Instance, externalEvent(r)))
	if err := n.unlessRecorded(ctx, request, r.RequestId, err); err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Send{Send: new(clusterpb.SendResult)}}, nil
}

// send gives a message to an instance and returns where the answer will be.
func send(p *actors.Partition, instance string, m actors.Message) <-chan actors.Answer {
	answers := make(chan actors.Answer, 1)
	m.Done = func(a actors.Answer) { answers <- a }
	p.Deliver(instance, m)
	return answers
}

// await waits for an answer. When ctx ends first the outcome is unknown.
func await(ctx context.Context, answers <-chan actors.Answer) (actors.Answer, error) {
	select {
	case answer := <-answers:
		return answer, answer.Err
	case <-ctx.Done():
		return actors.Answer{}, ctx.Err()
	}
}

func (n *Node) get(p *actors.Partition, instance string) (*clusterpb.Response, error) {
	known, ok := n.journal.Instance(instance)
	if !ok {
		return nil, ErrNotFound
	}
	status, err := n.statusOf(p, known)
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Get{Get: &clusterpb.GetResult{Status: status}}}, nil
}

// statusOf says what is known of an instance, on the node that leads.
func (n *Node) statusOf(p *actors.Partition, known *journalpb.Instance) (*clusterpb.Status, error) {
	status := indexed(known)
	return status, n.fill(p, known, status)
}

// fill adds what the histories know. p is nil where this node does not lead.
func (n *Node) fill(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	if err := n.fillState(p, known, status); err != nil {
		return err
	}
	return n.fillPublished(known, status)
}

// indexed says what the index knows.
func indexed(known *journalpb.Instance) *clusterpb.Status {
	return &clusterpb.Status{
		Instance:       known.Instance,
		Execution:      known.Execution,
		FirstExecution: known.FirstExecution,
		Name:           known.Name,
		Version:        known.Version,
		LastEventId:    known.LastEventId,
		CreatedAt:      known.CreatedAt,
		UpdatedAt:      known.UpdatedAt,
		Parent:         known.Parent,
		Tags:           known.Tags,
	}
}

// fillPublished adds what the instance has published last: in this execution,
// or in one before.
func (n *Node) fillPublished(known *journalpb.Instance, status *clusterpb.Status) error {
	if known.StatusEventId == 0 && known.Execution == known.FirstExecution {
		return nil
	}
	source := max(known.StatusEventId, 1)
	event, err := n.journal.Event(known.Instance, known.Execution, source)
	if err != nil {
		return err
	}
	status.Published = event.GetOrchestrationStarted().GetStatus()
	if set := event.GetStatusSet(); set != nil {
		status.Published = set.Value
	}
	return nil
}

// fillState adds what the instance is doing, or how it ended.
func (n *Node) fillState(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	if known.Status != journalpb.Status_STATUS_RUNNING {
		last, err := n.journal.Event(known.Instance, known.Execution, known.LastEventId)
		if err == nil {
			fillEnd(last, status)
		}
		return err
	}
	status.State = string(n.stateOf(p, known))
	if mismatch := stalled(p, known.Instance); mismatch != nil {
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

// stalled returns why an instance is stalled, nil if it is not, or if this node
// does not lead.
func stalled(p *actors.Partition, instance string) *replay.Mismatch {
	if p == nil {
		return nil
	}
	mismatch, _ := p.Stalled(instance).(*replay.Mismatch)
	return mismatch
}

// stateOf says in a word what the instance is doing, or how it ended.
func (n *Node) stateOf(p *actors.Partition, known *journalpb.Instance) State {
	if ended, ok := endStates[known.Status]; ok {
		return ended
	}
	switch {
	case stalled(p, known.Instance) != nil:
		return Stalled
	case p != nil && !n.registry.HasOrchestration(known.Name, known.Version):
		return WaitingForCode
	case known.Suspended:
		return Suspended
	}
	return Running
}

var endStates = map[journalpb.Status]State{
	journalpb.Status_STATUS_COMPLETED:  Completed,
	journalpb.Status_STATUS_FAILED:     Failed,
	journalpb.Status_STATUS_CANCELLED:  Cancelled,
	journalpb.Status_STATUS_TERMINATED: Terminated,
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
	case *journalpb.Event_OrchestrationContinuedAsNew:
		status.State = string(ContinuedAsNew)
	}
}

func (n *Node) history(instance string, r *clusterpb.HistoryRequest) (*clusterpb.Response, error) {
	known, ok := n.journal.Instance(instance)
	if !ok || r.Execution > known.Execution { // an older one may be gone, which Events says
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
