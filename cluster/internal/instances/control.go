package instances

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Control cancels, terminates, suspends, resumes or retries an instance.
func (i *Inputs) Control(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.ControlRequest) (*clusterpb.Response, error) {
	done := &clusterpb.Response{Result: &clusterpb.Response_Control{Control: new(clusterpb.ControlResult)}}
	if r.Kind == clusterpb.ControlRequest_KIND_RETRY {
		if err := i.Barrier(ctx); err != nil { // a retry records nothing that would prove leadership
			return nil, err
		}
		if err := i.retry(p, request); err != nil {
			return nil, err
		}
		return done, nil
	}
	event := controlEvent(r)
	if event == nil {
		return nil, fmt.Errorf("%w: unknown control request %d", journal.ErrProtocol, r.Kind)
	}
	event.Origin = originOf(request, "")
	message := actors.Message{Message: engine.Message{Event: event}}
	if r.Kind == clusterpb.ControlRequest_KIND_TERMINATE {
		return done, i.terminate(ctx, p, request, r.Reason, message)
	}
	if err := i.checkRecords(p, request); err != nil {
		return nil, err
	}
	_, _, err := i.repetitions.deliver(p, request, r.RequestId, message).await(ctx)
	if err := i.repetitions.ignoreIfRecorded(ctx, request, r.RequestId, err); err != nil {
		return nil, err
	}
	return done, nil
}

// retry makes a stalled instance try again. It accepts a repeated call for an instance that is not
// stalled: an earlier attempt may have succeeded.
func (i *Inputs) retry(p *actors.Partition, request *clusterpb.Request) error {
	known, ok := i.Journal.Instance(request.Instance)
	if !ok {
		return actors.ErrNotFound
	}
	if state := i.reads.liveStateOf(p, known); state != actors.StateStalled && state != actors.StateWaitingForCode && !request.Retried {
		return fmt.Errorf("%w: it is %s", ErrNotStalled, state)
	}
	p.Retry(request.Instance)
	return nil
}

// terminate ends an instance. A termination has no request ID; a repeated call must not end a run
// that began after the call was first sent.
func (i *Inputs) terminate(ctx context.Context, p *actors.Partition, request *clusterpb.Request, reason string, m actors.Message) error {
	m.Incarnation = request.Incarnation
	if request.FirstIndex != nil && request.Incarnation == 0 {
		if err := i.repetitions.CheckSameRun(request.Instance, "", request.GetFirstIndex()); err != nil {
			return err
		}
	}
	_, err := Await(ctx, Deliver(p, request.Instance, m))
	return i.repetitions.ignoreIfTerminated(ctx, request, reason, err)
}

// controlEvent returns the event of a control request, nil for an unknown kind.
func controlEvent(r *clusterpb.ControlRequest) *journalpb.Event {
	switch r.Kind {
	case clusterpb.ControlRequest_KIND_CANCEL:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
			OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: r.Reason, RequestId: r.RequestId},
		}}
	case clusterpb.ControlRequest_KIND_TERMINATE:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
			OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: r.Reason},
		}}
	case clusterpb.ControlRequest_KIND_SUSPEND:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationSuspended{
			OrchestrationSuspended: &journalpb.OrchestrationSuspended{Reason: r.Reason, RequestId: r.RequestId},
		}}
	case clusterpb.ControlRequest_KIND_RESUME:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{
			OrchestrationResumed: &journalpb.OrchestrationResumed{Reason: r.Reason, RequestId: r.RequestId},
		}}
	}
	return nil
}
