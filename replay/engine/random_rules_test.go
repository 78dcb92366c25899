package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The rules that every history must satisfy. They are written independently of the engine, from the
// specification of orchestrations.

// openOperations returns the schedules of activities, timers, children and messages that a history
// neither completes nor cancels.
func openOperations(history []*journalpb.Event) []*journalpb.Event {
	closed := make(map[uint64]bool)
	for _, event := range history {
		closed[event.SourceEventId] = true
	}
	var open []*journalpb.Event
	for _, event := range history {
		switch event.TypeNumber() {
		case journalpb.TypeActivityScheduled, journalpb.TypeTimerCreated, journalpb.TypeSubOrchestrationScheduled, journalpb.TypeMessageSent:
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
	// In order of their names and keys.
	attributes []*journalpb.AttributeSet
	values     []*journalpb.ValueSet
	closers    []string // registered and not yet called
	closing    bool
	suspended  bool
	cancels    int
	reason     string // from the cancel request
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
func (h *historyChecker) arrivedCounts() map[string]int {
	counts := make(map[string]int)
	for name, n := range h.arrivals {
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

func (h *historyChecker) violation(event *journalpb.Event, format string, args ...any) {
	h.t.Helper()
	h.t.Errorf("execution %d, event %d, %s: %s", h.in.execution(), event.EventId, engine.Describe(event), fmt.Sprintf(format, args...))
}

// checkSuspension checks that a suspended instance records only messages.
func (h *historyChecker) checkSuspension(event *journalpb.Event) {
	switch eventType := event.TypeNumber(); {
	case event.GetOrchestrationSuspended() != nil, event.GetOrchestrationResumed() != nil:
		if suspends := event.GetOrchestrationSuspended() != nil; suspends == h.suspended {
			h.violation(event, "suspended is %t", h.suspended)
		}
		h.suspended = !h.suspended
	case h.suspended && journalpb.SchedulingType(eventType) == 0:
		switch eventType {
		case journalpb.TypeExternalEvent, journalpb.TypeOrchestrationCancelRequested, journalpb.TypeOrchestrationTerminated:
		default:
			h.violation(event, "while suspended")
		}
	}
}

func (h *historyChecker) checkEvent(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		h.status = body.OrchestrationStarted.Status
		h.attributes, h.values = body.OrchestrationStarted.Attributes, body.OrchestrationStarted.Values
		for _, e := range body.OrchestrationStarted.Inbox {
			if !slices.Contains(body.OrchestrationStarted.RequestIds, e.RequestId) {
				h.addRequest(event, e.RequestId)
			}
			h.arrive(e)
		}
		for _, id := range body.OrchestrationStarted.RequestIds {
			if !h.requests[id] {
				h.addRequest(event, id)
			}
		}
		if carried := body.OrchestrationStarted.CancelRequested; carried != nil {
			h.cancels++
			h.reason = carried.Reason
		}
	case *journalpb.Event_ActivityScheduled, *journalpb.Event_TimerCreated, *journalpb.Event_MessageSent:
		h.schedule(event)
	case *journalpb.Event_SubOrchestrationScheduled:
		h.schedule(event)
		h.checkInstanceID(event, body.SubOrchestrationScheduled.Instance)
	case *journalpb.Event_OrchestrationChained:
		h.checkInstanceID(event, body.OrchestrationChained.Instance)
	case *journalpb.Event_ExternalSubscribed:
		name := body.ExternalSubscribed.Name
		h.seen[event.EventId] = true
		h.names[event.EventId] = name
		h.inOrder[name] = append(h.inOrder[name], event.EventId)
	case *journalpb.Event_ExternalEvent:
		h.addRequest(event, body.ExternalEvent.RequestId)
		h.arrive(body.ExternalEvent)
	case *journalpb.Event_CancelRequested:
		h.cancel(event)
	case *journalpb.Event_OrchestrationCancelRequested:
		h.addRequest(event, body.OrchestrationCancelRequested.RequestId)
		h.reason = body.OrchestrationCancelRequested.Reason
		if h.cancels++; h.cancels > 1 {
			h.violation(event, "once more")
		}
	case *journalpb.Event_SideEffectRecorded:
		h.checkSideEffect(event)
	case *journalpb.Event_AttributeSet:
		h.attributes = journalpb.WithAttribute(h.attributes, body.AttributeSet)
	case *journalpb.Event_ValueSet:
		h.setValue(body.ValueSet)
	case *journalpb.Event_StatusSet:
		h.checkStatus(event, body.StatusSet.Value)
	default:
		if completes := journalpb.SchedulingType(event.TypeNumber()); completes != 0 {
			h.close(event, completes)
		}
	}
}

func (h *historyChecker) addRequest(event *journalpb.Event, id string) {
	if h.requests[id] {
		h.violation(event, "request %s is taken twice", id)
	}
	h.requests[id] = id != ""
	if id != "" {
		h.order = append(h.order, id)
	}
}

func (h *historyChecker) schedule(event *journalpb.Event) {
	h.open[event.EventId] = event.TypeNumber()
	h.seen[event.EventId] = true
}

// close checks that a completed operation was open and of the right type.
func (h *historyChecker) close(event *journalpb.Event, eventType int) {
	source := event.SourceEventId
	if open := h.open[source]; open == 0 || open != eventType {
		h.violation(event, "was scheduled %t, is open as %q", h.seen[source], journalpb.TypeName(open))
	}
	delete(h.open, source)
}

// cancel checks that a canceled operation was open. The event of a subscription may have arrived
// while the instance was suspended; it then goes to the next one.
func (h *historyChecker) cancel(event *journalpb.Event) {
	name, subscribed := h.names[event.SourceEventId]
	if !subscribed {
		h.close(event, h.open[event.SourceEventId])
		return
	}
	at := slices.Index(h.inOrder[name], event.SourceEventId)
	if at < h.effective[name] {
		h.violation(event, "the subscription has had its event")
	}
	delete(h.names, event.SourceEventId)
	h.inOrder[name] = slices.Delete(h.inOrder[name], at, at+1)
}

// checkInstanceID checks an ID that is derived from the event or chosen by the program.
func (h *historyChecker) checkInstanceID(event *journalpb.Event, id string) {
	if id != fmt.Sprintf("i::%d.%d", h.in.execution(), event.EventId) && !strings.HasPrefix(id, "chosen-") {
		h.violation(event, "instance %q", id)
	}
}

// arrive gives the k-th event to the k-th subscription that was not canceled.
func (h *historyChecker) arrive(e *journalpb.ExternalEvent) {
	h.arrived = append(h.arrived, e)
	h.arrivals[e.Name]++
}

// unconsumedEvents returns the events that no subscription received, in order.
func (h *historyChecker) unconsumedEvents() []*journalpb.ExternalEvent {
	consumed := make(map[string]int)
	var rest []*journalpb.ExternalEvent
	for _, e := range h.arrived {
		if consumed[e.Name]++; consumed[e.Name] > len(h.inOrder[e.Name]) {
			rest = append(rest, e)
		}
	}
	return rest
}

// waitingCount returns the number of subscriptions without an event.
func (h *historyChecker) waitingCount() int {
	n := 0
	for name, subscriptions := range h.inOrder {
		n += max(len(subscriptions)-h.arrivals[name], 0)
	}
	return n
}

func (h *historyChecker) checkSideEffect(event *journalpb.Event) {
	label := event.GetSideEffectRecorded().Label
	if !strings.HasPrefix(label, "tenuto.patch/") {
		return
	}
	if h.markers[label] {
		h.violation(event, "a second marker")
	}
	h.markers[label] = true
}

// checkStatus reads the statuses with which a program reports its OnClose functions and their
// calls: last registered first, each once, and none before the end of the body.
func (h *historyChecker) checkStatus(event *journalpb.Event, value *journalpb.Payload) {
	h.status = value
	what, name, _ := strings.Cut(strings.Trim(string(value.Data), `"`), " ")
	switch what {
	case "registers":
		h.closers = append(h.closers, name)
	case "closes":
		h.closing = true
		if last := len(h.closers) - 1; last < 0 || h.closers[last] != name {
			h.violation(event, "of %q", h.closers)
		} else {
			h.closers = h.closers[:last]
		}
	}
}

func (h *historyChecker) setValue(set *journalpb.ValueSet) {
	h.values = slices.DeleteFunc(slices.Clone(h.values), func(v *journalpb.ValueSet) bool { return v.Map == set.Map && v.Key == set.Key })
	if set.Value != nil {
		h.values = append(h.values, set)
	}
	slices.SortFunc(h.values, func(a, b *journalpb.ValueSet) int { return strings.Compare(a.Map+"/"+a.Key, b.Map+"/"+b.Key) })
}

func (h *historyChecker) checkEnd(last, next *journalpb.Event) {
	continued := last.GetOrchestrationContinuedAsNew()
	cleansUp := continued == nil || continued.Retried != nil
	switch {
	case !h.in.ended:
		switch {
		case journalpb.IsTerminal(last.TypeNumber()) || next != nil:
			h.violation(last, "goes on")
		case !h.suspended && len(h.open)+h.waitingCount() == 0:
			h.violation(last, "the code waits for nothing")
		}
		return
	case last.GetOrchestrationTerminated() != nil:
		return
	case len(h.open)+h.waitingCount() > 0:
		h.violation(last, "open after the end: %v, %d subscriptions", h.open, h.waitingCount())
	case cleansUp && len(h.closers) > 0:
		h.violation(last, "clean-up was not called: %q", h.closers)
	case !cleansUp && h.closing:
		h.violation(last, "clean-up was called")
	case last.GetOrchestrationCanceled() != nil && h.cancels == 0:
		h.violation(last, "nobody asked for it")
	case h.isRetryable(last.GetOrchestrationFailed().GetError()):
		h.violation(last, "was not retried")
	case continued.GetRetried() != nil && !h.isRetryable(continued.Retried):
		h.violation(last, "was retried")
	}
	if continued != nil {
		h.checkSuccessor(last, continued, next)
	}
}

// isRetryable reports whether a failure of the execution must be followed by another attempt.
func (h *historyChecker) isRetryable(failure *journalpb.Error) bool {
	started := h.in.history[0].GetOrchestrationStarted()
	return failure != nil && h.cancels == 0 && started.Attempt+1 < started.Retry.GetMaxAttempts() &&
		(outermostCode(failure) != "tenuto.panic" || !started.Retry.PanicsAreFinal)
}

// outermostCode returns the code of an error, or of its first cause that has one.
func outermostCode(failure *journalpb.Error) (code string) {
	if failure.GetCode() != "" || failure == nil {
		return failure.GetCode()
	}
	for _, cause := range append([]*journalpb.Error{failure.Cause}, failure.OtherCauses...) {
		if code == "" {
			code = outermostCode(cause)
		}
	}
	return code
}

// checkSuccessor checks the carried-over events in order, the status, and the name. The backoff of
// a retry is 100 ms, doubled with each attempt, plus or minus 20%.
func (h *historyChecker) checkSuccessor(last *journalpb.Event, continued *journalpb.OrchestrationContinuedAsNew, next *journalpb.Event) {
	if diff := cmp.Diff(h.unconsumedEvents(), continued.Inbox, protocmp.Transform()); diff != "" {
		h.violation(last, "inbox (-want +got):\n%s", diff)
	}
	if next == nil {
		return
	}
	before, started := h.in.history[0].GetOrchestrationStarted(), next.GetOrchestrationStarted()
	want := &journalpb.OrchestrationStarted{Attributes: h.attributes, Values: h.values, Name: "script", Retry: before.Retry, Version: continued.Version, Input: continued.Input, Inbox: continued.Inbox, Status: h.status,
		RequestIds: h.order[max(len(h.order)-256, 0):]}
	if h.cancels > 0 && !h.in.cancelSeen {
		want.CancelRequested = &journalpb.OrchestrationCancelRequested{Reason: h.reason}
	}
	if continued.Retried != nil {
		exact := int64(100*time.Millisecond) << before.Attempt
		if backoff := started.StartAt - last.Timestamp; backoff < exact*8/10 || backoff > exact*12/10 || !proto.Equal(before.Input, continued.Input) {
			h.violation(last, "is followed by %v", next)
		}
		want.Attempt, want.LastFailure, want.StartAt = before.Attempt+1, continued.Retried, started.StartAt
	}
	if !proto.Equal(want, started) || next.EventId != 1 || next.Timestamp < last.Timestamp {
		h.violation(last, "is followed by %v", next)
	}
}
