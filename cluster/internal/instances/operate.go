package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Errors of actions on operations. With each of them nothing was recorded.
var (
	ErrUnknownOperation = errors.New("tenuto: the instance has no such operation")
	ErrNotBackingOff    = errors.New("tenuto: the activity is not backing off")
)

// An OperationKindError reports that an action does not apply to an operation of that kind.
type OperationKindError struct {
	EventID   uint64   // of the operation
	Found     string   // the type of its scheduling event
	Permitted []string // the types of scheduling events to which the action applies
}

// Error implements error.
func (e *OperationKindError) Error() string {
	return fmt.Sprintf("tenuto: operation %d is of %s, the action needs %s", e.EventID, e.Found, strings.Join(e.Permitted, " or "))
}

// permittedTypes are the scheduling events of the operations to which each action applies.
var permittedTypes = map[clusterpb.OperateRequest_Kind][]int{
	clusterpb.OperateRequest_KIND_RETRY_NOW: {journalpb.TypeActivityScheduled},
	clusterpb.OperateRequest_KIND_ADJUST:    {journalpb.TypeActivityScheduled},
	clusterpb.OperateRequest_KIND_HOLD:      {journalpb.TypeActivityScheduled, journalpb.TypeTimerCreated},
	clusterpb.OperateRequest_KIND_RELEASE:   {journalpb.TypeActivityScheduled, journalpb.TypeTimerCreated},
	clusterpb.OperateRequest_KIND_COMPLETE:  {journalpb.TypeActivityScheduled, journalpb.TypeSubOrchestrationScheduled, journalpb.TypeExternalSubscribed},
	clusterpb.OperateRequest_KIND_FAIL:      {journalpb.TypeActivityScheduled, journalpb.TypeSubOrchestrationScheduled},
	clusterpb.OperateRequest_KIND_FIRE_NOW:  {journalpb.TypeTimerCreated},
}

// originOf returns who makes a request, and why; nil if neither is known.
func originOf(request *clusterpb.Request, reason string) *journalpb.Origin {
	if request.Principal == "" && reason == "" {
		return nil
	}
	return &journalpb.Origin{Principal: request.Principal, Reason: reason}
}

// Operate applies an action of an operator to an open operation. If the instance is stalled or
// hung, the error is [ErrStalled].
func (i *Inputs) Operate(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.OperateRequest) (*clusterpb.Response, error) {
	if i.Journal.Protocol() < state.OperateProtocol {
		return nil, fmt.Errorf("%w: actions on operations need protocol %d on every member", journal.ErrProtocol, state.OperateProtocol)
	}
	if err := i.Barrier(ctx); err != nil {
		return nil, err
	}
	for {
		err := i.operate(ctx, p, request, r)
		switch {
		case errors.Is(err, engine.ErrAdjusted) && ctx.Err() == nil:
			// Another adjustment was recorded: make this one on top of it.
		case err != nil:
			return nil, err
		default:
			return &clusterpb.Response{Result: &clusterpb.Response_Operate{Operate: new(clusterpb.OperateResult)}}, nil
		}
	}
}

// operate is one attempt of Operate.
func (i *Inputs) operate(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.OperateRequest) error {
	if err := i.repetitions.checkRun(request); err != nil {
		return i.repetitions.ignoreIfRecorded(ctx, request, r.RequestId, err)
	}
	if request.FirstIndex != nil { // an earlier attempt may have been recorded, and have changed the instance
		found, _, err := i.repetitions.findInputSince(ctx, request.Instance, r.RequestId, request.GetFirstIndex())
		if err != nil || found != (Position{}) {
			return err
		}
	}
	stalls, cancel := p.WatchStalls(request.Instance)
	defer cancel()
	known, ok := i.Journal.Instance(request.Instance)
	if !ok {
		return actors.ErrNotFound
	}
	if request.Incarnation != 0 && request.Incarnation != known.Incarnation { // since it was checked
		return actors.ErrEnded
	}
	if err := i.recordsNothing(p, known); err != nil {
		return err
	}
	message, err := i.operationMessage(p, known, request, r)
	if err != nil {
		return err
	}
	ctx, end := failIfStalled(ctx, p, request.Instance, stalls)
	defer end()
	_, _, err = i.repetitions.deliver(p, request, r.RequestId, message).await(ctx)
	if errors.Is(context.Cause(ctx), ErrStalled) && errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return i.repetitions.ignoreIfRecorded(ctx, request, r.RequestId, err)
}

// failIfStalled returns a context that ends with ErrStalled as the cause when the instance stalls.
// end must be called.
func failIfStalled(ctx context.Context, p *actors.Partition, instance string, stalls <-chan struct{}) (limited context.Context, end func()) {
	limited, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stalls:
				if reason := p.StallReason(instance); reason != nil {
					cancel(fmt.Errorf("%w: %w", ErrStalled, withoutPayloads(reason)))
					return
				}
			case <-limited.Done():
				return
			}
		}
	}()
	return limited, func() {
		cancel(nil)
		<-ended
	}
}

// operationMessage returns the message of an action. It returns an error for an operation that does
// not exist, or to which the action does not apply.
func (i *Inputs) operationMessage(p *actors.Partition, known *journalpb.Instance, request *clusterpb.Request, r *clusterpb.OperateRequest) (actors.Message, error) {
	execution := cmp.Or(r.Execution, known.Execution)
	scheduled, err := i.Journal.Event(known.Instance, execution, r.EventId)
	switch {
	case IsNotFound(err):
		return actors.Message{}, fmt.Errorf("%w: event %d of execution %d", ErrUnknownOperation, r.EventId, execution)
	case err != nil:
		return actors.Message{}, err
	}
	found := scheduled.TypeNumber()
	switch permitted := permittedTypes[r.Kind]; {
	case !journalpb.OpensOperation(found) && found != journalpb.TypeExternalSubscribed:
		return actors.Message{}, fmt.Errorf("%w: event %d of execution %d is %s", ErrUnknownOperation, r.EventId, execution, scheduled.Type())
	case len(permitted) == 0:
		return actors.Message{}, fmt.Errorf("%w: unknown action %d", journal.ErrProtocol, r.Kind)
	case !slices.Contains(permitted, found):
		wrong := &OperationKindError{EventID: r.EventId, Found: scheduled.Type()}
		for _, one := range permitted {
			wrong.Permitted = append(wrong.Permitted, journalpb.TypeName(one))
		}
		return actors.Message{}, wrong
	}
	message := actors.Message{Message: engine.Message{Execution: execution, Incarnation: known.Incarnation}}
	ref := &journalpb.OperationRef{Instance: known.Instance, Incarnation: known.Incarnation, Execution: execution, EventId: r.EventId}
	switch r.Kind {
	case clusterpb.OperateRequest_KIND_COMPLETE, clusterpb.OperateRequest_KIND_FAIL, clusterpb.OperateRequest_KIND_FIRE_NOW:
		if err := checkOperable(scheduled); err != nil {
			return actors.Message{}, err
		}
		message.Event = i.closingEvent(p, ref, scheduled, r)
		message.Event.Origin = &journalpb.Origin{Principal: request.Principal, Reason: r.Reason}
		if found == journalpb.TypeExternalSubscribed {
			message.Subscription, message.CheckData = r.EventId, true
		} else {
			message.Event.SourceEventId, message.Event.Origin.RequestId = r.EventId, r.RequestId
		}
		return message, nil
	}
	action, err := i.controlAction(p, ref, scheduled, request, r)
	message.Event = &journalpb.Event{Origin: originOf(request, r.Reason), Body: &journalpb.Event_OperationControlled{OperationControlled: action}}
	return message, err
}

// closingEvent returns the event with which an operator closes an operation.
func (i *Inputs) closingEvent(p *actors.Partition, ref *journalpb.OperationRef, scheduled *journalpb.Event, r *clusterpb.OperateRequest) *journalpb.Event {
	failed := r.Kind == clusterpb.OperateRequest_KIND_FAIL
	switch body := scheduled.Body.(type) {
	case *journalpb.Event_TimerCreated:
		return &journalpb.Event{Body: &journalpb.Event_TimerFired{TimerFired: &journalpb.TimerFired{FireAt: body.TimerCreated.FireAt}}}
	case *journalpb.Event_ExternalSubscribed:
		return &journalpb.Event{Body: &journalpb.Event_ExternalEvent{ExternalEvent: &journalpb.ExternalEvent{
			Name: body.ExternalSubscribed.Name, Data: r.Result, RequestId: r.RequestId,
		}}}
	case *journalpb.Event_SubOrchestrationScheduled:
		if failed {
			return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationFailed{SubOrchestrationFailed: &journalpb.SubOrchestrationFailed{Error: r.Error}}}
		}
		return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationCompleted{
			SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: r.Result},
		}}
	}
	attempts := i.attemptsOf(p, ref)
	if failed {
		return &journalpb.Event{Body: &journalpb.Event_ActivityFailed{ActivityFailed: &journalpb.ActivityFailed{
			Error: r.Error, Attempts: uint32(attempts.Begun), FailedAttempts: attempts.Earlier,
		}}}
	}
	return &journalpb.Event{Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{
		Result: r.Result, Attempts: uint32(attempts.Begun), FailedAttempts: attempts.Earlier,
	}}}
}

// attemptsOf returns how far the attempts of an activity have come. While the operation is not
// recovered, that is what the journal has recorded.
func (i *Inputs) attemptsOf(p *actors.Partition, ref *journalpb.OperationRef) activity.Attempts {
	attempts := p.AttemptsOf(ref)
	if attempts.State == "" {
		recorded := i.openOperation(ref).GetAttempt()
		attempts.Failed, attempts.Begun, attempts.Earlier = int(recorded.GetFailed()), int(recorded.GetFailed()), recorded.GetFailedAttempts()
	}
	return attempts
}

// openOperation returns an open operation, nil if it is not open.
func (i *Inputs) openOperation(ref *journalpb.OperationRef) *journalpb.Operation {
	for open := range i.Journal.InstanceOperations(ref.Instance) {
		if proto.Equal(open.Ref, ref) {
			return open
		}
	}
	return nil
}

var controlledKinds = map[clusterpb.OperateRequest_Kind]journalpb.OperationControlled_Kind{
	clusterpb.OperateRequest_KIND_RETRY_NOW: journalpb.OperationControlled_KIND_RETRY_NOW,
	clusterpb.OperateRequest_KIND_HOLD:      journalpb.OperationControlled_KIND_HOLD,
	clusterpb.OperateRequest_KIND_RELEASE:   journalpb.OperationControlled_KIND_RELEASE,
	clusterpb.OperateRequest_KIND_ADJUST:    journalpb.OperationControlled_KIND_ADJUST,
}

// controlAction returns the record of an action that does not close its operation. A retry is
// rejected if nothing can be retried now; a repetition of the call is not, because the attempt may
// have begun since.
func (i *Inputs) controlAction(p *actors.Partition, ref *journalpb.OperationRef, scheduled *journalpb.Event, request *clusterpb.Request, r *clusterpb.OperateRequest) (*journalpb.OperationControlled, error) {
	action := &journalpb.OperationControlled{EventId: r.EventId, Kind: controlledKinds[r.Kind], RequestId: r.RequestId}
	switch r.Kind {
	case clusterpb.OperateRequest_KIND_RETRY_NOW:
		attempts := i.attemptsOf(p, ref)
		action.Attempt = uint32(attempts.Failed + 1)
		switch attempts.State {
		case "", activity.BackingOff, activity.Held: // the instance decides whether it is closed or held
		default:
			if !request.Retried {
				return nil, fmt.Errorf("%w: it is %s", ErrNotBackingOff, attempts.State)
			}
		}
	case clusterpb.OperateRequest_KIND_ADJUST:
		options := scheduled.GetActivityScheduled().GetOptions()
		if action.Replaces = i.openOperation(ref).GetAdjustedBy(); action.Replaces != 0 {
			adjusted, err := i.Journal.Event(ref.Instance, ref.Execution, action.Replaces)
			if err != nil {
				return nil, err
			}
			options = adjusted.GetOperationControlled().GetOptions()
		}
		action.Options = adjustedOptions(options, r.Options)
	}
	return action, nil
}

// adjustedOptions returns the options of a call with the given changes.
func adjustedOptions(options, changes *journalpb.ActivityOptions) *journalpb.ActivityOptions {
	adjusted := new(journalpb.ActivityOptions)
	if options != nil {
		adjusted = proto.CloneOf(options)
	}
	adjusted.ScheduleToStart = cmp.Or(changes.GetScheduleToStart(), adjusted.ScheduleToStart)
	adjusted.StartToClose = cmp.Or(changes.GetStartToClose(), adjusted.StartToClose)
	adjusted.ScheduleToClose = cmp.Or(changes.GetScheduleToClose(), adjusted.ScheduleToClose)
	adjusted.Heartbeat = cmp.Or(changes.GetHeartbeat(), adjusted.Heartbeat)
	adjusted.CancelGrace = cmp.Or(changes.GetCancelGrace(), adjusted.CancelGrace)
	if changes.GetRetry() != nil {
		adjusted.Retry = changes.Retry
	}
	return adjusted
}
