package judge

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
	"github.com/tenuto-dev/tenuto/replay"
)

func (c *trial) gapless() {
	for _, h := range c.histories {
		for i, event := range h.events {
			if event.EventId != uint64(i+1) {
				c.violated("%v: event_id %d at place %d", h, event.EventId, i+1)
				break
			}
		}
	}
}

// ofGroup is an epoch or a term of a group: each group counts its own.
type ofGroup struct {
	group  int
	number uint64
}

func (c *trial) oneOwner() {
	owner := make(map[ofGroup]string)
	for _, r := range c.record.Reigns {
		epoch := ofGroup{r.Group, r.Epoch}
		if other := owner[epoch]; other != "" {
			c.violated("epoch %d of group %d was begun by %s and by %s", r.Epoch, r.Group, other, r.Node)
		}
		owner[epoch] = r.Node
	}
	for _, h := range c.histories {
		for i, event := range h.events[1:] {
			if before := h.events[i]; event.Timestamp < before.Timestamp {
				c.violated("%v: event %d is earlier than the one before it", h, event.EventId)
			}
		}
	}
}

func (c *trial) terms() {
	for _, f := range c.record.Faults {
		for _, broken := range f.Broken {
			c.violated("%s at %v: %s", f.Name, f.Begin, broken)
		}
	}
	leader := make(map[ofGroup]string)
	for _, r := range c.record.Reigns {
		term := ofGroup{r.Group, r.Term}
		if other := leader[term]; other != "" && other != r.Node {
			c.violated("%s and %s led group %d in term %d", other, r.Node, r.Group, r.Term)
		}
		leader[term] = r.Node
	}
}

// A reading is one read of a history in full.
type reading struct {
	by     *evidence.Replica
	events [][]byte
}

func (r reading) String() string {
	how := "through"
	if r.by.Stale {
		how = "from"
	}
	return fmt.Sprintf("%d events %s %s at %v", len(r.events), how, r.by.Node, r.by.Begin.Round(time.Millisecond))
}

func (c *trial) prefixes() {
	type key struct {
		id        string
		execution uint64
	}
	readings := make(map[key][]reading)
	for i := range c.record.Replicas {
		by := &c.record.Replicas[i]
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
				c.violated("%s/%d: %v are no prefix of %v", k.id, k.execution, r, longest)
			}
			for _, later := range all[i+1:] {
				if !r.by.Stale && !later.by.Stale && r.by.End < later.by.Begin && len(later.events) < len(r.events) {
					c.violated("%s/%d: first %v, then %v", k.id, k.execution, r, later)
				}
			}
		}
	}
}

// replicas compares what each node has of its own with what the leader said just
// before. Nothing went on then but what had not ended in time.
func (c *trial) replicas() { c.replicasOf(func(string) bool { return true }) }

func (c *trial) replicasOf(judged func(node string) bool) {
	var whole *evidence.Replica
	for i := range c.record.Replicas {
		r := &c.record.Replicas[i]
		switch {
		case r.Whole && !r.Stale:
			whole = r
		case r.Whole && whole != nil && judged(r.Node):
			c.compare(whole, r)
		}
	}
}

// snapshots compares what nodes have in the end that were sent a snapshot, and looks
// at what one of them, leading, has answered to calls that were carried out before.
func (c *trial) snapshots() {
	sent := make(map[string]bool)
	for _, install := range c.record.Installs {
		sent[install.Node] = true
	}
	c.replicasOf(func(node string) bool { return sent[node] })
	for _, call := range c.record.Calls {
		if call.Repeated && call.Outcome == evidence.Refused {
			c.violated("%s: %s %s was acknowledged; repeated on %s it is refused: %s", call.Instance, call.Kind, call.RequestID, call.Node, call.Code)
		}
	}
}

func (c *trial) compare(whole, own *evidence.Replica) {
	has := make(map[string]evidence.Instance)
	for _, of := range own.Instances {
		has[of.ID] = of
	}
	for _, want := range whole.Instances {
		got, ok := has[want.ID]
		delete(has, want.ID)
		if !ok {
			c.violated("%s is not on %s", want.ID, own.Node)
			continue
		}
		if c.unfinished(c.instances[want.ID]) {
			continue
		}
		same := func(a, b evidence.Execution) bool { return a.Number == b.Number && a.Digest == b.Digest }
		if got.State != want.State || !slices.EqualFunc(got.Executions, want.Executions, same) {
			c.violated("%s differs on %s (%s, %s)", want.ID, own.Node, want.State, got.State)
		}
	}
	for id := range has {
		c.violated("%s is on %s alone", id, own.Node)
	}
}

// unfinished tells whether an instance should have ended and has not.
func (c *trial) unfinished(of *instance) bool {
	return of.exists() && of.name() != host.Register && of.name() != host.Blocked && !journalpb.Terminal(of.last().Arm())
}

func (c *trial) ended() {
	for _, of := range c.instances {
		if c.unfinished(of) {
			c.violated("%s is %s; its last event is %s", of.id, of.state, replay.Describe(of.last()))
		}
	}
}

// caused checks that what came from outside was sent, and that what refers to an
// event refers to one before it that schedules something.
func (c *trial) caused() {
	called := make(map[string]bool)
	for _, call := range c.record.Calls {
		called[call.RequestID] = true
	}
	for _, h := range c.histories {
		for _, event := range h.events {
			switch body := event.Body.(type) {
			case *journalpb.Event_OrchestrationStarted:
				if s := body.OrchestrationStarted; h.isBegunByCall() && !called[s.RequestId] {
					c.violated("%v was started by nobody (request %q)", h, s.RequestId)
				}
			case *journalpb.Event_ExternalEvent:
				if !called[body.ExternalEvent.RequestId] {
					c.violated("%v: event %d was sent by nobody (request %q)", h, event.EventId, body.ExternalEvent.RequestId)
				}
			}
			if source := event.SourceEventId; source != 0 && (source >= event.EventId || h.at(source) == nil) {
				c.violated("%v: event %d refers to event %d", h, event.EventId, source)
			}
		}
	}
}

// completes gives the type of completion for every type of operation.
var completes = map[int]int{
	journalpb.ArmActivityCompleted:         journalpb.ArmActivityScheduled,
	journalpb.ArmActivityFailed:            journalpb.ArmActivityScheduled,
	journalpb.ArmTimerFired:                journalpb.ArmTimerCreated,
	journalpb.ArmSubOrchestrationCompleted: journalpb.ArmSubOrchestrationScheduled,
	journalpb.ArmSubOrchestrationFailed:    journalpb.ArmSubOrchestrationScheduled,
}

func (c *trial) oneCompletion() {
	for _, h := range c.histories {
		completed := make(map[uint64]uint64)
		for _, event := range h.events {
			scheduled, isCompletion := completes[event.Arm()]
			if !isCompletion {
				continue
			}
			source := event.SourceEventId
			if first := completed[source]; first != 0 {
				c.violated("%v: events %d and %d complete event %d", h, first, event.EventId, source)
			}
			completed[source] = event.EventId
			if h.at(source).Arm() != scheduled {
				c.violated("%v: event %d completes %s", h, event.EventId, replay.Describe(h.at(source)))
			}
		}
	}
}

func (c *trial) timers() {
	for _, h := range c.histories {
		fired, givenUp := make(map[uint64]bool), make(map[uint64]bool)
		for _, event := range h.events {
			source := event.SourceEventId
			if event.GetCancelRequested() != nil {
				givenUp[source] = true
			}
			if event.GetTimerFired() == nil {
				continue
			}
			set := h.at(source).GetTimerCreated().GetFireAt()
			switch {
			case fired[source]:
				c.violated("%v: timer %d fires again at event %d", h, source, event.EventId)
			case givenUp[source]:
				c.violated("%v: timer %d was given up and fires at event %d", h, source, event.EventId)
			case event.GetTimerFired().FireAt != set || event.Timestamp < set:
				c.violated("%v: timer %d was set for %d and fires for %d at %d", h, source, set, event.GetTimerFired().FireAt, event.Timestamp)
			}
			fired[source] = true
		}
	}
}

// operation names the operation that an event of the history schedules.
func (h *history) operation(eventID uint64) *journalpb.OperationRef {
	incarnation := h.events[0].GetOrchestrationStarted().GetIncarnation()
	return &journalpb.OperationRef{Instance: h.of.id, Incarnation: incarnation, Execution: h.number, EventId: eventID}
}

func (c *trial) children() {
	c.chained()
	for _, h := range c.histories {
		for _, event := range h.events {
			arm := event.Arm()
			if arm != journalpb.ArmSubOrchestrationCompleted && arm != journalpb.ArmSubOrchestrationFailed {
				continue
			}
			scheduled := h.at(event.SourceEventId).GetSubOrchestrationScheduled()
			child := c.instances[scheduled.GetInstance()]
			if !child.exists() {
				c.violated("%v: event %d is the end of %q, which is not there", h, event.EventId, scheduled.GetInstance())
				continue
			}
			c.checkChild(h, event, child)
		}
	}
	for _, of := range c.instances {
		if !of.exists() {
			continue
		}
		parent := of.executions[0].events[0].GetOrchestrationStarted().GetParent()
		if parent == nil {
			continue
		}
		scheduled := c.history(parent.Instance, parent.Execution)
		if scheduled == nil || !proto.Equal(parent, scheduled.operation(parent.EventId)) ||
			scheduled.at(parent.EventId).GetSubOrchestrationScheduled().GetInstance() != of.id {
			c.violated("%s says that it was started by event %d of %s/%d, which did not", of.id, parent.EventId, parent.Instance, parent.Execution)
		}
	}
}

// checkChild checks what a parent has recorded of its child's end.
func (c *trial) checkChild(h *history, event *journalpb.Event, child *instance) {
	started := child.executions[0].events[0].GetOrchestrationStarted().GetParent()
	if !proto.Equal(started, h.operation(event.SourceEventId)) {
		c.violated("%v: event %d is the end of %s, which is a child of %v", h, event.EventId, child.id, started)
	}
	completed := child.last().GetOrchestrationCompleted()
	result := event.GetSubOrchestrationCompleted()
	if (completed != nil) != (result != nil) || !proto.Equal(completed.GetOutput(), result.GetResult()) {
		c.violated("%v: event %d says %s; %s ended with %s", h, event.EventId, replay.Describe(event), child.id, replay.Describe(child.last()))
	}
}

func (c *trial) continued() {
	for _, of := range c.instances {
		for i, h := range of.executions {
			if h.number != uint64(i+1) {
				c.violated("%s: execution %d comes at place %d", of.id, h.number, i+1)
			}
			ended := h.last().GetOrchestrationContinuedAsNew()
			followed := i+1 < len(of.executions)
			if (ended != nil) != followed {
				c.violated("%v ends with %s; another follows: %v", h, replay.Describe(h.last()), followed)
				continue
			}
			if !followed {
				continue
			}
			next := of.executions[i+1].events[0].GetOrchestrationStarted()
			same := func(a, b *journalpb.ExternalEvent) bool { return proto.Equal(a, b) }
			if now := h.events[0].GetOrchestrationStarted().GetIncarnation(); now != next.GetIncarnation() {
				c.violated("%v: the run has incarnation %d, and goes on with %d", h, now, next.GetIncarnation())
			}
			if !slices.EqualFunc(ended.Inbox, next.GetInbox(), same) || !proto.Equal(ended.Input, next.GetInput()) {
				c.violated("%v: the next execution begins with something else than was handed on", h)
			}
		}
	}
}

// stateOf gives the state of an instance by its last event.
var stateOf = map[int]string{
	journalpb.ArmOrchestrationCompleted:      "completed",
	journalpb.ArmOrchestrationFailed:         "failed",
	journalpb.ArmOrchestrationCancelled:      "cancelled",
	journalpb.ArmOrchestrationTerminated:     "terminated",
	journalpb.ArmOrchestrationContinuedAsNew: "continued as new",
}

func (c *trial) terminals() {
	for _, h := range c.histories {
		for _, event := range h.events[:len(h.events)-1] {
			if journalpb.Terminal(event.Arm()) {
				c.violated("%v: %d events after %s", h, uint64(len(h.events))-event.EventId, replay.Describe(event))
			}
		}
	}
	for _, of := range c.instances {
		if !of.exists() {
			continue
		}
		want := cmp.Or(stateOf[of.last().Arm()], "running")
		if of.state != want {
			c.violated("%s is %s, and its last event says that it is %s", of.id, of.state, want)
		}
	}
}

func (c *trial) replayed() {
	for _, h := range c.histories {
		if err := c.replay(h); err != nil {
			c.violated("%v: %v", h, err)
		}
	}
}

func (c *trial) replay(h *history) error {
	x := replay.NewExecution(h.of.id, h.number, c.registry, slog.New(slog.DiscardHandler))
	defer x.Drop()
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
		err = fmt.Errorf("the code asks for more: %s", replay.Describe(more.Events[0]))
	}
	return err
}
