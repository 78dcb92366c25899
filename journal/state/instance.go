package state

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// instance is everything that the machine keeps of one instance.
type instance struct {
	id string
	// Those with events in memory: all of them, or without a store below only
	// what has been appended since it was written last.
	executions []execution
	// The link of the last event; see chain.go.
	chain uint64
	// What the attempts of its open activities have come to, by event_id; nil if
	// there are none. They are in no history, hence not part of the head.
	attempts map[uint64]attempt
	// Why it does not go on, an encoded Condition; nil if nothing is known to hold it
	// up. No part of the head either. Never changed.
	condition []byte
	head
	stored
}

// newInstance returns an instance of which there is nothing yet.
func newInstance(id string) *instance {
	return &instance{id: id, stored: stored{weight: idleBytes + len(id)}}
}

// execution is one history, or the end of one.
type execution struct {
	number uint64
	first  uint64 // event_id of the first of the events
	// Encoded events in order. Only ever appended to, so a reader may keep the
	// slice it once took.
	events [][]byte
}

// end returns the event_id of the last event.
func (x *execution) end() uint64 { return x.first + uint64(len(x.events)) - 1 }

// head is the index entry of an instance. It is derived from the histories and
// from nothing else: applying an append, restoring a snapshot and taking back a
// refused append are all the same fold over events.
type head struct {
	execution uint64 // the latest, 0 before the first
	last      uint64 // event_id of its last event
	status    journalpb.Status
	suspended bool
	// An OrchestrationChained was folded since the machine last cleared this.
	chains  bool
	name    string
	version string
	// event_id of its last StatusSet, 0 if there is none.
	statusEvent uint64
	tags        map[string]string // nil if there are none; never changed

	// Of the latest run, which may span several executions.
	first     uint64
	parent    *operationRef
	requestID string
	created   int64
	// Of the latest run; see journalpb.OrchestrationStarted.
	incarnation uint64

	updated int64

	open operations
	// How many arrivals of a name no subscription has taken yet.
	buffered map[string]int
}

type operationRef struct {
	instance    string
	execution   uint64
	event       uint64
	incarnation uint64
}

func refOf(m *journalpb.OperationRef) operationRef {
	return operationRef{m.GetInstance(), m.GetExecution(), m.GetEventId(), m.GetIncarnation()}
}

func (r *operationRef) message() *journalpb.OperationRef {
	return &journalpb.OperationRef{Instance: r.instance, Execution: r.execution, EventId: r.event, Incarnation: r.incarnation}
}

// take adds segments that were admitted to the histories, whole or not at all.
// known is what is known of the instance without its events in memory, nil if
// that is nothing.
func (in *instance) take(segments []segment, protocol uint32, known func() (*instance, error)) error {
	if err := in.foldAll(segments, protocol); err != nil {
		if lost := in.rederive(known); lost != nil {
			return lost
		}
		return err
	}
	for i := range segments {
		s := &segments[i]
		if s.first == 1 {
			in.chain = chainExecution(in.chain, in.id, s.execution)
		}
		in.chain = chainEvents(in.chain, s.events)
		x := in.history(s.execution)
		if x == nil {
			in.executions = append(in.executions, execution{number: s.execution, first: s.first})
			x = &in.executions[len(in.executions)-1]
		}
		x.events = append(x.events, s.events...)
	}
	in.dropAttempts(segments)
	in.condition = nil // it goes on, or has ended
	return nil
}

// admit checks that segments stand where the histories end. It changes nothing.
// lastOf tells where one of them ends.
func (in *instance) admit(segments []segment, lastOf func(*instance, uint64) (uint64, error)) error {
	if in.id == "" || !utf8.ValidString(in.id) {
		return in.invalid(&segment{}, 0, "an instance has an ID, of UTF-8")
	}
	if len(segments) == 0 || len(segments) > 2 {
		return in.invalid(&segment{}, 0, "an append has one segment or two")
	}
	for i := range segments {
		if len(segments[i].events) == 0 {
			return in.invalid(&segments[i], segments[i].first, "a segment has events")
		}
	}
	s := &segments[0]
	last, err := lastOf(in, s.execution)
	if err != nil {
		return err
	}
	if s.first != last+1 {
		return &ConflictError{Instance: in.id, Execution: s.execution, First: s.first, Last: last}
	}
	switch {
	case in.execution > 0 && s.execution == in.execution && in.running():
	case s.execution == in.execution+1 && !in.running():
	case in.execution == 0 && s.execution > 1: // it was there once
		return &ConflictError{Instance: in.id, Execution: s.execution, First: s.first}
	case s.execution > in.execution:
		return in.invalid(s, s.first, fmt.Sprintf("execution %d is the latest, and its status is %v", in.execution, in.status))
	default:
		return in.invalid(s, s.first, "the execution has ended")
	}
	if len(segments) == 1 {
		return nil
	}
	next := &segments[1]
	if next.execution != s.execution+1 {
		return in.invalid(next, next.first, "the second segment begins the next execution")
	}
	if next.first != 1 {
		return &ConflictError{Instance: in.id, Execution: next.execution, First: next.first}
	}
	return nil
}

// history returns an execution, nil if none of its events is in memory. The
// latest is found at once.
func (in *instance) history(number uint64) *execution {
	for i := len(in.executions) - 1; i >= 0; i-- {
		if in.executions[i].number == number {
			return &in.executions[i]
		}
	}
	return nil
}

func (in *instance) running() bool { return in.status == journalpb.Status_STATUS_RUNNING }

// foldAll takes segments into the index. After an error the index is halfway.
func (in *instance) foldAll(segments []segment, protocol uint32) error {
	for i := range segments {
		s := &segments[i]
		for n, encoded := range s.events {
			if protocol < heldProtocol && in.needsHeldProtocol(encoded) {
				return in.invalid(s, s.first+uint64(n), fmt.Sprintf("a subscription that is closed is canceled, "+
					"which needs protocol %d; the cluster has come to %d", heldProtocol, protocol))
			}
			if reason := in.fold(s.execution, s.first+uint64(n), encoded); reason != "" {
				return in.invalid(s, s.first+uint64(n), reason)
			}
		}
		last := i == len(segments)-1
		if continued := in.status == journalpb.Status_STATUS_CONTINUED_AS_NEW; continued == last {
			return in.invalid(s, in.last, "an execution is continued in the same append, and only a continued one is")
		}
	}
	return nil
}

func (in *instance) needsHeldProtocol(encoded []byte) bool {
	e, ok := skim(encoded)
	return ok && in.canceledLate(e) != ""
}

// rederive builds the index entry anew: from what is known without the events in
// memory, and from those.
func (in *instance) rederive(known func() (*instance, error)) error {
	before, err := known()
	if err != nil {
		return err
	}
	in.head = head{}
	if before != nil {
		in.head = before.head
	}
	for i := range in.executions {
		x := &in.executions[i]
		for n, encoded := range x.events {
			id := x.first + uint64(n)
			if x.number < in.execution || x.number == in.execution && id <= in.last {
				continue // known already
			}
			// What was admitted once is admitted again.
			_ = in.fold(x.number, id, encoded)
		}
	}
	return nil
}

func (in *instance) invalid(s *segment, event uint64, reason string) error {
	return &InvalidAppendError{Instance: in.id, Execution: s.execution, EventID: event, Reason: reason}
}

// message returns the protobuf form of the index entry.
func (in *instance) message() *journalpb.Instance {
	m := &journalpb.Instance{
		Instance:       in.id,
		Execution:      in.execution,
		FirstExecution: in.first,
		LastEventId:    in.last,
		Status:         in.status,
		Name:           in.name,
		Version:        in.version,
		RequestId:      in.requestID,
		CreatedAt:      in.created,
		UpdatedAt:      in.updated,
		Suspended:      in.suspended,
		StatusEventId:  in.statusEvent,
		Tags:           maps.Clone(in.tags),
		Incarnation:    in.incarnation,
		Condition:      in.conditionMessage(),
	}
	if in.parent != nil {
		m.Parent = in.parent.message()
	}
	return m
}

// begin takes the first event of an execution into the index.
func (h *head) begin(number uint64, e skimmed) (reason string) {
	var started journalpb.OrchestrationStarted
	if err := proto.Unmarshal(e.body, &started); err != nil {
		return "OrchestrationStarted does not decode"
	}
	if reason := h.admitIncarnation(started.Incarnation); reason != "" {
		return reason
	}
	if h.status != journalpb.Status_STATUS_CONTINUED_AS_NEW {
		h.first, h.created, h.requestID, h.parent = number, e.timestamp, started.RequestId, nil
	}
	if p := started.Parent; p != nil {
		ref := refOf(p)
		h.parent = &ref
	}
	h.incarnation = started.Incarnation
	h.execution, h.status = number, journalpb.Status_STATUS_RUNNING
	h.name, h.version, h.tags = started.Name, started.Version, started.Tags
	h.suspended, h.statusEvent = false, 0
	for _, arrival := range started.Inbox {
		h.arrive(arrival.Name)
	}
	return ""
}

// admitIncarnation checks the incarnation with which an execution begins: the next
// execution of a run keeps it, and the next run under the same ID has a larger one.
func (h *head) admitIncarnation(next uint64) (reason string) {
	continued := h.status == journalpb.Status_STATUS_CONTINUED_AS_NEW
	switch {
	case continued && next != h.incarnation:
		return fmt.Sprintf("the run has incarnation %d and goes on with %d", h.incarnation, next)
	case !continued && h.incarnation != 0 && next <= h.incarnation:
		return fmt.Sprintf("a run of incarnation %d after one of %d", next, h.incarnation)
	}
	return ""
}

// terminal is the status that each terminal event leaves behind.
var terminal = map[int]journalpb.Status{
	journalpb.ArmOrchestrationCompleted:      journalpb.Status_STATUS_COMPLETED,
	journalpb.ArmOrchestrationFailed:         journalpb.Status_STATUS_FAILED,
	journalpb.ArmOrchestrationCancelled:      journalpb.Status_STATUS_CANCELLED,
	journalpb.ArmOrchestrationTerminated:     journalpb.Status_STATUS_TERMINATED,
	journalpb.ArmOrchestrationContinuedAsNew: journalpb.Status_STATUS_CONTINUED_AS_NEW,
}

// end takes a terminal event into the index.
func (h *head) end(arm int) {
	h.status = terminal[arm]
	h.open, h.buffered, h.suspended = nil, nil, false
}

// subscribe opens a subscription, or gives it the oldest arrival that waits.
func (h *head) subscribe(id uint64, name string) {
	if h.buffered[name] == 0 {
		h.open = append(h.open, operation{id: id, arm: journalpb.ArmExternalSubscribed, target: name})
		return
	}
	if h.buffered[name]--; h.buffered[name] == 0 {
		delete(h.buffered, name)
	}
}

// arrive gives an external event to the oldest subscription of its name, or
// counts it.
func (h *head) arrive(name string) {
	if at, ok := h.open.oldestSubscription(name); ok {
		h.open = slices.Delete(h.open, at, at+1)
		return
	}
	if h.buffered == nil {
		h.buffered = map[string]int{}
	}
	h.buffered[name]++
}
