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
	open      map[uint64]int             // the type of each open operation
	seen      map[uint64]bool            // what was ever scheduled
	waiting   map[string][]uint64        // subscriptions, by name
	arrived   []*journalpb.ExternalEvent // and not taken, in order
	requests  map[string]bool
	order     []string // of the requests
	markers   map[string]bool
	status    *journalpb.Payload
	closers   []string // registered and not yet called
	closing   bool
	suspended bool
	cancels   int
}

// checkRules judges one execution. next is the first event of the one after.
func checkRules(t *testing.T, in *instance, next *journalpb.Event) {
	t.Helper()
	j := &judge{t: t, in: in, open: make(map[uint64]int), seen: make(map[uint64]bool), waiting: make(map[string][]uint64),
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
		j.pause(event)
		j.event(event)
	}
	j.end(in.history[len(in.history)-1], next)
}

func (j *judge) blame(event *journalpb.Event, format string, args ...any) {
	j.t.Helper()
	j.t.Errorf("execution %d, event %d, %s: %s", j.in.execution(), event.EventId, replay.Describe(event), fmt.Sprintf(format, args...))
}

// pause: while suspended an instance takes messages, and gives up what a
// cancellation or a limit of time reaches.
func (j *judge) pause(event *journalpb.Event) {
	switch arm := event.Arm(); {
	case event.GetOrchestrationSuspended() != nil, event.GetOrchestrationResumed() != nil:
		if suspends := event.GetOrchestrationSuspended() != nil; suspends == j.suspended {
			j.blame(event, "suspended is %t", j.suspended)
		}
		j.suspended = !j.suspended
	case j.suspended && journalpb.Completes(arm) == 0:
		switch arm {
		case journalpb.ArmExternalEvent, journalpb.ArmOrchestrationCancelRequested, journalpb.ArmOrchestrationTerminated, journalpb.ArmCancelRequested:
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
			j.request(event, e.RequestId)
			j.arrived = append(j.arrived, e)
		}
		for _, id := range body.OrchestrationStarted.RequestIds {
			if !j.requests[id] {
				j.request(event, id)
			}
		}
		if body.OrchestrationStarted.CancelRequested != nil {
			j.cancels++
		}
	case *journalpb.Event_ActivityScheduled, *journalpb.Event_TimerCreated:
		j.schedule(event)
	case *journalpb.Event_SubOrchestrationScheduled:
		j.schedule(event)
		j.instanceID(event, body.SubOrchestrationScheduled.Instance)
	case *journalpb.Event_OrchestrationChained:
		j.instanceID(event, body.OrchestrationChained.Instance)
	case *journalpb.Event_ExternalSubscribed:
		j.schedule(event)
		j.subscribe(event.EventId, body.ExternalSubscribed.Name)
	case *journalpb.Event_ExternalEvent:
		j.request(event, body.ExternalEvent.RequestId)
		j.arrive(body.ExternalEvent)
	case *journalpb.Event_CancelRequested:
		j.close(event, j.open[event.SourceEventId])
	case *journalpb.Event_OrchestrationCancelRequested:
		j.request(event, body.OrchestrationCancelRequested.RequestId)
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
	for name, waiting := range j.waiting {
		j.waiting[name] = slices.DeleteFunc(waiting, func(id uint64) bool { return id == source })
	}
}

// instanceID: derived from the event, or one that the program chooses.
func (j *judge) instanceID(event *journalpb.Event, id string) {
	if id != fmt.Sprintf("i::%d.%d", j.in.execution(), event.EventId) && !strings.HasPrefix(id, "chosen-") {
		j.blame(event, "instance %q", id)
	}
}

// subscribe: the oldest event of that name that nobody has taken.
func (j *judge) subscribe(id uint64, name string) {
	for i, e := range j.arrived {
		if e.Name == name {
			j.arrived = slices.Delete(slices.Clone(j.arrived), i, i+1)
			delete(j.open, id)
			return
		}
	}
	j.waiting[name] = append(j.waiting[name], id)
}

// arrive: the oldest subscription of that name that was not withdrawn.
func (j *judge) arrive(e *journalpb.ExternalEvent) {
	if waiting := j.waiting[e.Name]; len(waiting) > 0 {
		delete(j.open, waiting[0])
		j.waiting[e.Name] = waiting[1:]
		return
	}
	j.arrived = append(j.arrived, e)
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
		if journalpb.Terminal(last.Arm()) || next != nil {
			j.blame(last, "goes on")
		}
		return
	case last.GetOrchestrationTerminated() != nil:
		return
	case len(j.open) > 0:
		j.blame(last, "open after the end: %v", j.open)
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
	if diff := cmp.Diff(j.arrived, continued.Inbox, protocmp.Transform()); diff != "" && len(j.arrived)+len(continued.Inbox) > 0 {
		j.blame(last, "inbox (-want +got):\n%s", diff)
	}
	if next == nil {
		return
	}
	want := &journalpb.OrchestrationStarted{Name: "script", Version: continued.Version, Input: continued.Input, Inbox: continued.Inbox, Status: j.status,
		RequestIds: j.order[max(len(j.order)-256, 0):]}
	if carried := next.GetOrchestrationStarted().GetCancelRequested(); carried != nil && j.cancels > 0 {
		want.CancelRequested = carried // unless the code has met it, which a history does not tell
	}
	if !proto.Equal(want, next.GetOrchestrationStarted()) || next.EventId != 1 || next.Timestamp < last.Timestamp {
		j.blame(last, "is followed by %v", next)
	}
}
