package actors_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The rules that the journal must keep, whatever happened to the node. They are written
// independently of the engine, from the specification of orchestrations, to check the engine.

// checkAll checks every instance, and replays every history.
func checkAll(t *testing.T, j *state.Machine, registry *engine.Registry) {
	t.Helper()
	for instance := range j.Instances() {
		var before *execution
		for number := uint64(1); number <= instance.Execution; number++ {
			x := newExecution(t, j, instance, number)
			if len(x.history) == 0 {
				continue
			}
			x.check(before)
			x.checkReplay(registry)
			before = x
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
}

func newExecution(t *testing.T, j *state.Machine, instance *journalpb.Instance, number uint64) *execution {
	t.Helper()
	x := &execution{t: t, journal: j, instance: instance, number: number,
		open: make(map[uint64]*journalpb.Event), subscriptions: make(map[string][]uint64), requests: make(map[string]bool)}
	for event, err := range j.Events(instance.Instance, number, 1) {
		if err != nil {
			t.Fatal(err)
		}
		x.history = append(x.history, event)
	}
	return x
}

func (x *execution) violation(event *journalpb.Event, format string, args ...any) {
	x.t.Helper()
	x.t.Errorf("%s, execution %d, event %d, %s: %s", x.instance.Instance, x.number, event.EventId, engine.Describe(event), fmt.Sprintf(format, args...))
}

// check checks one execution. before is the one that continued as this one.
func (x *execution) check(before *execution) {
	if before != nil {
		x.requests = before.requests
		x.checkCarriedOver(before)
	}
	at := int64(0)
	for i, event := range x.history {
		switch last := i == len(x.history)-1; {
		case event.EventId != uint64(i+1):
			x.violation(event, "event_id at place %d", i+1)
		case event.Timestamp < at:
			x.violation(event, "time goes back")
		case (event.GetOrchestrationStarted() != nil) != (i == 0):
			x.violation(event, "at this place")
		case journalpb.IsTerminal(event.TypeNumber()) != last:
			x.violation(event, "a terminal event is the last, and only that")
		}
		at = event.Timestamp
		takesEffect := i == 0 || !x.suspended && (journalpb.SchedulingType(event.TypeNumber()) != 0 || isInput(event))
		x.checkSuspended(event)
		x.checkEvent(event)
		if takesEffect {
			x.visible = x.eventCounts()
		}
	}
	x.checkClosed(x.history[len(x.history)-1])
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
func (x *execution) eventCounts() map[string]int {
	counts := make(map[string]int)
	for _, e := range x.events {
		counts[e.Name]++
	}
	return counts
}

// checkClosed checks that only a termination leaves operations open.
func (x *execution) checkClosed(last *journalpb.Event) {
	if last.GetOrchestrationTerminated() != nil {
		return
	}
	if len(x.open) > 0 {
		x.violation(last, "open after the end: %v", x.open)
	}
	arrivals := x.eventCounts()
	for name, waits := range x.subscriptions {
		if len(waits) > arrivals[name] {
			x.violation(last, "subscriptions %v of %q are open after the end, %d events came", waits, name, arrivals[name])
		}
	}
}

// unconsumed returns the events that no subscription has taken, in order: the k-th subscription
// that was not canceled takes the k-th event of its name.
func (x *execution) unconsumed() []*journalpb.ExternalEvent {
	var left []*journalpb.ExternalEvent
	counts := make(map[string]int)
	for _, e := range x.events {
		if counts[e.Name]++; counts[e.Name] > len(x.subscriptions[e.Name]) {
			left = append(left, e)
		}
	}
	return left
}

// checkCarriedOver checks that unconsumed events are carried over, in order.
func (x *execution) checkCarriedOver(before *execution) {
	last, started := before.history[len(before.history)-1], x.history[0].GetOrchestrationStarted()
	if last.GetOrchestrationContinuedAsNew() == nil {
		x.violation(x.history[0], "follows an execution that does not continue")
	}
	same := func(a, b *journalpb.ExternalEvent) bool { return proto.Equal(a, b) }
	if !slices.EqualFunc(before.unconsumed(), started.GetInbox(), same) {
		x.violation(x.history[0], "begins with the events %v, not %v", started.GetInbox(), before.unconsumed())
	}
}

func (x *execution) checkSuspended(event *journalpb.Event) {
	switch {
	case event.GetOrchestrationSuspended() != nil, event.GetOrchestrationResumed() != nil:
		if suspends := event.GetOrchestrationSuspended() != nil; suspends == x.suspended {
			x.violation(event, "suspended is %t", x.suspended)
		}
		x.suspended = !x.suspended
	case x.suspended && journalpb.SchedulingType(event.TypeNumber()) == 0:
		switch event.TypeNumber() {
		case journalpb.TypeExternalEvent, journalpb.TypeOrchestrationCancelRequested, journalpb.TypeOrchestrationTerminated, journalpb.TypeCancelRequested:
		default:
			x.violation(event, "while suspended")
		}
	}
}

func (x *execution) checkEvent(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		x.events = slices.Clone(body.OrchestrationStarted.Inbox)
		x.checkChild(event, body.OrchestrationStarted.Parent)
	case *journalpb.Event_ActivityScheduled, *journalpb.Event_TimerCreated:
		x.open[event.EventId] = event
	case *journalpb.Event_SubOrchestrationScheduled:
		x.open[event.EventId] = event
	case *journalpb.Event_OrchestrationFailed:
		if strings.Contains(body.OrchestrationFailed.Error.GetMessage(), violationPrefix) {
			x.violation(event, "the code has seen that")
		}
	case *journalpb.Event_OrchestrationChained:
		if _, ok := x.journal.Instance(body.OrchestrationChained.Instance); !ok {
			x.violation(event, "was never started")
		}
	case *journalpb.Event_ExternalSubscribed:
		name := event.GetExternalSubscribed().Name
		x.subscriptions[name] = append(x.subscriptions[name], event.EventId)
	case *journalpb.Event_ExternalEvent:
		x.checkArrival(event, body.ExternalEvent)
	case *journalpb.Event_CancelRequested:
		x.checkCanceled(event)
	default:
		if completes := journalpb.SchedulingType(event.TypeNumber()); completes != 0 {
			x.checkCompletion(event, completes)
		}
	}
}

// checkCanceled checks that a canceled operation was open. A subscription is open until the code
// can have had its event, which may have been recorded while the instance was suspended.
func (x *execution) checkCanceled(event *journalpb.Event) {
	scheduled := x.history[event.SourceEventId-1]
	if subscribed := scheduled.GetExternalSubscribed(); subscribed != nil {
		waits := x.subscriptions[subscribed.Name]
		k := slices.Index(waits, event.SourceEventId)
		if k < x.visible[subscribed.Name] {
			x.violation(event, "is not open")
			return
		}
		x.subscriptions[subscribed.Name] = slices.Delete(waits, k, k+1)
		return
	}
	if x.open[event.SourceEventId] == nil {
		x.violation(event, "is not open")
	}
	x.checkAbandonedChild(x.open[event.SourceEventId])
	delete(x.open, event.SourceEventId)
}

// checkArrival checks that an event is recorded once.
func (x *execution) checkArrival(event *journalpb.Event, e *journalpb.ExternalEvent) {
	if x.requests[e.RequestId] {
		x.violation(event, "is taken twice")
	}
	x.requests[e.RequestId] = e.RequestId != ""
	x.events = append(x.events, e)
}

// checkCompletion checks that a completed operation was open, and of that kind.
func (x *execution) checkCompletion(event *journalpb.Event, kind int) {
	scheduled := x.open[event.SourceEventId]
	if scheduled.TypeNumber() != kind {
		x.violation(event, "is open as %q", journalpb.TypeName(scheduled.TypeNumber()))
		return
	}
	delete(x.open, event.SourceEventId)
	switch kind {
	case journalpb.TypeTimerCreated:
		if fireAt := scheduled.GetTimerCreated().FireAt; event.Timestamp < fireAt || event.GetTimerFired().FireAt != fireAt {
			x.violation(event, "set for %v, fired at %v", time.Unix(0, fireAt), time.Unix(0, event.Timestamp))
		}
	case journalpb.TypeActivityScheduled:
		x.checkAttempts(event, scheduled.GetActivityScheduled())
	case journalpb.TypeSubOrchestrationScheduled:
		x.checkChildEnd(event, scheduled.GetSubOrchestrationScheduled())
	}
}

// checkAttempts checks the failed attempts and the final one. However often a node was lost, none
// is forgotten or counted twice.
func (x *execution) checkAttempts(event *journalpb.Event, scheduled *journalpb.ActivityScheduled) {
	var s step
	if err := engine.Decode(scheduled.Input, &s); err != nil {
		x.t.Fatal(err)
	}
	made := event.GetActivityCompleted().GetAttempts() + event.GetActivityFailed().GetAttempts()
	if failed := event.GetActivityFailed() != nil; int(made) != s.Fails+1 || failed != s.Final {
		x.violation(event, "failed %t at attempt %d of %+v", failed, made, s)
	}
}

// checkChild checks that a child was scheduled by the parent that it names.
func (x *execution) checkChild(event *journalpb.Event, parent *journalpb.OperationRef) {
	if parent == nil {
		return
	}
	scheduled, err := x.journal.Event(parent.Instance, parent.Execution, parent.EventId)
	if err != nil || scheduled.GetSubOrchestrationScheduled().GetInstance() != x.instance.Instance {
		x.violation(event, "is not known to its parent %v: %v, %v", parent, scheduled, err)
	}
}

// checkChildEnd checks that the parent has the child's result.
func (x *execution) checkChildEnd(event *journalpb.Event, scheduled *journalpb.SubOrchestrationScheduled) {
	meta, ok := x.journal.Instance(scheduled.Instance)
	if !ok {
		x.violation(event, "of a child that does not exist")
		return
	}
	last, err := x.journal.Event(meta.Instance, meta.Execution, meta.LastEventId)
	if err != nil {
		x.t.Fatal(err)
	}
	if completed := event.GetSubOrchestrationCompleted(); (completed != nil) != (last.GetOrchestrationCompleted() != nil) ||
		!proto.Equal(completed.GetResult(), last.GetOrchestrationCompleted().GetOutput()) {
		x.violation(event, "but the child ended with %v", last)
	}
	if failed := last.GetOrchestrationFailed(); failed != nil && !proto.Equal(event.GetSubOrchestrationFailed().GetError(), failed.Error) {
		x.violation(event, "but the child failed with %v", failed.Error)
	}
}

// checkAbandonedChild checks that a canceled child ends, unless it is to be abandoned.
func (x *execution) checkAbandonedChild(scheduled *journalpb.Event) {
	child := scheduled.GetSubOrchestrationScheduled()
	if child == nil || child.Name != lingerHandle.Name() {
		return
	}
	meta, ok := x.journal.Instance(child.Instance)
	if !ok {
		if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
			x.violation(scheduled, "was abandoned, and never started")
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
		x.violation(scheduled, "was canceled, and is %v, not %v", meta, want)
	}
}

// checkReplay replays all decisions of the code.
func (x *execution) checkReplay(registry *engine.Registry) {
	again := engine.NewExecution(x.instance.Instance, x.number, registry, nil)
	defer again.Evict()
	err := again.Replay(func(yield func(*journalpb.Event, error) bool) {
		for _, event := range x.history {
			if !yield(event, nil) {
				return
			}
		}
	})
	if err != nil || !again.Ended() {
		x.t.Errorf("%s, execution %d is not replayed: ended %t, %v", x.instance.Instance, x.number, again.Ended(), err)
	}
}
