package replay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The rules that every history keeps. They are written apart from the engine,
// from the text that says what an orchestration means, to judge it.

// openOperations returns the schedules of activities, timers and children that
// a history neither completes nor gives up.
func openOperations(history []*journalpb.Event) []*journalpb.Event {
	closed := make(map[uint64]bool)
	for _, event := range history {
		closed[event.SourceEventId] = true
	}
	var open []*journalpb.Event
	for _, event := range history {
		switch event.Arm() {
		case journalpb.ArmActivityScheduled, journalpb.ArmTimerCreated, journalpb.ArmSubOrchestrationScheduled:
			if !closed[event.EventId] {
				open = append(open, event)
			}
		}
	}
	return open
}

// A judge walks along a history and knows what may come next.
type judge struct {
	t  *testing.T
	in *instance

	at        int64
	open      map[uint64]int             // the type of each open operation but subscriptions
	seen      map[uint64]bool            // what was ever scheduled
	names     map[uint64]string          // of subscriptions that were not canceled
	inOrder   map[string][]uint64        // the same, by name
	arrived   []*journalpb.ExternalEvent // in order
	arrivals  map[string]int             // how many, by name
	effective map[string]int             // of these, how many the code may have had
	requests  map[string]bool
	order     []string // of the requests
	markers   map[string]bool
	status    *journalpb.Payload
	closers   []string // registered and not yet called
	closing   bool
	suspended bool
	cancels   int
	reason    string // of the request to cancel
}

// checkRules judges one execution. next is the first event of the one after.
func checkRules(t *testing.T, in *instance, next *journalpb.Event) {
	t.Helper()
	j := &judge{t: t, in: in, open: make(map[uint64]int), seen: make(map[uint64]bool), names: make(map[uint64]string), inOrder: make(map[string][]uint64),
		arrivals: make(map[string]int), effective: make(map[string]int),
		requests: make(map[string]bool), markers: make(map[string]bool)}
	for i, event := range in.history {
		switch {
		case event.EventId != uint64(i+1):
			j.blame(event, "event_id at place %d", i+1)
		case event.Timestamp < j.at:
			j.blame(event, "time goes back")
		case (event.GetOrchestrationStarted() != nil) != (i == 0):
			j.blame(event, "at this place")
		case journalpb.Terminal(event.Arm()) && i != len(in.history)-1:
			j.blame(event, "before the end")
		}
		j.at = event.Timestamp
		takesEffect := i == 0 || !j.suspended && (journalpb.Completes(event.Arm()) != 0 || isInput(event))
		if takesEffect {
			j.effective = j.soFar()
		}
		j.pause(event)
		j.event(event)
		if takesEffect {
			j.effective = j.soFar()
		}
	}
	j.end(in.history[len(in.history)-1], next)
}

// soFar returns how many events of each name have arrived.
func (j *judge) soFar() map[string]int {
	counts := make(map[string]int)
	for name, n := range j.arrivals {
		counts[name] = n
	}
	return counts
}

func isInput(event *journalpb.Event) bool {
	switch event.Arm() {
	case journalpb.ArmExternalEvent, journalpb.ArmOrchestrationCancelRequested, journalpb.ArmOrchestrationTerminated,
		journalpb.ArmOrchestrationSuspended, journalpb.ArmOrchestrationResumed:
		return true
	}
	return false
}

func (j *judge) blame(event *journalpb.Event, format string, args ...any) {
	j.t.Helper()
	j.t.Errorf("execution %d, event %d, %s: %s", j.in.execution(), event.EventId, replay.Describe(event), fmt.Sprintf(format, args...))
}

// pause: while suspended an instance takes messages, and does nothing.
func (j *judge) pause(event *journalpb.Event) {
	switch arm := event.Arm(); {
	case event.GetOrchestrationSuspended() != nil, event.GetOrchestrationResumed() != nil:
		if suspends := event.GetOrchestrationSuspended() != nil; suspends == j.suspended {
			j.blame(event, "suspended is %t", j.suspended)
		}
		j.suspended = !j.suspended
	case j.suspended && journalpb.Completes(arm) == 0:
		switch arm {
		case journalpb.ArmExternalEvent, journalpb.ArmOrchestrationCancelRequested, journalpb.ArmOrchestrationTerminated:
		default:
			j.blame(event, "while suspended")
		}
	}
}

func (j *judge) event(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		j.status = body.OrchestrationStarted.Status
		for _, e := range body.OrchestrationStarted.Inbox {
			if !slices.Contains(body.OrchestrationStarted.RequestIds, e.RequestId) {
				j.request(event, e.RequestId)
			}
			j.arrive(e)
		}
		for _, id := range body.OrchestrationStarted.RequestIds {
			if !j.requests[id] {
				j.request(event, id)
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
		j.instanceID(event, body.SubOrchestrationScheduled.Instance)
	case *journalpb.Event_OrchestrationChained:
		j.instanceID(event, body.OrchestrationChained.Instance)
	case *journalpb.Event_ExternalSubscribed:
		name := body.ExternalSubscribed.Name
		j.seen[event.EventId] = true
		j.names[event.EventId] = name
		j.inOrder[name] = append(j.inOrder[name], event.EventId)
	case *journalpb.Event_ExternalEvent:
		j.request(event, body.ExternalEvent.RequestId)
		j.arrive(body.ExternalEvent)
	case *journalpb.Event_CancelRequested:
		j.cancel(event)
	case *journalpb.Event_OrchestrationCancelRequested:
		j.request(event, body.OrchestrationCancelRequested.RequestId)
		j.reason = body.OrchestrationCancelRequested.Reason
		if j.cancels++; j.cancels > 1 {
			j.blame(event, "once more")
		}
	case *journalpb.Event_SideEffectRecorded:
		j.sideEffect(event)
	case *journalpb.Event_StatusSet:
		j.setStatus(event, body.StatusSet.Value)
	default:
		if completes := journalpb.Completes(event.Arm()); completes != 0 {
			j.close(event, completes)
		}
	}
}

func (j *judge) request(event *journalpb.Event, id string) {
	if j.requests[id] {
		j.blame(event, "request %s is taken twice", id)
	}
	j.requests[id] = id != ""
	if id != "" {
		j.order = append(j.order, id)
	}
}

func (j *judge) schedule(event *journalpb.Event) {
	j.open[event.EventId] = event.Arm()
	j.seen[event.EventId] = true
}

// close: what is closed was open, and of the right kind.
func (j *judge) close(event *journalpb.Event, arm int) {
	source := event.SourceEventId
	if open := j.open[source]; open == 0 || open != arm {
		j.blame(event, "was scheduled %t, is open as %q", j.seen[source], journalpb.ArmName(open))
	}
	delete(j.open, source)
}

// cancel: what is canceled was open; the event of a subscription may have come while
// the instance was suspended, and goes to the next one then.
func (j *judge) cancel(event *journalpb.Event) {
	name, subscribed := j.names[event.SourceEventId]
	if !subscribed {
		j.close(event, j.open[event.SourceEventId])
		return
	}
	at := slices.Index(j.inOrder[name], event.SourceEventId)
	if at < j.effective[name] {
		j.blame(event, "the subscription has had its event")
	}
	delete(j.names, event.SourceEventId)
	j.inOrder[name] = slices.Delete(j.inOrder[name], at, at+1)
}

// instanceID: derived from the event, or one that the program chooses.
func (j *judge) instanceID(event *journalpb.Event, id string) {
	if id != fmt.Sprintf("i::%d.%d", j.in.execution(), event.EventId) && !strings.HasPrefix(id, "chosen-") {
		j.blame(event, "instance %q", id)
	}
}

// arrive: the k-th subscription that was not canceled gets the k-th event.
func (j *judge) arrive(e *journalpb.ExternalEvent) {
	j.arrived = append(j.arrived, e)
	j.arrivals[e.Name]++
}

// unconsumed returns the events that no subscription has had, in order.
func (j *judge) unconsumed() []*journalpb.ExternalEvent {
	had := make(map[string]int)
	var rest []*journalpb.ExternalEvent
	for _, e := range j.arrived {
		if had[e.Name]++; had[e.Name] > len(j.inOrder[e.Name]) {
			rest = append(rest, e)
		}
	}
	return rest
}

// waiting returns how many subscriptions have had no event.
func (j *judge) waiting() int {
	n := 0
	for name, subscriptions := range j.inOrder {
		n += max(len(subscriptions)-j.arrivals[name], 0)
	}
	return n
}

func (j *judge) sideEffect(event *journalpb.Event) {
	label := event.GetSideEffectRecorded().Label
	if !strings.HasPrefix(label, "tenuto.patch/") {
		return
	}
	if j.markers[label] {
		j.blame(event, "a second marker")
	}
	j.markers[label] = true
}

// setStatus reads the statuses by which a program says what it registers for
// its end, and when that is called: the latest first, each once, and nothing
// of it before the end of the body.
func (j *judge) setStatus(event *journalpb.Event, value *journalpb.Payload) {
	j.status = value
	what, name, _ := strings.Cut(strings.Trim(string(value.Data), `"`), " ")
	switch what {
	case "registers":
		j.closers = append(j.closers, name)
	case "closes":
		j.closing = true
		if last := len(j.closers) - 1; last < 0 || j.closers[last] != name {
			j.blame(event, "of %q", j.closers)
		} else {
			j.closers = j.closers[:last]
		}
	}
}

func (j *judge) end(last, next *journalpb.Event) {
	continued := last.GetOrchestrationContinuedAsNew()
	switch {
	case !j.in.ended:
		switch {
		case journalpb.Terminal(last.Arm()) || next != nil:
			j.blame(last, "goes on")
		case !j.suspended && len(j.open)+j.waiting() == 0:
			j.blame(last, "the code waits for nothing")
		}
		return
	case last.GetOrchestrationTerminated() != nil:
		return
	case len(j.open)+j.waiting() > 0:
		j.blame(last, "open after the end: %v, %d subscriptions", j.open, j.waiting())
	case continued == nil && len(j.closers) > 0:
		j.blame(last, "clean-up was not called: %q", j.closers)
	case continued != nil && j.closing:
		j.blame(last, "clean-up was called")
	case last.GetOrchestrationCancelled() != nil && j.cancels == 0:
		j.blame(last, "nobody asked for it")
	}
	if continued != nil {
		j.handOver(last, continued, next)
	}
}

// handOver: what nobody has taken, in order; the status; the same name.
func (j *judge) handOver(last *journalpb.Event, continued *journalpb.OrchestrationContinuedAsNew, next *journalpb.Event) {
	if diff := cmp.Diff(j.unconsumed(), continued.Inbox, protocmp.Transform()); diff != "" {
		j.blame(last, "inbox (-want +got):\n%s", diff)
	}
	if next == nil {
		return
	}
	want := &journalpb.OrchestrationStarted{Name: "script", Version: continued.Version, Input: continued.Input, Inbox: continued.Inbox, Status: j.status,
		RequestIds: j.order[max(len(j.order)-256, 0):]}
	if j.cancels > 0 && !j.in.told {
		want.CancelRequested = &journalpb.OrchestrationCancelRequested{Reason: j.reason}
	}
	if !proto.Equal(want, next.GetOrchestrationStarted()) || next.EventId != 1 || next.Timestamp < last.Timestamp {
		j.blame(last, "is followed by %v", next)
	}
}
