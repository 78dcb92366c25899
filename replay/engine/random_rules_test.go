package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The rules that every history must satisfy. They are written independently of the engine, from the
// specification of orchestrations.

// openOperations returns the schedules of activities, timers and children that a history neither
// completes nor cancels.
func openOperations(history []*journalpb.Event) []*journalpb.Event {
	closed := make(map[uint64]bool)
	for _, event := range history {
		closed[event.SourceEventId] = true
	}
	var open []*journalpb.Event
	for _, event := range history {
		switch event.TypeNumber() {
		case journalpb.TypeActivityScheduled, journalpb.TypeTimerCreated, journalpb.TypeSubOrchestrationScheduled:
			if !closed[event.EventId] {
				open = append(open, event)
			}
		}
	}
	return open
}

// A historyChecker walks a history and checks each event against the rules.
type historyChecker struct {
	t  *testing.T
	in *instance

	lastTime  int64
	open      map[uint64]int             // type of each open operation except subscriptions
	seen      map[uint64]bool            // ever scheduled
	names     map[uint64]string          // of subscriptions that were not canceled
	inOrder   map[string][]uint64        // the same, by name
	arrived   []*journalpb.ExternalEvent // in order
	arrivals  map[string]int             // count by name
	effective map[string]int             // how many of these the code may have received
	requests  map[string]bool
	order     []string // from the requests
	markers   map[string]bool
	status    *journalpb.Payload
	closers   []string // registered and not yet called
	closing   bool
	suspended bool
	cancels   int
	reason    string // from the cancel request
}

// checkRules checks one execution. next is the first event of the next execution.
func checkRules(t *testing.T, in *instance, next *journalpb.Event) {
	t.Helper()
	j := &historyChecker{t: t, in: in, open: make(map[uint64]int), seen: make(map[uint64]bool), names: make(map[uint64]string), inOrder: make(map[string][]uint64),
		arrivals: make(map[string]int), effective: make(map[string]int),
		requests: make(map[string]bool), markers: make(map[string]bool)}
	for i, event := range in.history {
		switch {
		case event.EventId != uint64(i+1):
			j.violation(event, "event_id at place %d", i+1)
		case event.Timestamp < j.lastTime:
			j.violation(event, "time goes back")
		case (event.GetOrchestrationStarted() != nil) != (i == 0):
			j.violation(event, "at this place")
		case journalpb.IsTerminal(event.TypeNumber()) && i != len(in.history)-1:
			j.violation(event, "before the end")
		}
		j.lastTime = event.Timestamp
		takesEffect := i == 0 || !j.suspended && (journalpb.SchedulingType(event.TypeNumber()) != 0 || isInput(event))
		if takesEffect {
			j.effective = j.arrivedCounts()
		}
		j.checkSuspension(event)
		j.checkEvent(event)
		if takesEffect {
			j.effective = j.arrivedCounts()
		}
	}
	j.checkEnd(in.history[len(in.history)-1], next)
}

// arrivedCounts returns the number of arrived events by name.
func (j *historyChecker) arrivedCounts() map[string]int {
	counts := make(map[string]int)
	for name, n := range j.arrivals {
		counts[name] = n
	}
	return counts
}

func isInput(event *journalpb.Event) bool {
	switch event.TypeNumber() {
	case journalpb.TypeExternalEvent, journalpb.TypeOrchestrationCancelRequested, journalpb.TypeOrchestrationTerminated,
		journalpb.TypeOrchestrationSuspended, journalpb.TypeOrchestrationResumed:
		return true
	}
	return false
}

func (j *historyChecker) violation(event *journalpb.Event, format string, args ...any) {
	j.t.Helper()
	j.t.Errorf("execution %d, event %d, %s: %s", j.in.execution(), event.EventId, engine.Describe(event), fmt.Sprintf(format, args...))
}

// checkSuspension checks that a suspended instance records only messages.
func (j *historyChecker) checkSuspension(event *journalpb.Event) {
	switch eventType := event.TypeNumber(); {
	case event.GetOrchestrationSuspended() != nil, event.GetOrchestrationResumed() != nil:
		if suspends := event.GetOrchestrationSuspended() != nil; suspends == j.suspended {
			j.violation(event, "suspended is %t", j.suspended)
		}
		j.suspended = !j.suspended
	case j.suspended && journalpb.SchedulingType(eventType) == 0:
		switch eventType {
		case journalpb.TypeExternalEvent, journalpb.TypeOrchestrationCancelRequested, journalpb.TypeOrchestrationTerminated:
		default:
			j.violation(event, "while suspended")
		}
	}
}

func (j *historyChecker) checkEvent(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		j.status = body.OrchestrationStarted.Status
		for _, e := range body.OrchestrationStarted.Inbox {
			if !slices.Contains(body.OrchestrationStarted.RequestIds, e.RequestId) {
				j.addRequest(event, e.RequestId)
			}
			j.arrive(e)
		}
		for _, id := range body.OrchestrationStarted.RequestIds {
			if !j.requests[id] {
				j.addRequest(event, id)
			}
		}
		if carried := body.OrchestrationStarted.CancelRequested; carried != nil {
			j.cancels++
			j.reason = carried.Reason
		}
	case *journalpb.Event_ActivityScheduled, *journalpb.Event_TimerCreated:
		j.schedule(event)
	case *journalpb.Event_SubOrchestrationScheduled:
		j.schedule(event)
		j.checkInstanceID(event, body.SubOrchestrationScheduled.Instance)
	case *journalpb.Event_OrchestrationChained:
		j.checkInstanceID(event, body.OrchestrationChained.Instance)
	case *journalpb.Event_ExternalSubscribed:
		name := body.ExternalSubscribed.Name
		j.seen[event.EventId] = true
		j.names[event.EventId] = name
		j.inOrder[name] = append(j.inOrder[name], event.EventId)
	case *journalpb.Event_ExternalEvent:
		j.addRequest(event, body.ExternalEvent.RequestId)
		j.arrive(body.ExternalEvent)
	case *journalpb.Event_CancelRequested:
		j.cancel(event)
	case *journalpb.Event_OrchestrationCancelRequested:
		j.addRequest(event, body.OrchestrationCancelRequested.RequestId)
		j.reason = body.OrchestrationCancelRequested.Reason
		if j.cancels++; j.cancels > 1 {
			j.violation(event, "once more")
		}
	case *journalpb.Event_SideEffectRecorded:
		j.checkSideEffect(event)
	case *journalpb.Event_StatusSet:
		j.checkStatus(event, body.StatusSet.Value)
	default:
		if completes := journalpb.SchedulingType(event.TypeNumber()); completes != 0 {
			j.close(event, completes)
		}
	}
}

func (j *historyChecker) addRequest(event *journalpb.Event, id string) {
	if j.requests[id] {
		j.violation(event, "request %s is taken twice", id)
	}
	j.requests[id] = id != ""
	if id != "" {
		j.order = append(j.order, id)
	}
}

func (j *historyChecker) schedule(event *journalpb.Event) {
	j.open[event.EventId] = event.TypeNumber()
	j.seen[event.EventId] = true
}

// close checks that a completed operation was open and of the right type.
func (j *historyChecker) close(event *journalpb.Event, eventType int) {
	source := event.SourceEventId
	if open := j.open[source]; open == 0 || open != eventType {
		j.violation(event, "was scheduled %t, is open as %q", j.seen[source], journalpb.TypeName(open))
	}
	delete(j.open, source)
}

// cancel checks that a canceled operation was open. The event of a subscription may have arrived
// while the instance was suspended; it then goes to the next one.
func (j *historyChecker) cancel(event *journalpb.Event) {
	name, subscribed := j.names[event.SourceEventId]
	if !subscribed {
		j.close(event, j.open[event.SourceEventId])
		return
	}
	at := slices.Index(j.inOrder[name], event.SourceEventId)
	if at < j.effective[name] {
		j.violation(event, "the subscription has had its event")
	}
	delete(j.names, event.SourceEventId)
	j.inOrder[name] = slices.Delete(j.inOrder[name], at, at+1)
}

// checkInstanceID checks an ID that is derived from the event or chosen by the program.
func (j *historyChecker) checkInstanceID(event *journalpb.Event, id string) {
	if id != fmt.Sprintf("i::%d.%d", j.in.execution(), event.EventId) && !strings.HasPrefix(id, "chosen-") {
		j.violation(event, "instance %q", id)
	}
}

// arrive gives the k-th event to the k-th subscription that was not canceled.
func (j *historyChecker) arrive(e *journalpb.ExternalEvent) {
	j.arrived = append(j.arrived, e)
	j.arrivals[e.Name]++
}

// unconsumedEvents returns the events that no subscription received, in order.
func (j *historyChecker) unconsumedEvents() []*journalpb.ExternalEvent {
	consumed := make(map[string]int)
	var rest []*journalpb.ExternalEvent
	for _, e := range j.arrived {
		if consumed[e.Name]++; consumed[e.Name] > len(j.inOrder[e.Name]) {
			rest = append(rest, e)
		}
	}
	return rest
}

// waitingCount returns the number of subscriptions without an event.
func (j *historyChecker) waitingCount() int {
	n := 0
	for name, subscriptions := range j.inOrder {
		n += max(len(subscriptions)-j.arrivals[name], 0)
	}
	return n
}

func (j *historyChecker) checkSideEffect(event *journalpb.Event) {
	label := event.GetSideEffectRecorded().Label
	if !strings.HasPrefix(label, "tenuto.patch/") {
		return
	}
	if j.markers[label] {
		j.violation(event, "a second marker")
	}
	j.markers[label] = true
}

// checkStatus reads the statuses with which a program reports its OnClose functions and their
// calls: last registered first, each once, and none before the end of the body.
func (j *historyChecker) checkStatus(event *journalpb.Event, value *journalpb.Payload) {
	j.status = value
	what, name, _ := strings.Cut(strings.Trim(string(value.Data), `"`), " ")
	switch what {
	case "registers":
		j.closers = append(j.closers, name)
	case "closes":
		j.closing = true
		if last := len(j.closers) - 1; last < 0 || j.closers[last] != name {
			j.violation(event, "of %q", j.closers)
		} else {
			j.closers = j.closers[:last]
		}
	}
}

func (j *historyChecker) checkEnd(last, next *journalpb.Event) {
	continued := last.GetOrchestrationContinuedAsNew()
	switch {
	case !j.in.ended:
		switch {
		case journalpb.IsTerminal(last.TypeNumber()) || next != nil:
			j.violation(last, "goes on")
		case !j.suspended && len(j.open)+j.waitingCount() == 0:
			j.violation(last, "the code waits for nothing")
		}
		return
	case last.GetOrchestrationTerminated() != nil:
		return
	case len(j.open)+j.waitingCount() > 0:
		j.violation(last, "open after the end: %v, %d subscriptions", j.open, j.waitingCount())
	case continued == nil && len(j.closers) > 0:
		j.violation(last, "clean-up was not called: %q", j.closers)
	case continued != nil && j.closing:
		j.violation(last, "clean-up was called")
	case last.GetOrchestrationCanceled() != nil && j.cancels == 0:
		j.violation(last, "nobody asked for it")
	}
	if continued != nil {
		j.checkSuccessor(last, continued, next)
	}
}

// checkSuccessor checks the carried-over events in order, the status, and the name.
func (j *historyChecker) checkSuccessor(last *journalpb.Event, continued *journalpb.OrchestrationContinuedAsNew, next *journalpb.Event) {
	if diff := cmp.Diff(j.unconsumedEvents(), continued.Inbox, protocmp.Transform()); diff != "" {
		j.violation(last, "inbox (-want +got):\n%s", diff)
	}
	if next == nil {
		return
	}
	want := &journalpb.OrchestrationStarted{Name: "script", Version: continued.Version, Input: continued.Input, Inbox: continued.Inbox, Status: j.status,
		RequestIds: j.order[max(len(j.order)-256, 0):]}
	if j.cancels > 0 && !j.in.cancelSeen {
		want.CancelRequested = &journalpb.OrchestrationCancelRequested{Reason: j.reason}
	}
	if !proto.Equal(want, next.GetOrchestrationStarted()) || next.EventId != 1 || next.Timestamp < last.Timestamp {
		j.violation(last, "is followed by %v", next)
	}
}
