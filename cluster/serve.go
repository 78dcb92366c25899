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

// serve answers a request. If this node does not lead, the failure names the leader that it knows.
// A panic becomes the call's failure.
func (n *Node) serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	var response *clusterpb.Response
	err := n.recoverCall(request, func() (err error) {
		response, err = n.handle(ctx, request)
		return err
	})
	if err != nil {
		return n.failureResponse(request, err)
	}
	response.Protocol = n.config.protocol
	return response
}

// failureResponse returns the response to a request that failed with an error.
func (n *Node) failureResponse(request *clusterpb.Request, err error) *clusterpb.Response {
	response := &clusterpb.Response{Protocol: n.config.protocol, Failure: toFailure(err)}
	leader, address := n.partitionFor(request).journal.Leader()
	if response.Failure.Code == codeNotLeader && leader != n.config.NodeID {
		response.Failure.Leader = address
	}
	return response
}

func (n *Node) handle(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := n.config.checkProtocol(request.Protocol); err != nil {
		return nil, err
	}
	if response, err := n.answerLocally(ctx, request); response != nil || err != nil {
		return response, err
	}
	if n.concernsAllPartitions(request) {
		return n.fanOut(ctx, request)
	}
	return n.partitionFor(request).handle(ctx, request)
}

// handle answers a request for the partition, if this node leads it. The response holds the index
// that a replica must have applied to show the call's effects.
func (g *partition) handle(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	response, err := g.execute(ctx, request)
	if err == nil && response.AppliedIndex == 0 {
		response.AppliedIndex = g.journal.AppliedIndex()
	}
	return response, wrapForgotten(request, err)
}

func (g *partition) execute(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if joinRequest := request.GetJoin(); joinRequest != nil {
		return g.handleJoin(ctx, request.Protocol, joinRequest)
	}
	g.awaitLeader(ctx)
	p := g.servingPartition()
	if p == nil {
		return nil, journal.ErrNotLeader
	}
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		response, err := g.start(ctx, p, request, call.Start)
		return response, g.confirmRejection(ctx, p, err)
	case *clusterpb.Request_Send:
		response, err := g.send(ctx, p, request, call.Send)
		return response, g.confirmRejection(ctx, p, err)
	case *clusterpb.Request_Control:
		response, err := g.control(ctx, p, request, call.Control)
		return response, g.confirmRejection(ctx, p, err)
	case *clusterpb.Request_Query:
		return g.query(ctx, p, request.Instance, call.Query)
	case *clusterpb.Request_Update:
		return g.update(ctx, p, request, call.Update)
	case *clusterpb.Request_Complete:
		return g.completeActivity(ctx, p, request.Instance, call.Complete)
	case *clusterpb.Request_Pending:
		return g.pending(ctx, p, request.Instance)
	case *clusterpb.Request_Purge:
		return g.purge(ctx, p, request, call.Purge)
	case *clusterpb.Request_RemoveMember:
		return g.removeMember(ctx, call.RemoveMember)
	case *clusterpb.Request_AdoptMember:
		return g.adoptMember(ctx, call.AdoptMember)
	case *clusterpb.Request_IssueToken:
		return g.issueToken(ctx, call.IssueToken)
	case *clusterpb.Request_RevokeToken:
		return g.revokeToken(ctx, call.RevokeToken)
	case *clusterpb.Request_CrossMessages:
		return g.receiveCrossMessages(ctx, p, call.CrossMessages)
	}
	if err := g.barrier(ctx); err != nil {
		return nil, err
	}
	return g.read(ctx, p, request)
}

// confirmRejection returns why an input was rejected, if a barrier confirms that this node still
// leads. Such a rejection follows from a read, and no append confirms it. A former leader that does
// not know its successor may lack the successor's commits.
func (g *partition) confirmRejection(ctx context.Context, p *actors.Partition, refusal error) error {
	switch {
	case refusal == nil:
		return nil
	case !errors.Is(refusal, ErrNotFound) && !errors.Is(refusal, ErrEnded) && !errors.Is(refusal, ErrInstanceExists) &&
		!errors.Is(refusal, ErrRequestIDReused):
		return refusal
	}
	if err := g.barrier(ctx); err != nil {
		return fmt.Errorf("%w: %v", journal.ErrNotLeader, err) // nothing was done, whatever the reason
	}
	if g.actorPartition.Load() != p {
		return journal.ErrNotLeader
	}
	return refusal
}

func (g *partition) start(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.StartRequest) (*clusterpb.Response, error) {
	instance := request.Instance
	if begun := g.findStartedRun(request, r); begun.first > 0 {
		return g.startResponse(actors.Answer{FirstExecution: begun.first, Incarnation: begun.incarnation}), nil
	}
	switch found, err := g.findRunWithEvent(ctx, request, r.Send); {
	case err != nil:
		return nil, err
	case found.first > 0:
		return g.startResponse(actors.Answer{FirstExecution: found.first, Incarnation: found.incarnation, Attached: true}), nil
	}
	version := r.Version
	if version == "" {
		version = g.registry.Newest(r.Name)
	}
	if !g.registry.HasOrchestration(r.Name, version) {
		return nil, fmt.Errorf("%w: %q, version %q", ErrNoCode, r.Name, version)
	}
	started := deliverToInstance(p, instance, actors.Message{
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
	var sent *input
	if r.Send != nil {
		// Right after the start, so that both are in one turn.
		sent = g.deliver(p, request, r.Send.RequestId, externalEventMessage(r.Send))
	}
	answer, err := await(ctx, started)
	if err == nil && sent != nil {
		_, _, err = sent.await(ctx)
		err = g.ignoreIfRecorded(ctx, request, r.Send.RequestId, err)
		if errors.Is(err, ErrBusy) {
			// The start is committed; the same call can be repeated to send the event.
			err = fmt.Errorf("%w: the event: %v", journal.ErrUnknownOutcome, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return g.startResponse(answer), nil
}

// startResponse returns the response to a start. A replica that has applied its AppliedIndex shows
// this run and not an earlier one.
func (g *partition) startResponse(a actors.Answer) *clusterpb.Response {
	return &clusterpb.Response{AppliedIndex: g.journal.AppliedIndex(), Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{
		FirstExecution: a.FirstExecution, Attached: a.Attached, Overloaded: a.Overloaded,
		Incarnation: a.Incarnation,
	}}}
}

var reusePolicies = map[clusterpb.ReusePolicy]actors.Reuse{
	clusterpb.ReusePolicy_REUSE_POLICY_NEVER:  actors.ReuseNever,
	clusterpb.ReusePolicy_REUSE_POLICY_ENDED:  actors.ReuseEnded,
	clusterpb.ReusePolicy_REUSE_POLICY_FAILED: actors.ReuseFailed,
}

// externalEventMessage returns the message of a sent event. Its three protobuf messages are one
// allocation.
func externalEventMessage(r *clusterpb.SendRequest) actors.Message {
	created := &struct {
		event journalpb.Event
		body  journalpb.Event_ExternalEvent
		sent  journalpb.ExternalEvent
	}{}
	created.sent.Name, created.sent.Data, created.sent.RequestId = r.Name, r.Data, r.RequestId
	created.body.ExternalEvent = &created.sent
	created.event.Body = &created.body
	return actors.Message{Message: replay.Message{Event: &created.event}}
}

func (g *partition) send(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.SendRequest) (*clusterpb.Response, error) {
	_, _, err := g.deliver(p, request, r.RequestId, externalEventMessage(r)).await(ctx)
	if err := g.ignoreIfRecorded(ctx, request, r.RequestId, err); err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Send{Send: new(clusterpb.SendResult)}}, nil
}

// deliverToInstance delivers a message to an instance and returns the channel for the answer.
func deliverToInstance(p *actors.Partition, instance string, m actors.Message) <-chan actors.Answer {
	answers := make(chan actors.Answer, 1)
	m.Done = func(a actors.Answer) { answers <- a }
	p.Deliver(instance, m)
	return answers
}

// await waits for an answer and returns its error. If ctx ends first, the outcome is unknown.
func await(ctx context.Context, answers <-chan actors.Answer) (actors.Answer, error) {
	answer, err := awaitAnswer(ctx, answers)
	return answer, firstError(err, answer.Err)
}

// awaitAnswer waits for an answer. Its Err may come from the instance's code. The returned error is
// that of ctx, if ctx ended before the answer.
func awaitAnswer(ctx context.Context, answers <-chan actors.Answer) (actors.Answer, error) {
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		return actors.Answer{}, ctx.Err()
	}
}

func (g *partition) get(p *actors.Partition, instance string) (*clusterpb.Response, error) {
	known, ok := g.journal.Instance(instance)
	if !ok {
		return nil, ErrNotFound
	}
	status, err := g.statusOf(p, known)
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Get{Get: &clusterpb.GetResult{Status: status}}}, nil
}

// statusOf returns the status of an instance.
func (g *partition) statusOf(p *actors.Partition, known *journalpb.Instance) (*clusterpb.Status, error) {
	status := indexedStatus(known)
	return status, g.fillStatus(p, known, status)
}

// fillStatus adds what only the histories hold. p is nil where this node does not lead.
func (g *partition) fillStatus(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	if err := g.fillState(p, known, status); err != nil {
		return err
	}
	return g.fillCustomStatus(known, status)
}

// indexedStatus returns the part of a status that the index holds.
func indexedStatus(known *journalpb.Instance) *clusterpb.Status {
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
		Incarnation:    known.Incarnation,
	}
}

// fillCustomStatus adds the custom status, set in this execution or carried over from an earlier
// one.
func (g *partition) fillCustomStatus(known *journalpb.Instance, status *clusterpb.Status) error {
	if known.StatusEventId == 0 && known.Execution == known.FirstExecution {
		return nil
	}
	source := max(known.StatusEventId, 1)
	event, err := g.journal.Event(known.Instance, known.Execution, source)
	if err != nil {
		return err
	}
	status.CustomStatus = event.GetOrchestrationStarted().GetStatus()
	if set := event.GetStatusSet(); set != nil {
		status.CustomStatus = set.Value
	}
	return nil
}

// fillState adds the instance's state, and its result or mismatch.
func (g *partition) fillState(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	if known.Status != journalpb.Status_STATUS_RUNNING {
		last, err := g.journal.Event(known.Instance, known.Execution, known.LastEventId)
		if err == nil {
			fillEnd(last, status)
		}
		return err
	}
	status.State = string(g.stateOf(p, known))
	if mismatch := mismatchOf(p, known.Instance); mismatch != nil {
		status.Mismatch = &clusterpb.Mismatch{
			Kind:     string(mismatch.Kind),
			EventId:  mismatch.EventID,
			Expected: mismatch.Expected,
			Found:    mismatch.Found,
			Source:   mismatch.Source,
		}
	} else if status.State == string(Stalled) {
		c := known.Condition
		status.Mismatch = &clusterpb.Mismatch{Kind: c.Mismatch, EventId: c.EventId, Expected: c.Expected, Found: c.Found, Source: c.Source}
	}
	return nil
}

// mismatchOf returns why an instance is stalled, nil if it is not, or if this node does not lead.
func mismatchOf(p *actors.Partition, instance string) *replay.Mismatch {
	if p == nil {
		return nil
	}
	mismatch, _ := p.StallReason(instance).(*replay.Mismatch)
	return mismatch
}

// stateOf returns the state of an instance. p is nil where this node does not lead.
func (g *partition) stateOf(p *actors.Partition, known *journalpb.Instance) State {
	if ended, ok := endStates[known.Status]; ok {
		return ended
	}
	switch {
	case mismatchOf(p, known.Instance) != nil:
		return Stalled
	case p != nil && !g.registry.HasOrchestration(known.Name, known.Version):
		return WaitingForCode
	case known.Condition.GetKind() == journalpb.ConditionKind_CONDITION_KIND_STALLED:
		return Stalled
	case known.Suspended:
		return Suspended
	}
	return Running
}

var endStates = map[journalpb.Status]State{
	journalpb.Status_STATUS_COMPLETED:  Completed,
	journalpb.Status_STATUS_FAILED:     Failed,
	journalpb.Status_STATUS_CANCELED:   Canceled,
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
	case *journalpb.Event_OrchestrationCanceled:
		status.State = string(Canceled)
		status.Reason = body.OrchestrationCanceled.Reason
	case *journalpb.Event_OrchestrationTerminated:
		status.State = string(Terminated)
		status.Reason = body.OrchestrationTerminated.Reason
	case *journalpb.Event_OrchestrationContinuedAsNew:
		status.State = string(ContinuedAsNew)
	}
}

func (g *partition) history(ctx context.Context, instance string, r *clusterpb.HistoryRequest) (*clusterpb.Response, error) {
	if err := g.answerLimiter.reserve(ctx, r.Paged); err != nil {
		return nil, err
	}
	known, ok := g.journal.Instance(instance)
	if !ok || r.Execution > known.Execution { // Events rejects an older one that is gone
		return nil, ErrNotFound
	}
	result := &clusterpb.HistoryResult{Execution: r.Execution}
	if result.Execution == 0 {
		result.Execution = known.Execution
	}
	size := 0
	for event, err := range g.journal.Events(instance, result.Execution, max(r.FromEventId, 1)) {
		if err != nil {
			return nil, err
		}
		if r.Paged && size >= historyPageBytes {
			result.More = true
			break
		}
		encoded, err := proto.Marshal(event)
		if err != nil {
			return nil, err
		}
		result.Events = append(result.Events, encoded)
		size += len(encoded)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_History{History: result}}, nil
}
