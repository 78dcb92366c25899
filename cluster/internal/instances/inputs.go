package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Inputs delivers the inputs of clients to instances, on the leader.
type Inputs struct {
	Partition
	repetitions *repetitions
	reads       *Reads
	copySlot    copySlot
}

// NewInputs returns the inputs of a partition.
func NewInputs(g Partition) *Inputs {
	return &Inputs{Partition: g, repetitions: &repetitions{g}, reads: NewReads(g), copySlot: make(copySlot, 1)}
}

// CheckSameRun returns [actors.ErrForgotten] if another call began the latest run after the retried
// call was first sent.
func (i *Inputs) CheckSameRun(instance, requestID string, first uint64) error {
	return i.repetitions.CheckSameRun(instance, requestID, first)
}

// FindInput finds the input with a request ID in the latest run of an instance, or from a position
// on; nil if there is none.
func (i *Inputs) FindInput(ctx context.Context, instance string, from Position, requestID string) (Position, *journalpb.Event, error) {
	return i.repetitions.FindInput(ctx, instance, from, requestID)
}

// ConfirmRejection returns why an input was rejected, if a barrier confirms that this node still
// leads. Such a rejection follows from a read, and no append confirms it. A former leader that has
// not noticed its successor may lack the successor's commits.
func (i *Inputs) ConfirmRejection(ctx context.Context, p *actors.Partition, rejection error) error {
	switch {
	case rejection == nil:
		return nil
	case !errors.Is(rejection, actors.ErrNotFound) && !errors.Is(rejection, actors.ErrEnded) && !errors.Is(rejection, actors.ErrInstanceExists) &&
		!errors.Is(rejection, actors.ErrRequestIDReused) && !errors.As(rejection, new(*replay.PayloadError)):
		return rejection
	}
	if err := i.Barrier(ctx); err != nil {
		return fmt.Errorf("%w: %v", journal.ErrNotLeader, err) // nothing was done, whatever the reason
	}
	if !i.Leads(p) {
		return journal.ErrNotLeader
	}
	return rejection
}

// Start starts an instance, or attaches to it.
func (i *Inputs) Start(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.StartRequest) (*clusterpb.Response, error) {
	instance := request.Instance
	if begun := i.repetitions.findStartedRun(request, r); begun.first > 0 {
		if err := i.checkSameStart(instance, begun.first, r); err != nil {
			return nil, err
		}
		return i.startResponse(actors.Answer{FirstExecution: begun.first, Incarnation: begun.incarnation}), nil
	}
	switch found, err := i.repetitions.findRunWithInput(ctx, request, r); {
	case err != nil:
		return nil, err
	case found.first > 0:
		return i.startResponse(actors.Answer{FirstExecution: found.first, Incarnation: found.incarnation, Attached: true}), nil
	}
	if r.Reuse == clusterpb.ReusePolicy_REUSE_POLICY_TERMINATE && request.FirstIndex != nil {
		if err := i.repetitions.CheckSameRun(instance, r.RequestId, request.GetFirstIndex()); err != nil {
			return nil, err
		}
	}
	if err := i.checkSameOrchestration(instance, r); err != nil {
		return nil, err
	}
	version := r.Version
	if version == "" {
		version = i.Registry.Newest(r.Name)
	}
	if !i.Registry.HasOrchestration(r.Name, version) {
		return nil, noCodeError(r.Name, version)
	}
	if err := i.checkProtocol(r); err != nil {
		return nil, err
	}
	if err := cmp.Or(i.checkHeadersProtocol(r), i.checkHeadersProtocol(r.Send), i.checkHeadersProtocol(r.BeginWith)); err != nil {
		return nil, err
	}
	started := Deliver(p, instance, actors.Message{
		Message: engine.Message{Event: &journalpb.Event{Origin: originOf(request, request.Reason), Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{
				Name:      r.Name,
				Version:   version,
				Input:     r.Input,
				RequestId: r.RequestId,
				Tags:      r.Tags,
				StartAt:   r.StartAt,
				Deadline:  r.Deadline,
				Summary:   r.Summary,
				Retry:     r.Retry,
				Trace:     r.Trace,
				Headers:   r.Headers,
			},
		}}},
		Attach: r.Attach,
		Reuse:  reusePolicies[r.Reuse],
		Sent:   i.eventOfStart(r),
		Update: updateOfStart(r),
	})
	var sent *input
	if r.Send != nil {
		// Right after the start, so that both are in one turn.
		sent = i.repetitions.deliver(p, request, r.Send.RequestId, i.checkedEvent(request, r.Send))
	}
	answer, err := Await(ctx, started)
	if err != nil && sent != nil && errors.As(err, new(*replay.PayloadError)) {
		err = confirmRefusal(ctx, sent, err)
	}
	if err != nil && answer.Replaced {
		err = fmt.Errorf("%w: the existing run was terminated: %w", journal.ErrUnknownOutcome, err)
	}
	if err == nil && answer.Dropped && r.Reuse == clusterpb.ReusePolicy_REUSE_POLICY_TERMINATE {
		err = i.checkSameStart(instance, answer.FirstExecution, r)
	}
	if err == nil && sent != nil {
		_, _, err = sent.await(ctx)
		err = i.repetitions.ignoreIfRecorded(ctx, request, r.Send.RequestId, err)
		if errors.Is(err, actors.ErrBusy) {
			// The start is committed; the same call can be repeated to send the event.
			err = fmt.Errorf("%w: the event: %v", journal.ErrUnknownOutcome, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return i.startResponse(answer), nil
}

// checkHeadersProtocol returns an error for an input with headers while a member does not pass them
// on.
func (i *Inputs) checkHeadersProtocol(r interface{ GetHeaders() []*journalpb.Header }) error {
	if len(r.GetHeaders()) == 0 || i.Journal.Protocol() >= state.HeadersProtocol {
		return nil
	}
	return fmt.Errorf("%w: headers need protocol %d on every member", journal.ErrProtocol, state.HeadersProtocol)
}

// checkProtocol returns an error if a start has an option that some member does not know.
func (i *Inputs) checkProtocol(r *clusterpb.StartRequest) error {
	switch {
	case i.Journal.Protocol() >= state.DeadlinesProtocol:
	case r.Name == bulk.Name: // earlier builds do not ask for its rights
		return fmt.Errorf("%w: bulk jobs need protocol %d on every member", journal.ErrProtocol, state.DeadlinesProtocol)
	case r.Deadline != 0:
		return fmt.Errorf("%w: option Deadline needs protocol %d on every member", journal.ErrProtocol, state.DeadlinesProtocol)
	case r.Retry != nil || r.Summary != "":
		return i.CheckRunOptions()
	}
	return nil
}

// CheckRunOptions returns an error while some member does not know the options of runs that parents
// record.
func (i *Inputs) CheckRunOptions() error {
	if i.Journal.Protocol() >= state.RunOptionsProtocol {
		return nil
	}
	return fmt.Errorf("%w: options Retry and Summary of a run need protocol %d on every member", journal.ErrProtocol, state.RunOptionsProtocol)
}

// checkOperable returns an error for an activity of the engine, which no call can complete.
func checkOperable(scheduled *journalpb.Event) error {
	if strings.HasPrefix(scheduled.GetActivityScheduled().GetName(), schedules.ReservedPrefix) {
		return &replay.InvalidError{Field: "operation", Reason: "is an activity of the engine, which cannot be completed from outside"}
	}
	return nil
}

// checkSameStart returns [actors.ErrRequestIDReused] if a run was begun by a start of another
// orchestration or with another input.
func (i *Inputs) checkSameStart(instance string, execution uint64, r *clusterpb.StartRequest) error {
	event, err := i.Journal.Event(instance, execution, 1)
	if err != nil {
		return nil // it was purged meanwhile
	}
	requested := &journalpb.OrchestrationStarted{Name: r.Name, Input: r.Input}
	if !i.Registry.PayloadConverter().IsSameStart(requested, event.GetOrchestrationStarted()) {
		return actors.ErrRequestIDReused
	}
	return nil
}

// checkSameOrchestration returns an error for a start with an event that would attach to a running
// instance of another orchestration. The instance's actor checks all starts, but the event follows
// the start whatever the answer.
func (i *Inputs) checkSameOrchestration(instance string, r *clusterpb.StartRequest) error {
	if r.Send == nil { // most starts: no read of the store for them
		return nil
	}
	known, ok := i.Journal.Instance(instance)
	if !ok || known.Status != journalpb.Status_STATUS_RUNNING || known.Name == r.Name || known.RequestId == r.RequestId {
		return nil
	}
	return actors.OtherOrchestrationError(known.Name, r.Name)
}

// noCodeError says that the leader has no code for an orchestration.
func noCodeError(name, version string) error {
	err := &replay.NotRegisteredError{Kind: "orchestration", Name: name, Version: version}
	err.Host().Leader = fmt.Sprintf("tenuto: the leader has no code for the orchestration: %q, version %q", name, version)
	return err
}

// startResponse returns the response to a start. A replica that has applied its AppliedIndex shows
// this run and not an earlier one.
func (i *Inputs) startResponse(a actors.Answer) *clusterpb.Response {
	return &clusterpb.Response{AppliedIndex: i.Journal.AppliedIndex(), Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{
		FirstExecution: a.FirstExecution, Attached: a.Attached, Overloaded: a.Overloaded,
		Incarnation: a.Incarnation, Update: resultOfStart(a),
	}}}
}

var reusePolicies = map[clusterpb.ReusePolicy]actors.Reuse{
	clusterpb.ReusePolicy_REUSE_POLICY_NEVER:     actors.ReuseNever,
	clusterpb.ReusePolicy_REUSE_POLICY_ENDED:     actors.ReuseEnded,
	clusterpb.ReusePolicy_REUSE_POLICY_FAILED:    actors.ReuseFailed,
	clusterpb.ReusePolicy_REUSE_POLICY_TERMINATE: actors.ReuseTerminating,
}

// ExternalEvent returns the message of a sent event. Its three protobuf messages are one
// allocation.
func ExternalEvent(r *clusterpb.SendRequest) actors.Message {
	created := &struct {
		event journalpb.Event
		body  journalpb.Event_ExternalEvent
		sent  journalpb.ExternalEvent
	}{}
	created.sent.Name, created.sent.Data, created.sent.RequestId, created.sent.Headers = r.Name, r.Data, r.RequestId, r.Headers
	created.body.ExternalEvent = &created.sent
	created.event.Body = &created.body
	return actors.Message{Message: engine.Message{Event: &created.event}}
}

// payloadRefusalProtocol is the first protocol in which events are refused because of their data:
// older builds do not understand the failure.
const payloadRefusalProtocol = 4

// checkedEvent returns the message of a sent event, which is recorded only if its data fits the
// code of the receiver.
func (i *Inputs) checkedEvent(request *clusterpb.Request, r *clusterpb.SendRequest) actors.Message {
	m := ExternalEvent(r)
	m.Event.Origin = originOf(request, request.Reason)
	m.CheckData = i.Journal.Protocol() >= payloadRefusalProtocol
	return m
}

// eventOfStart returns the event that is sent with a start and must fit the code; nil if there is
// none.
func (i *Inputs) eventOfStart(r *clusterpb.StartRequest) *journalpb.ExternalEvent {
	if r.Send == nil || i.Journal.Protocol() < payloadRefusalProtocol {
		return nil
	}
	return &journalpb.ExternalEvent{Name: r.Send.Name, Data: r.Send.Data, RequestId: r.Send.RequestId, Headers: r.Send.Headers}
}

// confirmRefusal returns why a start was refused because of its event. If another call began a run
// meanwhile, that run may have recorded the event; the repeated call then finds it.
func confirmRefusal(ctx context.Context, sent *input, refusal error) error {
	_, _, err := sent.await(ctx)
	for _, rejection := range []error{actors.ErrNotFound, actors.ErrEnded, actors.ErrBusy} {
		if errors.Is(err, rejection) {
			return refusal
		}
	}
	if errors.As(err, new(*replay.PayloadError)) {
		return refusal
	}
	return fmt.Errorf("%w: the start was refused, its event may be recorded: %w", journal.ErrUnknownOutcome, cmp.Or(err, refusal))
}

// checkStalled returns why a stalled instance would not record an event that is sent for the first
// time.
func (i *Inputs) checkStalled(ctx context.Context, p *actors.Partition, request *clusterpb.Request, m *actors.Message) error {
	if !m.CheckData || request.Retried {
		return nil
	}
	return p.CheckStalled(ctx, request.Instance, m.Event.GetExternalEvent())
}

// checkRecords returns [ErrStalled] if the sender of an input does not want to wait and the
// instance records nothing at present.
func (i *Inputs) checkRecords(p *actors.Partition, request *clusterpb.Request) error {
	if !request.RejectIfStalled {
		return nil
	}
	if known, ok := i.Journal.Instance(request.Instance); ok {
		return i.recordsNothing(p, known)
	}
	return nil
}

// recordsNothing returns [ErrStalled] if an instance records nothing at present.
func (i *Inputs) recordsNothing(p *actors.Partition, known *journalpb.Instance) error {
	switch state := i.reads.liveStateOf(p, known); state {
	case actors.StateStalled, actors.StateHung, actors.StateWaitingForCode:
		return fmt.Errorf("%w: it is %s", ErrStalled, state)
	}
	return nil
}

// Send delivers an external event.
func (i *Inputs) Send(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.SendRequest) (*clusterpb.Response, error) {
	event := i.checkedEvent(request, r)
	if err := cmp.Or(i.checkHeadersProtocol(r), i.checkStalled(ctx, p, request, &event), i.checkRecords(p, request)); err != nil {
		return nil, err
	}
	_, _, err := i.repetitions.deliver(p, request, r.RequestId, event).await(ctx)
	if err := i.repetitions.ignoreIfRecorded(ctx, request, r.RequestId, err); err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Send{Send: new(clusterpb.SendResult)}}, nil
}

// Deliver delivers a message to an instance and returns the channel for the answer.
func Deliver(p *actors.Partition, instance string, m actors.Message) <-chan actors.Answer {
	answers := make(chan actors.Answer, 1)
	m.Done = func(a actors.Answer) { answers <- a }
	p.Deliver(instance, m)
	return answers
}

// Await waits for an answer and returns its error. If ctx ends first, the outcome is unknown.
func Await(ctx context.Context, answers <-chan actors.Answer) (actors.Answer, error) {
	answer, err := awaitAnswer(ctx, answers)
	return answer, cmp.Or(err, answer.Err)
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
