package check

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func (c *checker) checkGapless() {
	for _, h := range c.histories {
		for i, event := range h.events {
			if event.EventId != uint64(i+1) {
				c.addViolation("%v: event_id %d at position %d", h, event.EventId, i+1)
				break
			}
		}
	}
}

// A partitionNumber is an epoch or a term of a partition; each partition counts its own.
type partitionNumber struct {
	partition int
	number    uint64
}

func (c *checker) checkOneLeader() {
	owner := make(map[partitionNumber]string)
	for _, r := range c.record.Leaderships {
		epoch := partitionNumber{r.Partition, r.Epoch}
		if other := owner[epoch]; other != "" {
			c.addViolation("epoch %d of partition %d was started by both %s and %s", r.Epoch, r.Partition, other, r.Node)
		}
		owner[epoch] = r.Node
	}
	for _, h := range c.histories {
		for i, event := range h.events[1:] {
			if before := h.events[i]; event.Timestamp < before.Timestamp {
				c.addViolation("%v: event %d is earlier than the event before it", h, event.EventId)
			}
		}
	}
}

func (c *checker) checkTerms() {
	for _, f := range c.record.Faults {
		for _, broken := range f.Violations {
			c.addViolation("%s at %v: %s", f.Name, f.Begin, broken)
		}
	}
	leader := make(map[partitionNumber]string)
	for _, r := range c.record.Leaderships {
		term := partitionNumber{r.Partition, r.Term}
		if other := leader[term]; other != "" && other != r.Node {
			c.addViolation("%s and %s both led partition %d in term %d", other, r.Node, r.Partition, r.Term)
		}
		leader[term] = r.Node
	}
}

// A reading is one complete read of a history.
type reading struct {
	replica *evidence.Replica
	events  [][]byte
}

func (r reading) String() string {
	how := "through"
	if r.replica.Stale {
		how = "from"
	}
	return fmt.Sprintf("%d events %s %s at %v", len(r.events), how, r.replica.Node, r.replica.Begin.Round(time.Millisecond))
}

func (c *checker) checkPrefixes() {
	type key struct {
		id        string
		execution uint64
	}
	readings := make(map[key][]reading)
	for i := range c.record.Replicas {
		by := &c.record.Replicas[i]
		if by.Recovery != nil {
			continue // of another cluster
		}
		for _, of := range by.Instances {
			for _, execution := range of.Executions {
				if len(execution.Events) > 0 {
					k := key{of.ID, execution.Number}
					readings[k] = append(readings[k], reading{by, execution.Events})
				}
			}
		}
	}
	for k, all := range readings {
		longest := slices.MaxFunc(all, func(a, b reading) int { return cmp.Compare(len(a.events), len(b.events)) })
		for i, r := range all {
			if !slices.EqualFunc(r.events, longest.events[:len(r.events)], bytes.Equal) {
				c.addViolation("%s/%d: %v are not a prefix of %v", k.id, k.execution, r, longest)
			}
			for _, later := range all[i+1:] {
				if !r.replica.Stale && !later.replica.Stale && r.replica.End < later.replica.Begin && len(later.events) < len(r.events) {
					c.addViolation("%s/%d: first %v, then %v", k.id, k.execution, r, later)
				}
			}
		}
	}
}

// checkReplicas compares the state of each node with what the leader reported just before. At that
// time nothing changed, except instances that should have ended before.
func (c *checker) checkReplicas() { c.compareReplicas(func(string) bool { return true }) }

func (c *checker) compareReplicas(matches func(node string) bool) {
	var whole *evidence.Replica
	for i := range c.record.Replicas {
		r := &c.record.Replicas[i]
		switch {
		case r.Complete && !r.Stale:
			whole = r
		case r.Complete && whole != nil && matches(r.Node):
			c.compare(whole, r)
		}
	}
}

// checkSnapshots compares the final state of nodes that were sent a snapshot. It also checks what
// such a node, as leader, answered to repeated calls that had been executed before.
func (c *checker) checkSnapshots() {
	sent := make(map[string]bool)
	for _, install := range c.record.Installs {
		sent[install.Node] = true
	}
	c.compareReplicas(func(node string) bool { return sent[node] })
	for _, call := range c.record.Calls {
		if call.Repeated && call.Outcome == evidence.Rejected {
			c.addViolation("%s: %s %s was acknowledged, but its repetition on %s was rejected: %s", call.Instance, call.Kind, call.RequestID, call.Node, call.Code)
		}
	}
}

func (c *checker) compare(whole, own *evidence.Replica) {
	has := make(map[string]evidence.Instance)
	for _, of := range own.Instances {
		has[of.ID] = of
	}
	for _, want := range whole.Instances {
		got, ok := has[want.ID]
		delete(has, want.ID)
		if !ok {
			c.addViolation("%s is missing on %s", want.ID, own.Node)
			continue
		}
		if c.isUnfinished(c.instances[want.ID]) {
			continue
		}
		same := func(a, b evidence.Execution) bool { return a.Number == b.Number && a.Digest == b.Digest }
		if got.State != want.State || !slices.EqualFunc(got.Executions, want.Executions, same) {
			c.addViolation("%s differs on %s (%s, %s)", want.ID, own.Node, want.State, got.State)
		}
	}
	for id := range has {
		c.addViolation("%s exists only on %s", id, own.Node)
	}
}

// isUnfinished reports whether an instance should have ended and has not.
func (c *checker) isUnfinished(of *instance) bool {
	return of.exists() && of.name() != host.Register && of.name() != host.Blocked && !journalpb.IsTerminal(of.last().TypeNumber())
}

func (c *checker) checkEnded() {
	for _, of := range c.instances {
		if c.isUnfinished(of) {
			c.addViolation("%s is %s; its last event is %s", of.id, of.state, engine.Describe(of.last()))
		}
	}
}

// checkCauses checks that external inputs were sent by a call or an instance, and that an event
// refers only to earlier events.
func (c *checker) checkCauses() {
	called := make(map[string]bool)
	for _, call := range c.record.Calls {
		called[call.RequestID] = true
	}
	for id := range c.messages() {
		called[id] = true
	}
	for _, h := range c.histories {
		for _, event := range h.events {
			switch body := event.Body.(type) {
			case *journalpb.Event_OrchestrationStarted:
				if s := body.OrchestrationStarted; h.isStartedByCall() && !called[s.RequestId] {
					c.addViolation("%v was started without a call (request %q)", h, s.RequestId)
				}
			case *journalpb.Event_ExternalEvent:
				if !called[body.ExternalEvent.RequestId] {
					c.addViolation("%v: event %d was recorded without a call (request %q)", h, event.EventId, body.ExternalEvent.RequestId)
				}
			}
			if source := event.SourceEventId; source != 0 && (source >= event.EventId || h.event(source) == nil) {
				c.addViolation("%v: event %d refers to event %d", h, event.EventId, source)
			}
		}
	}
}

// scheduleTypes maps each type of completion to the type of event that schedules its operation.
var scheduleTypes = map[int]int{
	journalpb.TypeActivityCompleted:         journalpb.TypeActivityScheduled,
	journalpb.TypeActivityFailed:            journalpb.TypeActivityScheduled,
	journalpb.TypeTimerFired:                journalpb.TypeTimerCreated,
	journalpb.TypeSubOrchestrationCompleted: journalpb.TypeSubOrchestrationScheduled,
	journalpb.TypeSubOrchestrationFailed:    journalpb.TypeSubOrchestrationScheduled,
	journalpb.TypeMessageDelivered:          journalpb.TypeMessageSent,
	journalpb.TypeMessageRejected:           journalpb.TypeMessageSent,
}

func (c *checker) checkOneCompletion() {
	for _, h := range c.histories {
		completed := make(map[uint64]uint64)
		for _, event := range h.events {
			scheduled, isCompletion := scheduleTypes[event.TypeNumber()]
			if !isCompletion {
				continue
			}
			source := event.SourceEventId
			if first := completed[source]; first != 0 {
				c.addViolation("%v: events %d and %d complete event %d", h, first, event.EventId, source)
			}
			completed[source] = event.EventId
			if h.event(source).TypeNumber() != scheduled {
				c.addViolation("%v: event %d completes %s", h, event.EventId, engine.Describe(h.event(source)))
			}
		}
	}
}

func (c *checker) checkTimers() {
	for _, h := range c.histories {
		fired, canceled := make(map[uint64]bool), make(map[uint64]bool)
		for _, event := range h.events {
			source := event.SourceEventId
			if event.GetCancelRequested() != nil {
				canceled[source] = true
			}
			if event.GetTimerFired() == nil {
				continue
			}
			set := h.event(source).GetTimerCreated().GetFireAt()
			switch {
			case fired[source]:
				c.addViolation("%v: timer %d fires again at event %d", h, source, event.EventId)
			case canceled[source]:
				c.addViolation("%v: timer %d was canceled, but fires at event %d", h, source, event.EventId)
			case event.GetTimerFired().FireAt != set || event.Timestamp < set:
				c.addViolation("%v: timer %d was set for %d, but fires for %d at %d", h, source, set, event.GetTimerFired().FireAt, event.Timestamp)
			}
			fired[source] = true
		}
	}
}

// operationRef returns the reference to the operation that the event schedules.
func (h *history) operationRef(eventID uint64) *journalpb.OperationRef {
	incarnation := h.events[0].GetOrchestrationStarted().GetIncarnation()
	return &journalpb.OperationRef{Instance: h.instance.id, Incarnation: incarnation, Execution: h.number, EventId: eventID}
}

func (c *checker) checkChildren() {
	c.checkChained()
	c.checkStarters()
	c.checkChildEnds()
	c.checkParents()
}

// checkChildEnds checks the ends of children that their parents have recorded.
func (c *checker) checkChildEnds() {
	for _, h := range c.histories {
		for _, event := range h.events {
			eventType := event.TypeNumber()
			if eventType != journalpb.TypeSubOrchestrationCompleted && eventType != journalpb.TypeSubOrchestrationFailed {
				continue
			}
			scheduled := h.event(event.SourceEventId).GetSubOrchestrationScheduled()
			child := c.instances[scheduled.GetInstance()]
			if !child.exists() {
				c.addViolation("%v: event %d is the end of %q, which does not exist", h, event.EventId, scheduled.GetInstance())
				continue
			}
			c.checkChild(h, event, child)
		}
	}
}

// checkParents checks that each child was started by the event that it names.
func (c *checker) checkParents() {
	for _, of := range c.instances {
		if !of.exists() {
			continue
		}
		parent := of.executions[0].events[0].GetOrchestrationStarted().GetParent()
		if parent == nil {
			continue
		}
		scheduled := c.history(parent.Instance, parent.Execution)
		if scheduled == nil || !proto.Equal(parent, scheduled.operationRef(parent.EventId)) ||
			scheduled.event(parent.EventId).GetSubOrchestrationScheduled().GetInstance() != of.id {
			c.addViolation("%s names event %d of %s/%d as its parent, but that event did not start it", of.id, parent.EventId, parent.Instance, parent.Execution)
		}
	}
}

// checkChild compares the child's end with what the parent recorded of it.
func (c *checker) checkChild(h *history, event *journalpb.Event, child *instance) {
	started := child.executions[0].events[0].GetOrchestrationStarted().GetParent()
	if !proto.Equal(started, h.operationRef(event.SourceEventId)) {
		c.addViolation("%v: event %d is the end of %s, which is a child of %v", h, event.EventId, child.id, started)
	}
	completed := child.last().GetOrchestrationCompleted()
	result := event.GetSubOrchestrationCompleted()
	if (completed != nil) != (result != nil) || !proto.Equal(completed.GetOutput(), result.GetResult()) {
		c.addViolation("%v: event %d is %s, but %s ended with %s", h, event.EventId, engine.Describe(event), child.id, engine.Describe(child.last()))
	}
}

func (c *checker) checkContinueAsNew() {
	for _, of := range c.instances {
		for i, h := range of.executions {
			if h.number != uint64(i+1) {
				c.addViolation("%s: execution %d is at position %d", of.id, h.number, i+1)
			}
			ended := h.last().GetOrchestrationContinuedAsNew()
			followed := i+1 < len(of.executions)
			if (ended != nil) != followed {
				c.addViolation("%v ends with %s; has a successor: %v", h, engine.Describe(h.last()), followed)
				continue
			}
			if !followed {
				continue
			}
			next := of.executions[i+1].events[0].GetOrchestrationStarted()
			same := func(a, b *journalpb.ExternalEvent) bool { return proto.Equal(a, b) }
			if now := h.events[0].GetOrchestrationStarted().GetIncarnation(); now != next.GetIncarnation() {
				c.addViolation("%v: incarnation is %d, that of the successor %d", h, now, next.GetIncarnation())
			}
			if !slices.EqualFunc(ended.Inbox, next.GetInbox(), same) || !proto.Equal(ended.Input, next.GetInput()) {
				c.addViolation("%v: the successor's input differs from what was carried over", h)
			}
		}
	}
}

// endStates maps the type of the last event to the state of the instance.
var endStates = map[int]string{
	journalpb.TypeOrchestrationCompleted:      "completed",
	journalpb.TypeOrchestrationFailed:         "failed",
	journalpb.TypeOrchestrationCanceled:       "canceled",
	journalpb.TypeOrchestrationTerminated:     "terminated",
	journalpb.TypeOrchestrationContinuedAsNew: "continued as new",
}

func (c *checker) checkTerminalEvents() {
	for _, h := range c.histories {
		for _, event := range h.events[:len(h.events)-1] {
			if journalpb.IsTerminal(event.TypeNumber()) {
				c.addViolation("%v: %d events after %s", h, uint64(len(h.events))-event.EventId, engine.Describe(event))
			}
		}
	}
	for _, of := range c.instances {
		if !of.exists() {
			continue
		}
		want := cmp.Or(endStates[of.last().TypeNumber()], "running")
		if of.state != want {
			c.addViolation("%s is %s, but its last event says %s", of.id, of.state, want)
		}
	}
}

func (c *checker) checkReplay() {
	for _, h := range c.histories {
		if err := c.replayHistory(h); err != nil {
			c.addViolation("%v: %v", h, err)
		}
	}
}

func (c *checker) replayHistory(h *history) error {
	x := engine.NewExecution(h.instance.id, h.number, c.registry, slog.New(slog.DiscardHandler))
	defer x.Evict()
	err := x.Replay(func(yield func(*journalpb.Event, error) bool) {
		for _, event := range h.events {
			if !yield(event, nil) {
				return
			}
		}
	})
	if err != nil || len(h.events) < 2 {
		return err
	}
	more, err := x.Turn(time.Time{}, nil)
	if err == nil && len(more.Events) > 0 {
		err = fmt.Errorf("replay requests an operation that is not recorded: %s", engine.Describe(more.Events[0]))
	}
	return err
}
