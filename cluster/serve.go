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

// serve answers a request on the node that leads, or says which one might. A panic is the
// call's failure.
func (n *Node) serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	var response *clusterpb.Response
	err := n.recovered(request, func() (err error) {
		response, err = n.answer(ctx, request)
		return err
	})
	if err != nil {
		return n.refusal(request, err)
	}
	response.Protocol = n.config.protocol
	return response
}

// refusal is the answer to a request that met an error.
func (n *Node) refusal(request *clusterpb.Request, err error) *clusterpb.Response {
	response := &clusterpb.Response{Protocol: n.config.protocol, Failure: failure(err)}
	leader, address := n.groupFor(request).journal.Leader()
	if response.Failure.Code == codeNotLeader && leader != n.config.NodeID {
		response.Failure.Leader = address
	}
	return response
}

func (n *Node) answer(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := n.config.understands(request.Protocol); err != nil {
		return nil, err
	}
	if response, err := n.nearby(ctx, request); response != nil || err != nil {
		return response, err
	}
	if n.concernsAll(request) {
		return n.gather(ctx, request)
	}
	return n.groupFor(request).answer(ctx, request)
}

// answer answers a request that concerns the group, if this node leads it. The answer says
// up to which index a replica must have come to show what the call has done.
func (g *group) answer(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	response, err := g.carryOut(ctx, request)
	if err == nil && response.AppliedIndex == 0 {
		response.AppliedIndex = g.journal.AppliedIndex()
	}
	return response, unlessForgotten(request, err)
}

func (g *group) carryOut(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if enrol := request.GetEnrol(); enrol != nil {
		return g.enrolOther(ctx, request.Protocol, enrol)
	}
	g.hold(ctx)
	partition := g.serving()
	if partition == nil {
		return nil, journal.ErrNotLeader
	}
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		response, err := g.start(ctx, partition, request, call.Start)
		return response, g.confirm(ctx, partition, err)
	case *clusterpb.Request_Send:
		response, err := g.send(ctx, partition, request, call.Send)
		return response, g.confirm(ctx, partition, err)
	case *clusterpb.Request_Signal:
		response, err := g.signal(ctx, partition, request, call.Signal)
		return response, g.confirm(ctx, partition, err)
	case *clusterpb.Request_Query:
		return g.query(ctx, partition, request.Instance, call.Query)
	case *clusterpb.Request_Update:
		return g.update(ctx, partition, request, call.Update)
	case *clusterpb.Request_Complete:
		return g.complete(ctx, partition, request.Instance, call.Complete)
	case *clusterpb.Request_Pending:
		return g.pending(ctx, partition, request.Instance)
	case *clusterpb.Request_Purge:
		return g.purge(ctx, partition, request, call.Purge)
	case *clusterpb.Request_RemoveMember:
		return g.removeOther(ctx, call.RemoveMember)
	case *clusterpb.Request_AdoptMember:
		return g.adoptOther(ctx, call.AdoptMember)
	case *clusterpb.Request_IssueToken:
		return g.issueToken(ctx, call.IssueToken)
	case *clusterpb.Request_RevokeToken:
		return g.revokeToken(ctx, call.RevokeToken)
	case *clusterpb.Request_Cross:
		return g.cross(ctx, partition, call.Cross)
	}
	if err := g.barrier(ctx); err != nil {
		return nil, err
	}
	return g.read(ctx, partition, request)
}

// confirm passes on why an input was refused, if that rests on what a leader has
// read. No append shows that this node still led then: one that has lost the lead
// and does not know it yet may lack what another has committed.
func (g *group) confirm(ctx context.Context, p *actors.Partition, refusal error) error {
	switch {
	case refusal == nil:
		return nil
	case !errors.Is(refusal, ErrNotFound) && !errors.Is(refusal, ErrEnded) && !errors.Is(refusal, ErrInstanceExists) &&
		!errors.Is(refusal, ErrRequestID):
		return refusal
	}
	if err := g.barrier(ctx); err != nil {
		return fmt.Errorf("%w: %v", journal.ErrNotLeader, err) // for whatever reason: nothing was done
	}
	if g.partition.Load() != p {
		return journal.ErrNotLeader
	}
	return refusal
}

func (g *group) start(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.StartRequest) (*clusterpb.Response, error) {
	instance := request.Instance
	if begun := g.begunBy(request, r); begun.first > 0 {
		return g.startResult(actors.Answer{FirstExecution: begun.first, Incarnation: begun.incarnation}), nil
	}
	switch met, err := g.sentTo(ctx, request, r.Send); {
	case err != nil:
		return nil, err
	case met.first > 0:
		return g.startResult(actors.Answer{FirstExecution: met.first, Incarnation: met.incarnation, Attached: true}), nil
	}
	version := r.Version
	if version == "" {
		version = g.registry.Newest(r.Name)
	}
	if !g.registry.HasOrchestration(r.Name, version) {
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
	var sent *input
	if r.Send != nil {
		// Right behind the start, so that the two are one turn.
		sent = g.deliver(p, request, r.Send.RequestId, externalEvent(r.Send))
	}
	answer, err := await(ctx, started)
	if err == nil && sent != nil {
		_, _, err = sent.await(ctx)
		err = g.unlessRecorded(ctx, request, r.Send.RequestId, err)
		if errors.Is(err, ErrBusy) {
			// Half of it is done, and the same call does the rest.
			err = fmt.Errorf("%w: the event: %v", journal.ErrUnknownOutcome, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return g.startResult(answer), nil
}

// startResult tells also from which index on replicas show the run, and not one that
// was before it.
func (g *group) startResult(a actors.Answer) *clusterpb.Response {
	return &clusterpb.Response{AppliedIndex: g.journal.AppliedIndex(), Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{
		FirstExecution: a.FirstExecution, Attached: a.Attached, Crowded: a.Crowded,
		Incarnation: a.Incarnation,
	}}}
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

func (g *group) send(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.SendRequest) (*clusterpb.Response, error) {
	_, _, err := g.deliver(p, request, r.RequestId, externalEvent(r)).await(ctx)
	if err := g.unlessRecorded(ctx, request, r.RequestId, err); err != nil {
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

// await waits for an answer and returns its error. When ctx ends first the outcome is
// unknown.
func await(ctx context.Context, answers <-chan actors.Answer) (actors.Answer, error) {
	answer, err := awaitAnswer(ctx, answers)
	return answer, firstError(err, answer.Err)
}

// awaitAnswer waits for an answer, whose error may be that of the instance's code. The
// other error is ctx's: there is no answer.
func awaitAnswer(ctx context.Context, answers <-chan actors.Answer) (actors.Answer, error) {
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		return actors.Answer{}, ctx.Err()
	}
}

func (g *group) get(p *actors.Partition, instance string) (*clusterpb.Response, error) {
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

// statusOf says what is known of an instance, on the node that leads.
func (g *group) statusOf(p *actors.Partition, known *journalpb.Instance) (*clusterpb.Status, error) {
	status := indexed(known)
	return status, g.fill(p, known, status)
}

// fill adds what the histories know. p is nil where this node does not lead.
func (g *group) fill(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	if err := g.fillState(p, known, status); err != nil {
		return err
	}
	return g.fillPublished(known, status)
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
		Incarnation:    known.Incarnation,
	}
}

// fillPublished adds what the instance has published last: in this execution,
// or in one before.
func (g *group) fillPublished(known *journalpb.Instance, status *clusterpb.Status) error {
	if known.StatusEventId == 0 && known.Execution == known.FirstExecution {
		return nil
	}
	source := max(known.StatusEventId, 1)
	event, err := g.journal.Event(known.Instance, known.Execution, source)
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
func (g *group) fillState(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	if known.Status != journalpb.Status_STATUS_RUNNING {
		last, err := g.journal.Event(known.Instance, known.Execution, known.LastEventId)
		if err == nil {
			fillEnd(last, status)
		}
		return err
	}
	status.State = string(g.stateOf(p, known))
	if mismatch := stalled(p, known.Instance); mismatch != nil {
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
func (g *group) stateOf(p *actors.Partition, known *journalpb.Instance) State {
	if ended, ok := endStates[known.Status]; ok {
		return ended
	}
	switch {
	case stalled(p, known.Instance) != nil:
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

func (g *group) history(ctx context.Context, instance string, r *clusterpb.HistoryRequest) (*clusterpb.Response, error) {
	if err := g.answers.reserve(ctx, r.Paged); err != nil {
		return nil, err
	}
	known, ok := g.journal.Instance(instance)
	if !ok || r.Execution > known.Execution { // an older one may be gone, which Events says
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
