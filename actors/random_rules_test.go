package actors_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The rules that the journal must keep, whatever happened to the node. They are written
// independently of the engine, from the specification of orchestrations, to check the engine.

// checkAll checks every instance, and replays every history.
func checkAll(t *testing.T, j *state.Machine, registry *engine.Registry) {
	t.Helper()
	for instance := range j.Instances() {
		var before *execution
		starts := make(map[string]bool)
		for number := uint64(1); number <= instance.Execution; number++ {
			x := newExecution(t, j, instance, number)
			if len(x.history) == 0 {
				continue
			}
			if x.beginsRun(before) {
				x.checkRun(before, starts)
				before = nil
			}
			x.check(before)
			x.checkReplay(registry)
			before = x
		}
		if last := before.history[len(before.history)-1]; last.GetOrchestrationTerminated().GetReason() == replacedReason {
			before.violation(last, "no run follows")
		}
	}
	for open := range j.OpenOperations() {
		t.Errorf("still open: %v", open)
	}
	for start := range j.Chained() {
		t.Errorf("chained and not started: %v", start)
	}
	for orphan := range j.Orphans() {
		t.Errorf("an orphan that runs: %v", orphan)
	}
}

// An execution is checked event by event.
type execution struct {
	t        *testing.T
	journal  *state.Machine
	instance *journalpb.Instance
	number   uint64
	history  []*journalpb.Event

	open          map[uint64]*journalpb.Event // the schedule of each open operation except subscriptions
	subscriptions map[string][]uint64         // not canceled, by name, in order
	events        []*journalpb.ExternalEvent  // in order, including those that a subscription has taken
	visible       map[string]int              // by name, how many of them the code may have had
	requests      map[string]bool             // taken in this run
	suspended     bool
	held          map[uint64]bool // operations, by operators
}

func newExecution(t *testing.T, j *state.Machine, instance *journalpb.Instance, number uint64) *execution {
	t.Helper()
	x := &execution{t: t, journal: j, instance: instance, number: number,
		open: make(map[uint64]*journalpb.Event), subscriptions: make(map[string][]uint64), requests: make(map[string]bool), held: make(map[uint64]bool)}
	for event, err := range j.Events(instance.Instance, number, 1) {
		if err != nil {
			t.Fatal(err)
		}
		x.history = append(x.history, event)
	}
	return x
}

func (ex *execution) violation(event *journalpb.Event, format string, args ...any) {
	ex.t.Helper()
	ex.t.Errorf("%s, execution %d, event %d, %s: %s", ex.instance.Instance, ex.number, event.EventId, engine.Describe(event), fmt.Sprintf(format, args...))
}

// check checks one execution. before is the one that continued as this one.
func (ex *execution) check(before *execution) {
	if before != nil {
		ex.requests = before.requests
		ex.checkCarriedOver(before)
	}
	at := int64(0)
	for i, event := range ex.history {
		switch last := i == len(ex.history)-1; {
		case event.EventId != uint64(i+1):
			ex.violation(event, "event_id at place %d", i+1)
		case event.Timestamp < at:
			ex.violation(event, "time goes back")
		case (event.GetOrchestrationStarted() != nil) != (i == 0):
			ex.violation(event, "at this place")
		case journalpb.IsTerminal(event.TypeNumber()) != last:
			ex.violation(event, "a terminal event is the last, and only that")
		}
		at = event.Timestamp
		takesEffect := i == 0 || !ex.suspended && (journalpb.SchedulingType(event.TypeNumber()) != 0 || isInput(event))
		ex.checkSuspended(event)
		ex.checkEvent(event)
		if takesEffect {
			ex.visible = ex.eventCounts()
		}
	}
	ex.checkClosed(ex.history[len(ex.history)-1])
	ex.checkPublished()
	ex.checkDeadline()
}

// replacedReason is the reason of a termination by a start.
const replacedReason = "replaced by a new run with the same ID"

// beginsRun reports whether an execution is the first of a run.
func (ex *execution) beginsRun(before *execution) bool {
	return before == nil || before.history[len(before.history)-1].GetOrchestrationContinuedAsNew() == nil
}

// checkRun checks that each start begins one run, and that nothing of an earlier run reaches it.
func (ex *execution) checkRun(before *execution, starts map[string]bool) {
	first := ex.history[0]
	started := first.GetOrchestrationStarted()
	if id := started.GetRequestId(); id != "" {
		if starts[id] {
			ex.violation(first, "begins a second run")
		}
		starts[id] = true
	}
	if len(started.GetInbox()) > 0 || len(started.GetAttributes()) > 0 || len(started.GetValues()) > 0 || len(started.GetRequestIds()) > 0 ||
		started.GetStatus() != nil || started.GetAttempt() != 0 || started.GetLastFailure() != nil || started.GetCancelRequested() != nil {
		ex.violation(first, "has something of an earlier run")
	}
	if before != nil && !journalpb.IsTerminal(before.history[len(before.history)-1].TypeNumber()) {
		ex.violation(first, "begins before the earlier run has ended")
	}
}

// deadlineTimer returns the event of the timer that cancels the run at its deadline, nil if it has
// none. The code schedules it first.
func (ex *execution) deadlineTimer() *journalpb.Event {
	deadline := ex.history[0].GetOrchestrationStarted().GetDeadline()
	if deadline == 0 || len(ex.history) == 1 || ex.history[1].GetTimerCreated().GetFireAt() != max(deadline, ex.history[0].Timestamp) {
		return nil
	}
	return ex.history[1]
}

// checkDeadline checks that there is a timer of the deadline, unless the body has ended in the
// first step. The clean-up of the programs only calls activities.
func (ex *execution) checkDeadline() {
	deadline := ex.history[0].GetOrchestrationStarted().GetDeadline()
	if deadline == 0 || ex.deadlineTimer() != nil {
		return
	}
	for _, event := range ex.history {
		switch event.TypeNumber() {
		case journalpb.TypeTimerCreated, journalpb.TypeExternalSubscribed, journalpb.TypeSubOrchestrationScheduled, journalpb.TypeMessageSent:
			ex.violation(event, "without a timer of the deadline %v", time.Unix(0, deadline))
		}
	}
}

// cancelReasons returns why the code may have been canceled. It is the first cause, but a timer
// that has fired while the instance was suspended may have come too late.
func (ex *execution) cancelReasons() (reasons []string) {
	if carried := ex.history[0].GetOrchestrationStarted().GetCancelRequested(); carried != nil {
		return []string{carried.Reason}
	}
	fired, suspended := ex.deadlineFired()
	for _, event := range ex.history {
		switch {
		case event.GetOrchestrationCancelRequested() != nil:
			return append(reasons, event.GetOrchestrationCancelRequested().Reason)
		case event == fired:
			if reasons = append(reasons, engine.DeadlineReason); !suspended {
				return reasons
			}
		}
	}
	return reasons
}

// deadlineFired returns the event with which the timer of the deadline has fired, nil if it has
// not, and whether the instance was suspended then.
func (ex *execution) deadlineFired() (fired *journalpb.Event, suspended bool) {
	timer := ex.deadlineTimer()
	for _, event := range ex.history {
		switch {
		case event.GetOrchestrationSuspended() != nil, event.GetOrchestrationResumed() != nil:
			suspended = event.GetOrchestrationSuspended() != nil
		case timer != nil && event.GetTimerFired() != nil && event.SourceEventId == timer.EventId:
			return event, suspended
		}
	}
	return nil, false
}

// checkCanceledRun checks that a canceled run had a reason.
func (ex *execution) checkCanceledRun(event *journalpb.Event, reason string) {
	reasons := ex.cancelReasons()
	if !slices.ContainsFunc(reasons, func(cause string) bool { return reason == cause || cause == "" && reason == replay.ErrCanceled.Error() }) {
		ex.violation(event, "the reasons are %q", reasons)
	}
}

// checkCarriedDeadline checks that the deadline is that of the execution before, unless the code
// has continued after it knew of its cancellation. A cancellation that it did not know of is
// carried over.
func (ex *execution) checkCarriedDeadline(before *execution) {
	started, had := ex.history[0].GetOrchestrationStarted(), before.history[0].GetOrchestrationStarted().GetDeadline()
	reasons := before.cancelReasons()
	fired, suspended := before.deadlineFired()
	carried, kept := started.GetCancelRequested(), started.GetDeadline() == had
	switch {
	case !kept && (started.GetDeadline() != 0 || fired == nil || carried != nil):
		ex.violation(ex.history[0], "has the deadline %d, not %d", started.GetDeadline(), had)
	case kept && fired != nil && !suspended && carried == nil:
		ex.violation(ex.history[0], "has a deadline, but its code knew that it has passed")
	case carried != nil && !slices.Contains(reasons, carried.Reason):
		ex.violation(ex.history[0], "is canceled, the reasons were %q", reasons)
	}
}

// published returns the attributes and values that an execution has at its end, by name and key.
func (ex *execution) published() map[string]string {
	attributes, values := make(map[string]*journalpb.AttributeValue), make(map[string]*journalpb.Payload)
	for _, set := range ex.history[0].GetOrchestrationStarted().Attributes {
		attributes[set.Name] = set.Value
	}
	for _, set := range ex.history[0].GetOrchestrationStarted().Values {
		values[set.Map+"/"+set.Key] = set.Value
	}
	for _, event := range ex.history {
		if set := event.GetAttributeSet(); set != nil {
			attributes[set.Name] = set.Value
		}
		if set := event.GetValueSet(); set != nil {
			values[set.Map+"/"+set.Key] = set.Value
		}
	}
	published := make(map[string]string)
	for name, value := range attributes {
		if value != nil {
			published["attribute "+name] = engine.AttributeText(value)
		}
	}
	for key, value := range values {
		if value != nil {
			published["value "+key] = string(value.Data)
		}
	}
	return published
}

// checkPublished checks that the index shows the attributes and values of the latest execution.
func (ex *execution) checkPublished() {
	if ex.number != ex.instance.Execution {
		return
	}
	shown := make(map[string]string)
	for _, set := range ex.instance.Attributes {
		shown["attribute "+set.Name] = engine.AttributeText(set.Value)
	}
	values, err := ex.journal.Values(ex.instance.Instance, "published")
	if err != nil {
		ex.t.Error(err)
	}
	for _, set := range values {
		shown["value "+set.Map+"/"+set.Key] = string(set.Value.GetData())
	}
	if want := ex.published(); !maps.Equal(shown, want) {
		ex.violation(ex.history[0], "the index shows %v, the history has %v", shown, want)
	}
}

// isInput reports whether an event comes from outside, and is not a completion.
func isInput(event *journalpb.Event) bool {
	switch event.TypeNumber() {
	case journalpb.TypeExternalEvent, journalpb.TypeOrchestrationCancelRequested, journalpb.TypeOrchestrationTerminated,
		journalpb.TypeOrchestrationSuspended, journalpb.TypeOrchestrationResumed:
		return true
	}
	return false
}

// eventCounts returns how many events of each name have arrived.
func (ex *execution) eventCounts() map[string]int {
	counts := make(map[string]int)
	for _, e := range ex.events {
		counts[e.Name]++
	}
	return counts
}

// checkClosed checks that only a termination leaves operations open.
func (ex *execution) checkClosed(last *journalpb.Event) {
	if last.GetOrchestrationTerminated() != nil {
		return
	}
	if len(ex.open) > 0 {
		ex.violation(last, "open after the end: %v", ex.open)
	}
	arrivals := ex.eventCounts()
	for name, waits := range ex.subscriptions {
		if len(waits) > arrivals[name] {
			ex.violation(last, "subscriptions %v of %q are open after the end, %d events came", waits, name, arrivals[name])
		}
	}
}

// unconsumed returns the events that no subscription has taken, in order: the k-th subscription
// that was not canceled takes the k-th event of its name.
func (ex *execution) unconsumed() []*journalpb.ExternalEvent {
	var left []*journalpb.ExternalEvent
	counts := make(map[string]int)
	for _, e := range ex.events {
		if counts[e.Name]++; counts[e.Name] > len(ex.subscriptions[e.Name]) {
			left = append(left, e)
		}
	}
	return left
}

// checkCarriedOver checks that unconsumed events are carried over, in order.
func (ex *execution) checkCarriedOver(before *execution) {
	last, started := before.history[len(before.history)-1], ex.history[0].GetOrchestrationStarted()
	if last.GetOrchestrationContinuedAsNew() == nil {
		ex.violation(ex.history[0], "follows an execution that does not continue")
	}
	same := func(a, b *journalpb.ExternalEvent) bool { return proto.Equal(a, b) }
	if !slices.EqualFunc(before.unconsumed(), started.GetInbox(), same) {
		ex.violation(ex.history[0], "begins with the events %v, not %v", started.GetInbox(), before.unconsumed())
	}
	began := &execution{history: ex.history[:1]}
	if got, want := began.published(), before.published(); !maps.Equal(got, want) {
		ex.violation(ex.history[0], "begins with %v, the execution before had %v", got, want)
	}
	ex.checkRetried(before)
	ex.checkCarriedDeadline(before)
}

// checkRetried checks that an execution is a retry of the one before if that has failed, and the
// first attempt if its code continued.
func (ex *execution) checkRetried(earlier *execution) {
	first, last, before := ex.history[0], earlier.history[len(earlier.history)-1], earlier.history[0].GetOrchestrationStarted()
	started, failure := first.GetOrchestrationStarted(), last.GetOrchestrationContinuedAsNew().GetRetried()
	switch {
	case !proto.Equal(started.Retry, before.Retry):
		ex.violation(first, "has the policy %v, not %v", started.Retry, before.Retry)
	case failure == nil:
		if started.Attempt != 0 || started.LastFailure != nil || started.StartAt != 0 {
			ex.violation(first, "is a retry, but the code continued")
		}
	case started.Attempt != before.Attempt+1 || !proto.Equal(started.LastFailure, failure) || !proto.Equal(started.Input, before.Input):
		ex.violation(first, "is no retry of %v after %v", before, failure)
	case started.StartAt <= last.Timestamp || started.Attempt >= before.Retry.GetMaxAttempts():
		ex.violation(first, "begins at %d after %d, with the policy %v", started.StartAt, last.Timestamp, before.Retry)
	case strings.Contains(failure.Message, violationPrefix):
		ex.violation(last, "the code has seen that")
	case hasCancelRequest(earlier.history):
		ex.violation(first, "is a retry of a canceled run")
	}
}

// checkNotRetried checks that a failed run could not be retried.
func (ex *execution) checkNotRetried(event *journalpb.Event) {
	started := ex.history[0].GetOrchestrationStarted()
	if most := started.Retry.GetMaxAttempts(); started.Attempt+1 < most && !hasCancelRequest(ex.history) {
		ex.violation(event, "is attempt %d of %d and was not retried", started.Attempt+1, most)
	}
}

// hasCancelRequest reports whether an execution was asked to cancel.
func hasCancelRequest(history []*journalpb.Event) bool {
	return history[0].GetOrchestrationStarted().GetCancelRequested() != nil ||
		slices.ContainsFunc(history, func(event *journalpb.Event) bool { return event.GetOrchestrationCancelRequested() != nil })
}

func (ex *execution) checkSuspended(event *journalpb.Event) {
	switch {
	case event.GetOrchestrationSuspended() != nil, event.GetOrchestrationResumed() != nil:
		if suspends := event.GetOrchestrationSuspended() != nil; suspends == ex.suspended {
			ex.violation(event, "suspended is %t", ex.suspended)
		}
		ex.suspended = !ex.suspended
	case ex.suspended && journalpb.SchedulingType(event.TypeNumber()) == 0:
		switch event.TypeNumber() {
		case journalpb.TypeExternalEvent, journalpb.TypeOrchestrationCancelRequested, journalpb.TypeOrchestrationTerminated, journalpb.TypeCancelRequested,
			journalpb.TypeOperationControlled:
		default:
			ex.violation(event, "while suspended")
		}
	}
}

func (ex *execution) checkEvent(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		ex.events = slices.Clone(body.OrchestrationStarted.Inbox)
		ex.checkChild(event, body.OrchestrationStarted.Parent)
	case *journalpb.Event_ActivityScheduled, *journalpb.Event_TimerCreated, *journalpb.Event_MessageSent:
		ex.open[event.EventId] = event
	case *journalpb.Event_SubOrchestrationScheduled:
		ex.open[event.EventId] = event
	case *journalpb.Event_OrchestrationFailed:
		if strings.Contains(body.OrchestrationFailed.Error.GetMessage(), violationPrefix) {
			ex.violation(event, "the code has seen that")
		}
		ex.checkNotRetried(event)
	case *journalpb.Event_OrchestrationCanceled:
		ex.checkCanceledRun(event, body.OrchestrationCanceled.Reason)
	case *journalpb.Event_OrchestrationChained:
		if _, ok := ex.journal.Instance(body.OrchestrationChained.Instance); !ok {
			ex.violation(event, "was never started")
		}
	case *journalpb.Event_ExternalSubscribed:
		name := event.GetExternalSubscribed().Name
		ex.subscriptions[name] = append(ex.subscriptions[name], event.EventId)
	case *journalpb.Event_ExternalEvent:
		ex.checkArrival(event, body.ExternalEvent)
	case *journalpb.Event_CancelRequested:
		ex.checkCanceled(event)
	case *journalpb.Event_OperationControlled:
		ex.checkControlled(event, body.OperationControlled)
	default:
		if completes := journalpb.SchedulingType(event.TypeNumber()); completes != 0 {
			ex.checkCompletion(event, completes)
		}
	}
}

// checkControlled checks that an operator has acted on an open operation, and has changed
// something.
func (ex *execution) checkControlled(event *journalpb.Event, action *journalpb.OperationControlled) {
	if ex.open[action.EventId] == nil {
		ex.violation(event, "is not open")
	}
	held := ex.held[action.EventId]
	switch action.Kind {
	case journalpb.OperationControlled_KIND_HOLD, journalpb.OperationControlled_KIND_RELEASE:
		holds := action.Kind == journalpb.OperationControlled_KIND_HOLD
		if holds == held {
			ex.violation(event, "held is already %t", held)
		}
		ex.held[action.EventId] = holds
	case journalpb.OperationControlled_KIND_RETRY_NOW:
		if held {
			ex.violation(event, "is held")
		}
	}
	ex.checkOnce(event, action.RequestId)
}

// checkOnce checks that a request is recorded once.
func (ex *execution) checkOnce(event *journalpb.Event, request string) {
	if ex.requests[request] {
		ex.violation(event, "is taken twice")
	}
	ex.requests[request] = request != ""
}

// checkCanceled checks that a canceled operation was open. A subscription is open until the code
// can have had its event, which may have been recorded while the instance was suspended.
func (ex *execution) checkCanceled(event *journalpb.Event) {
	scheduled := ex.history[event.SourceEventId-1]
	if subscribed := scheduled.GetExternalSubscribed(); subscribed != nil {
		waits := ex.subscriptions[subscribed.Name]
		k := slices.Index(waits, event.SourceEventId)
		if k < ex.visible[subscribed.Name] {
			ex.violation(event, "is not open")
			return
		}
		ex.subscriptions[subscribed.Name] = slices.Delete(waits, k, k+1)
		return
	}
	if ex.open[event.SourceEventId] == nil {
		ex.violation(event, "is not open")
	}
	ex.checkAbandonedChild(ex.open[event.SourceEventId])
	delete(ex.open, event.SourceEventId)
}

// checkArrival checks that an event is recorded once.
func (ex *execution) checkArrival(event *journalpb.Event, e *journalpb.ExternalEvent) {
	ex.checkOnce(event, e.RequestId)
	ex.events = append(ex.events, e)
}

// checkCompletion checks that a completed operation was open, and of that kind.
func (ex *execution) checkCompletion(event *journalpb.Event, kind int) {
	scheduled := ex.open[event.SourceEventId]
	if scheduled.TypeNumber() != kind {
		ex.violation(event, "is open as %q", journalpb.TypeName(scheduled.TypeNumber()))
		return
	}
	delete(ex.open, event.SourceEventId)
	switch kind {
	case journalpb.TypeTimerCreated:
		early := event.Timestamp < scheduled.GetTimerCreated().FireAt && event.Origin == nil
		if fireAt := scheduled.GetTimerCreated().FireAt; early || ex.held[scheduled.EventId] || event.GetTimerFired().FireAt != fireAt {
			ex.violation(event, "set for %v, fired at %v", time.Unix(0, fireAt), time.Unix(0, event.Timestamp))
		}
	case journalpb.TypeActivityScheduled:
		ex.checkAttempts(event, scheduled.GetActivityScheduled())
	case journalpb.TypeSubOrchestrationScheduled:
		ex.checkChildEnd(event, scheduled.GetSubOrchestrationScheduled())
	case journalpb.TypeMessageSent:
		ex.checkDelivery(event, scheduled.GetMessageSent())
	}
}

// checkDelivery checks that a delivered message was recorded once, and a rejected one never. The
// programs send each text once.
func (ex *execution) checkDelivery(event *journalpb.Event, sent *journalpb.MessageSent) {
	recorded, want := 0, 0
	if event.GetMessageDelivered() != nil {
		want = 1
	}
	receiver, ok := ex.journal.Instance(sent.Instance)
	for number := uint64(1); ok && number <= receiver.Execution; number++ {
		for input, err := range ex.journal.Events(sent.Instance, number, 1) {
			if err != nil {
				ex.t.Fatal(err)
			}
			if e := input.GetExternalEvent(); e != nil && e.Name == sent.Event.Name && proto.Equal(e.Data, sent.Event.Data) {
				recorded++
			}
		}
	}
	if recorded != want {
		ex.violation(event, "the receiver has recorded it %d times", recorded)
	}
}

// checkAttempts checks the failed attempts and the final one. However often a node was lost, none
// is forgotten or counted twice.
func (ex *execution) checkAttempts(event *journalpb.Event, scheduled *journalpb.ActivityScheduled) {
	var s step
	if err := engine.Decode(scheduled.Input, &s); err != nil {
		ex.t.Fatal(err)
	}
	made := event.GetActivityCompleted().GetAttempts() + event.GetActivityFailed().GetAttempts()
	if failed := event.GetActivityFailed() != nil; int(made) != s.Fails+1 || failed != s.Final {
		ex.violation(event, "failed %t at attempt %d of %+v", failed, made, s)
	}
}

// checkChild checks that a child was scheduled by the parent that it names.
func (ex *execution) checkChild(event *journalpb.Event, parent *journalpb.OperationRef) {
	if parent == nil {
		return
	}
	scheduled, err := ex.journal.Event(parent.Instance, parent.Execution, parent.EventId)
	if err != nil || scheduled.GetSubOrchestrationScheduled().GetInstance() != ex.instance.Instance {
		ex.violation(event, "is not known to its parent %v: %v, %v", parent, scheduled, err)
	}
}

// checkChildEnd checks that the parent has the child's result.
func (ex *execution) checkChildEnd(event *journalpb.Event, scheduled *journalpb.SubOrchestrationScheduled) {
	meta, ok := ex.journal.Instance(scheduled.Instance)
	if !ok {
		ex.violation(event, "of a child that does not exist")
		return
	}
	last, err := ex.journal.Event(meta.Instance, meta.Execution, meta.LastEventId)
	if err != nil {
		ex.t.Fatal(err)
	}
	if completed := event.GetSubOrchestrationCompleted(); (completed != nil) != (last.GetOrchestrationCompleted() != nil) ||
		!proto.Equal(completed.GetResult(), last.GetOrchestrationCompleted().GetOutput()) {
		ex.violation(event, "but the child ended with %v", last)
	}
	if failed := last.GetOrchestrationFailed(); failed != nil && !proto.Equal(event.GetSubOrchestrationFailed().GetError(), failed.Error) {
		ex.violation(event, "but the child failed with %v", failed.Error)
	}
}

// checkAbandonedChild checks that a canceled child ends, unless it is to be abandoned.
func (ex *execution) checkAbandonedChild(scheduled *journalpb.Event) {
	child := scheduled.GetSubOrchestrationScheduled()
	if child == nil || child.Name != lingerHandle.Name() {
		return
	}
	meta, ok := ex.journal.Instance(child.Instance)
	if !ok {
		if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
			ex.violation(scheduled, "was abandoned, and never started")
		}
		return // canceled, and its node lost, before it was started: so it never is
	}
	want := journalpb.Status_STATUS_CANCELED
	switch child.ClosePolicy {
	case journalpb.ClosePolicy_CLOSE_POLICY_TERMINATE:
		want = journalpb.Status_STATUS_TERMINATED
	case journalpb.ClosePolicy_CLOSE_POLICY_ABANDON:
		want = journalpb.Status_STATUS_FAILED // after its own timeout
	}
	if meta.GetStatus() != want {
		ex.violation(scheduled, "was canceled, and is %v, not %v", meta, want)
	}
}

// checkReplay replays all decisions of the code.
func (ex *execution) checkReplay(registry *engine.Registry) {
	again := engine.NewExecution(ex.instance.Instance, ex.number, registry, nil)
	defer again.Evict()
	err := again.Replay(func(yield func(*journalpb.Event, error) bool) {
		for _, event := range ex.history {
			if !yield(event, nil) {
				return
			}
		}
	})
	if err != nil || !again.Ended() {
		ex.t.Errorf("%s, execution %d is not replayed: ended %t, %v", ex.instance.Instance, ex.number, again.Ended(), err)
	}
}
