package bulk

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An Action describes an action for command lines and dashboards.
type Action struct {
	Name      string
	Help      string
	Arguments []Argument
	// Right is the action of cluster.Config.Authorize.
	Right string
}

// An Argument is a named text that an action takes.
type Argument struct {
	Name     string
	Help     string
	Required bool

	check func(value string) error
}

// An action is a row of the table of actions.
type action struct {
	Action
	// act acts on one instance. It may be called again, by a repeated page, and then must have no
	// further effect and return nil if an earlier call has succeeded. nil counts as done. What
	// other errors count as is decided by their codes; see outcomeOf.
	act func(ctx context.Context, o *operator, target Target) error
	// done are the codes of errors that count as done.
	done []string
}

// The arguments.
const (
	ArgumentEvent    = "event"
	ArgumentData     = "data"
	ArgumentActivity = "activity"
	ArgumentCall     = "call"
	ArgumentNumber   = "number"
)

// actions has a row for each action. A new action is one row.
var actions = []*action{
	{
		Action: Action{Name: "cancel", Help: "ask the instance to end; its code may clean up", Right: "cancel"},
		act:    control(clusterpb.ControlRequest_KIND_CANCEL),
	},
	{
		Action: Action{Name: "terminate", Help: "end the instance without running its code", Right: "terminate"},
		act:    control(clusterpb.ControlRequest_KIND_TERMINATE),
	},
	{
		Action: Action{Name: "suspend", Help: "stop the code of the instance until it is resumed", Right: "suspend"},
		act:    control(clusterpb.ControlRequest_KIND_SUSPEND),
	},
	{
		Action: Action{Name: "resume", Help: "continue the suspended instance", Right: "resume"},
		act:    control(clusterpb.ControlRequest_KIND_RESUME),
	},
	{
		Action: Action{Name: "purge", Help: "delete the ended instance with all its data", Right: "purge"},
		act:    purge,
		done:   []string{"not_found"}, // a repeated page has purged it before
	},
	{
		Action: Action{Name: "send", Help: "send an event", Right: "send", Arguments: []Argument{
			{Name: ArgumentEvent, Help: "the name of the event", Required: true, check: checkEvent},
			{Name: ArgumentData, Help: "its data as JSON; null by default", check: checkData},
		}},
		act: send,
	},
	{
		Action: Action{Name: "retry-now", Help: "begin the next attempts of activities that back off", Right: "retry now", Arguments: ofActivity("")},
		act:    operate(clusterpb.OperateRequest_KIND_RETRY_NOW, isBackingOff),
	},
	{
		Action: Action{Name: "hold", Help: "keep open activities and timers from proceeding", Right: "hold", Arguments: ofActivity(" and no timers")},
		act:    operate(clusterpb.OperateRequest_KIND_HOLD, isHoldable),
	},
	{
		Action: Action{Name: "release", Help: "let held activities and timers proceed", Right: "release", Arguments: ofActivity(" and no timers")},
		act:    operate(clusterpb.OperateRequest_KIND_RELEASE, isHeld),
	},
	{
		Action: Action{Name: "rerun", Help: "begin a run with the input of the latest one, which is terminated if it is in progress", Right: "rerun"},
		act:    copyHistory(clusterpb.CopyRequest_KIND_RERUN),
	},
	{
		Action: Action{Name: "rewind", Help: "begin a run with the history of the latest execution up to a call", Right: "rewind", Arguments: []Argument{
			{Name: ArgumentCall, Help: "the name of the activity or child before whose call the history ends", Required: true, check: checkCall},
			{Name: ArgumentNumber, Help: "which of its calls, from 1; 1 by default", check: checkNumber},
		}},
		act: copyHistory(clusterpb.CopyRequest_KIND_REWIND),
	},
}

func ofActivity(others string) []Argument {
	return []Argument{{Name: ArgumentActivity, Help: "only activities of that name" + others}}
}

// Actions returns all actions.
func Actions() (all []Action) {
	for _, one := range actions {
		all = append(all, one.Action)
	}
	return all
}

func actionOf(name string) (*action, error) {
	for _, one := range actions {
		if one.Name == name {
			return one, nil
		}
	}
	var names []string
	for _, one := range actions {
		names = append(names, one.Name)
	}
	return nil, invalid("Job.Action", "is %.40q: %s are allowed", name, strings.Join(names, ", "))
}

func checkEvent(name string) error { return engine.CheckCallName("argument event", name) }

func checkData(data string) error {
	if !json.Valid([]byte(data)) {
		return invalid("argument data", "is not JSON: write text in double quotes")
	}
	return nil
}

func checkCall(name string) error { return engine.CheckCallName("argument call", name) }

func checkNumber(text string) error {
	if n, err := strconv.ParseUint(text, 10, 32); err != nil || n == 0 {
		return invalid("argument number", "is %.40q: a number from 1 is allowed", text)
	}
	return nil
}

// An operator acts on the instances of a page.
type operator struct {
	pageInput
	key     string // distinguishes the run of the job
	control Control
}

// requestID returns the ID of all requests for an instance, the same in each attempt of a page.
func (o *operator) requestID(id string) string { return Name + "/" + hashOf(o.key, id) }

// reason is what the history of an instance shows.
func (o *operator) reason() string {
	if o.Reason == "" {
		return "bulk job " + o.JobID
	}
	return o.Reason + " (bulk job " + o.JobID + ")"
}

// call sends a request on behalf of who started the job. The request may have been sent before.
func (o *operator) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	request.Principal, request.Reason, request.Retried = o.Principal, o.reason(), true
	return o.control.call(ctx, request)
}

// callRun sends a request for the run of an instance that was listed.
func (o *operator) callRun(ctx context.Context, target Target, request *clusterpb.Request) (*clusterpb.Response, error) {
	request.Instance, request.Incarnation = target.ID, target.Incarnation
	return o.call(ctx, request)
}

// control returns an action that sends a control request. An instance that records nothing at
// present refuses it: the job must not wait for it.
func control(kind clusterpb.ControlRequest_Kind) func(ctx context.Context, o *operator, target Target) error {
	return func(ctx context.Context, o *operator, target Target) error {
		_, err := o.callRun(ctx, target, &clusterpb.Request{RejectIfStalled: true, Call: &clusterpb.Request_Control{
			Control: &clusterpb.ControlRequest{Kind: kind, Reason: o.reason(), RequestId: o.requestID(target.ID)},
		}})
		return err
	}
}

func send(ctx context.Context, o *operator, target Target) error {
	name, data := o.Arguments[ArgumentEvent], o.Arguments[ArgumentData]
	if data == "" {
		data = "null"
	}
	payload, err := o.control.encode(ctx, replay.PayloadInfo{Kind: "event", Name: name, Part: "data"}, json.RawMessage(data))
	if err != nil {
		return err
	}
	_, err = o.callRun(ctx, target, &clusterpb.Request{RejectIfStalled: true, Call: &clusterpb.Request_Send{
		Send: &clusterpb.SendRequest{Name: name, Data: payload, RequestId: o.requestID(target.ID)},
	}})
	return err
}

func purge(ctx context.Context, o *operator, target Target) error {
	response, err := o.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_Purge{
		Purge: &clusterpb.PurgeRequest{Instances: []string{target.ID}, Incarnations: []uint64{target.Incarnation}},
	}})
	if err != nil || response.GetPurge().GetPurged() > 0 {
		return err
	}
	response, err = o.call(ctx, &clusterpb.Request{Instance: target.ID, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}})
	if err != nil {
		return err
	}
	switch status := response.GetGet().GetStatus(); {
	case target.Incarnation != 0 && status.GetIncarnation() != target.Incarnation && status.GetFirstExecution() == 1:
		return nil // the listed run was purged, and another one has begun since
	case target.Incarnation != 0 && status.GetIncarnation() != target.Incarnation:
		return &refusedError{"ended", "another run has begun under the ID"}
	case !slices.Contains(endedStates, status.GetState()):
		return &refusedError{"running", "the instance has not ended: it is " + status.GetState()}
	}
	return &refusedError{"referenced", "a parent, a child or another partition still needs the instance"}
}

// copyHistory returns an action that begins a run with a copied history. A repetition finds that
// run by the request ID.
func copyHistory(kind clusterpb.CopyRequest_Kind) func(ctx context.Context, o *operator, target Target) error {
	return func(ctx context.Context, o *operator, target Target) error {
		r := &clusterpb.CopyRequest{Kind: kind, Reason: o.reason(), RequestId: o.requestID(target.ID)}
		if r.Call = o.Arguments[ArgumentCall]; r.Call != "" {
			number, err := strconv.ParseUint(cmp.Or(o.Arguments[ArgumentNumber], "1"), 10, 32)
			if err != nil {
				return checkNumber(o.Arguments[ArgumentNumber])
			}
			r.CallNumber = uint32(number)
		}
		_, err := o.callRun(ctx, target, &clusterpb.Request{Call: &clusterpb.Request_Copy{Copy: r}})
		return err
	}
}

var endedStates = []string{"completed", "failed", "canceled", "terminated"}

// A refusedError is why an action found nothing to do.
type refusedError struct{ code, message string }

func (e *refusedError) Error() string { return "tenuto: " + e.message }

// operate returns an action on all open operations of an instance that selects chooses.
func operate(kind clusterpb.OperateRequest_Kind, selects func(*clusterpb.OpenOperation) bool) func(ctx context.Context, o *operator, target Target) error {
	return func(ctx context.Context, o *operator, target Target) error {
		open, err := o.callRun(ctx, target, &clusterpb.Request{Call: &clusterpb.Request_Pending{Pending: new(clusterpb.PendingRequest)}})
		if err != nil {
			return err
		}
		var acted int
		var refusal error
		for _, one := range open.GetPending().GetOperations() {
			if only := o.Arguments[ArgumentActivity]; !target.owns(one) || !selects(one) || only != "" && (!isActivity(one) || one.Name != only) {
				continue
			}
			switch err := o.operate(ctx, target, kind, one.Operation.GetRef()); outcomeOf(nil, o.control.codeOf(err)) {
			case done:
				acted++
			case refused:
				refusal = err
			default:
				return err
			}
		}
		switch {
		case acted > 0:
			return nil
		case refusal == nil:
			refusal = &refusedError{"no_operation", "the instance has no open operation to which the action applies"}
		}
		return o.unlessRecorded(ctx, target, refusal)
	}
}

func (o *operator) operate(ctx context.Context, target Target, kind clusterpb.OperateRequest_Kind, ref *journalpb.OperationRef) error {
	_, err := o.callRun(ctx, target, &clusterpb.Request{Call: &clusterpb.Request_Operate{Operate: &clusterpb.OperateRequest{
		Kind: kind, EventId: ref.GetEventId(), Execution: ref.GetExecution(), Reason: o.reason(),
		RequestId: fmt.Sprintf("%s/%d", o.requestID(target.ID), ref.GetEventId()),
	}}})
	return err
}

// unlessRecorded returns nil instead of a refusal if an earlier attempt of the page has acted on
// the instance: its operations may have gone on since. It reads what the listed execution has
// recorded since it was listed.
func (o *operator) unlessRecorded(ctx context.Context, target Target, refusal error) error {
	prefix := o.requestID(target.ID) + "/"
	asked := &clusterpb.HistoryRequest{Execution: target.Execution, FromEventId: target.Event + 1, Paged: true}
	for {
		response, err := o.call(ctx, &clusterpb.Request{Instance: target.ID, Call: &clusterpb.Request_History{History: asked}})
		if err != nil {
			return err
		}
		page := response.GetHistory()
		for _, encoded := range page.GetEvents() {
			event := new(journalpb.Event)
			if err := proto.Unmarshal(encoded, event); err != nil {
				return fmt.Errorf("decode event: %w", err)
			}
			if strings.HasPrefix(event.InputRequestID(), prefix) {
				return nil
			}
			asked.FromEventId = event.EventId + 1
		}
		if !page.GetMore() {
			return refusal
		}
		asked = &clusterpb.HistoryRequest{Execution: page.GetExecution(), FromEventId: asked.FromEventId, Paged: true}
	}
}

// owns reports whether an operation is of the run that was listed.
func (t Target) owns(o *clusterpb.OpenOperation) bool {
	return t.Incarnation == 0 || o.GetOperation().GetRef().GetIncarnation() == t.Incarnation
}

func isActivity(o *clusterpb.OpenOperation) bool {
	return o.GetOperation().GetKind() == journalpb.TypeActivityScheduled
}

// isBackingOff reports whether an activity waits for its next attempt. Until the leader has
// recovered the activity, that is likely after a failed attempt; the instance decides then.
func isBackingOff(o *clusterpb.OpenOperation) bool {
	failed := o.GetOperation().GetAttempt().GetFailed() > 0
	return isActivity(o) && (o.State == string(activity.BackingOff) || o.State == "" && failed)
}

// isHoldable reports whether an operation is an activity, or a timer other than that of a deadline.
func isHoldable(o *clusterpb.OpenOperation) bool {
	return isActivity(o) || o.GetOperation().GetKind() == journalpb.TypeTimerCreated && o.Name == ""
}

func isHeld(o *clusterpb.OpenOperation) bool { return o.GetOperation().GetHeld() }
