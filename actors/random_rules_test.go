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
	"github.com/tenuto-dev/tenuto/replay"
)

// The rules that what a node has left in its journal keeps, whatever has
// happened to it. They are written apart from the engine, from the text that
// says what an orchestration means, to judge it.

// checkAll judges every instance, and replays every history.
func checkAll(t *testing.T, j *state.Machine, registry *replay.Registry) {
	t.Helper()
	for instance := range j.Instances() {
		var before *execution
		for number := uint64(1); number <= instance.Execution; number++ {
			x := newExecution(t, j, instance, number)
			if len(x.history) == 0 {
				continue
			}
			x.judge(before)
			x.replays(registry)
			before = x
		}
	}
	for open := range j.Open() {
		t.Errorf("still open: %v", open)
	}
	for start := range j.Chained() {
		t.Errorf("chained and not started: %v", start)
	}
	for orphan := range j.Orphans() {
		t.Errorf("an orphan that runs: %v", orphan)
	}
}

// An execution is judged event by event.
type execution struct {
	t        *testing.T
	journal  *state.Machine
	instance *journalpb.Instance
	number   uint64
	history  []*journalpb.Event

	open      map[uint64]*journalpb.Event // the schedule of each open operation but subscriptions
	waits     map[string][]uint64         // subscriptions that were not canceled, by name, in order
	arrived   []*journalpb.ExternalEvent  // in order, also those that a subscription has taken
	effective map[string]int              // of these, by name, how many the code may have had
	requests  map[string]bool             // taken in this run
	suspended bool
}

func newExecution(t *testing.T, j *state.Machine, instance *journalpb.Instance, number uint64) *execution {
	t.Helper()
	x := &execution{t: t, journal: j, instance: instance, number: number,
		open: make(map[uint64]*journalpb.Event), waits: make(map[string][]uint64), requests: make(map[string]bool)}
	for event, err := range j.Events(instance.Instance, number, 1) {
		if err != nil {
			t.Fatal(err)
		}
		x.history = append(x.history, event)
	}
	return x
}

func (x *execution) blame(event *journalpb.Event, format string, args ...any) {
	x.t.Helper()
	x.t.Errorf("%s, execution %d, event %d, %s: %s", x.instance.Instance, x.number, event.EventId, replay.Describe(event), fmt.Sprintf(format, args...))
}

// judge checks one execution. before is the one that continued as this one.
func (x *execution) judge(before *execution) {
	if before != nil {
		x.requests = before.requests
		x.takenOver(before)
	}
	at := int64(0)
	for i, event := range x.history {
		switch last := i == len(x.history)-1; {
		case event.EventId != uint64(i+1):
			x.blame(event, "event_id at place %d", i+1)
		case event.Timestamp < at:
			x.blame(event, "time goes back")
		case (event.GetOrchestrationStarted() != nil) != (i == 0):
			x.blame(event, "at this place")
		case journalpb.Terminal(event.Arm()) != last:
			x.blame(event, "a terminal event is the last, and only that")
		}
		at = event.Timestamp
		takesEffect := i == 0 || !x.suspended && (journalpb.Completes(event.Arm()) != 0 || isInput(event))
		x.whileSuspended(event)
		x.event(event)
		if takesEffect {
			x.effective = x.arrivals()
		}
	}
	x.closed(x.history[len(x.history)-1])
}

// isInput reports whether an event comes from outside, and is no completion.
func isInput(event *journalpb.Event) bool {
	switch event.Arm() {
	case journalpb.ArmExternalEvent, journalpb.ArmOrchestrationCancelRequested, journalpb.ArmOrchestrationTerminated,
		journalpb.ArmOrchestrationSuspended, journalpb.ArmOrchestrationResumed:
		return true
	}
	return false
}

// arrivals returns how many events of each name have arrived.
func (x *execution) arrivals() map[string]int {
	counts := make(map[string]int)
	for _, e := range x.arrived {
		counts[e.Name]++
	}
	return counts
}

// closed: only a termination leaves operations open.
func (x *execution) closed(last *journalpb.Event) {
	if last.GetOrchestrationTerminated() != nil {
		return
	}
	if len(x.open) > 0 {
		x.blame(last, "open after the end: %v", x.open)
	}
	arrivals := x.arrivals()
	for name, waits := range x.waits {
		if len(waits) > arrivals[name] {
			x.blame(last, "subscriptions %v of %q are open after the end, %d events came", waits, name, arrivals[name])
		}
	}
}

// untaken returns the events that no subscription has taken, in order: the k-th
// subscription that was not canceled has the k-th event of its name.
func (x *execution) untaken() []*journalpb.ExternalEvent {
	var left []*journalpb.ExternalEvent
	counts := make(map[string]int)
	for _, e := range x.arrived {
		if counts[e.Name]++; counts[e.Name] > len(x.waits[e.Name]) {
			left = append(left, e)
		}
	}
	return left
}

// takenOver: events that nobody has taken, in their order.
func (x *execution) takenOver(before *execution) {
	last, started := before.history[len(before.history)-1], x.history[0].GetOrchestrationStarted()
	if last.GetOrchestrationContinuedAsNew() == nil {
		x.blame(x.history[0], "follows an execution that does not continue")
	}
	same := func(a, b *journalpb.ExternalEvent) bool { return proto.Equal(a, b) }
	if !slices.EqualFunc(before.untaken(), started.GetInbox(), same) {
		x.blame(x.history[0], "begins with the events %v, not %v", started.GetInbox(), before.untaken())
	}
}

func (x *execution) whileSuspended(event *journalpb.Event) {
	switch {
	case event.GetOrchestrationSuspended() != nil, event.GetOrchestrationResumed() != nil:
		if suspends := event.GetOrchestrationSuspended() != nil; suspends == x.suspended {
			x.blame(event, "suspended is %t", x.suspended)
		}
		x.suspended = !x.suspended
	case x.suspended && journalpb.Completes(event.Arm()) == 0:
		switch event.Arm() {
		case journalpb.ArmExternalEvent, journalpb.ArmOrchestrationCancelRequested, journalpb.ArmOrchestrationTerminated, journalpb.ArmCancelRequested:
		default:
			x.blame(event, "while suspended")
		}
	}
}

func (x *execution) event(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		x.arrived = slices.Clone(body.OrchestrationStarted.Inbox)
		x.child(event, body.OrchestrationStarted.Parent)
	case *journalpb.Event_ActivityScheduled, *journalpb.Event_TimerCreated:
		x.open[event.EventId] = event
	case *journalpb.Event_SubOrchestrationScheduled:
		x.open[event.EventId] = event
	case *journalpb.Event_OrchestrationFailed:
		if strings.Contains(body.OrchestrationFailed.Error.GetMessage(), broken) {
			x.blame(event, "the code has seen that")
		}
	case *journalpb.Event_OrchestrationChained:
		if _, ok := x.journal.Instance(body.OrchestrationChained.Instance); !ok {
			x.blame(event, "was never started")
		}
	case *journalpb.Event_ExternalSubscribed:
		name := event.GetExternalSubscribed().Name
		x.waits[name] = append(x.waits[name], event.EventId)
	case *journalpb.Event_ExternalEvent:
		x.arrive(event, body.ExternalEvent)
	case *journalpb.Event_CancelRequested:
		x.canceled(event)
	default:
		if completes := journalpb.Completes(event.Arm()); completes != 0 {
			x.complete(event, completes)
		}
	}
}

// canceled: what is canceled was open. A subscription is open as long as the code cannot
// have had its event, though that may have been recorded while the instance was suspended.
func (x *execution) canceled(event *journalpb.Event) {
	scheduled := x.history[event.SourceEventId-1]
	if subscribed := scheduled.GetExternalSubscribed(); subscribed != nil {
		waits := x.waits[subscribed.Name]
		k := slices.Index(waits, event.SourceEventId)
		if k < x.effective[subscribed.Name] {
			x.blame(event, "is not open")
			return
		}
		x.waits[subscribed.Name] = slices.Delete(waits, k, k+1)
		return
	}
	if x.open[event.SourceEventId] == nil {
		x.blame(event, "is not open")
	}
	x.abandoned(x.open[event.SourceEventId])
	delete(x.open, event.SourceEventId)
}

// arrive: it is recorded once.
func (x *execution) arrive(event *journalpb.Event, e *journalpb.ExternalEvent) {
	if x.requests[e.RequestId] {
		x.blame(event, "is taken twice")
	}
	x.requests[e.RequestId] = e.RequestId != ""
	x.arrived = append(x.arrived, e)
}

// complete: what is completed was open, and of that kind.
func (x *execution) complete(event *journalpb.Event, kind int) {
	scheduled := x.open[event.SourceEventId]
	if scheduled.Arm() != kind {
		x.blame(event, "is open as %q", journalpb.ArmName(scheduled.Arm()))
		return
	}
	delete(x.open, event.SourceEventId)
	switch kind {
	case journalpb.ArmTimerCreated:
		if fireAt := scheduled.GetTimerCreated().FireAt; event.Timestamp < fireAt || event.GetTimerFired().FireAt != fireAt {
			x.blame(event, "set for %v, fired at %v", time.Unix(0, fireAt), time.Unix(0, event.Timestamp))
		}
	case journalpb.ArmActivityScheduled:
		x.attempts(event, scheduled.GetActivityScheduled())
	case journalpb.ArmSubOrchestrationScheduled:
		x.childEnded(event, scheduled.GetSubOrchestrationScheduled())
	}
}

// attempts: those that failed, and the one that ended it. However often a node
// was lost meanwhile, none is forgotten and none counted twice.
func (x *execution) attempts(event *journalpb.Event, scheduled *journalpb.ActivityScheduled) {
	var s step
	if err := replay.Decode(scheduled.Input, &s); err != nil {
		x.t.Fatal(err)
	}
	made := event.GetActivityCompleted().GetAttempts() + event.GetActivityFailed().GetAttempts()
	if failed := event.GetActivityFailed() != nil; int(made) != s.Fails+1 || failed != s.Final {
		x.blame(event, "failed %t at attempt %d of %+v", failed, made, s)
	}
}

// child: it was scheduled by the parent that it names.
func (x *execution) child(event *journalpb.Event, parent *journalpb.OperationRef) {
	if parent == nil {
		return
	}
	scheduled, err := x.journal.Event(parent.Instance, parent.Execution, parent.EventId)
	if err != nil || scheduled.GetSubOrchestrationScheduled().GetInstance() != x.instance.Instance {
		x.blame(event, "is not known to its parent %v: %v, %v", parent, scheduled, err)
	}
}

// childEnded: the parent has what the child has come to.
func (x *execution) childEnded(event *journalpb.Event, scheduled *journalpb.SubOrchestrationScheduled) {
	known, ok := x.journal.Instance(scheduled.Instance)
	if !ok {
		x.blame(event, "of a child that does not exist")
		return
	}
	last, err := x.journal.Event(known.Instance, known.Execution, known.LastEventId)
	if err != nil {
		x.t.Fatal(err)
	}
	if completed := event.GetSubOrchestrationCompleted(); (completed != nil) != (last.GetOrchestrationCompleted() != nil) ||
		!proto.Equal(completed.GetResult(), last.GetOrchestrationCompleted().GetOutput()) {
		x.blame(event, "but the child ended with %v", last)
	}
	if failed := last.GetOrchestrationFailed(); failed != nil && !proto.Equal(event.GetSubOrchestrationFailed().GetError(), failed.Error) {
		x.blame(event, "but the child failed with %v", failed.Error)
	}
}

// abandoned: a child that was given up does not linger, if it is not to.
func (x *execution) abandoned(scheduled *journalpb.Event) {
	child := scheduled.GetSubOrchestrationScheduled()
	if child == nil || child.Name != lingerHandle.Name() {
		return
	}
	known, ok := x.journal.Instance(child.Instance)
	if !ok {
		if child.ClosePolicy == journalpb.ClosePolicy_CLOSE_POLICY_ABANDON {
			x.blame(scheduled, "was abandoned, and never started")
		}
		return // given up, and its node lost, before it was started: so it never is
	}
	want := journalpb.Status_STATUS_CANCELLED
	switch child.ClosePolicy {
	case journalpb.ClosePolicy_CLOSE_POLICY_TERMINATE:
		want = journalpb.Status_STATUS_TERMINATED
	case journalpb.ClosePolicy_CLOSE_POLICY_ABANDON:
		want = journalpb.Status_STATUS_FAILED // after its own limit of time
	}
	if known.GetStatus() != want {
		x.blame(scheduled, "was given up, and is %v, not %v", known, want)
	}
}

// replays has the code make every decision again.
func (x *execution) replays(registry *replay.Registry) {
	again := replay.NewExecution(x.instance.Instance, x.number, registry, nil)
	defer again.Drop()
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
