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
	// The executions with events in memory: all of them, or with a store those with events that are
	// not written yet.
	executions []execution
	// The hash of the last event; see hash.go.
	chainHash uint64
	// The attempts of its open activities by event_id; nil if there are none. Not part of
	// indexEntry, because no history holds them.
	attempts map[uint64]attempt
	// Why it does not proceed: an encoded Condition, nil for none. Not part of indexEntry. Never
	// changed in place.
	condition []byte
	// A query examines many instances that are not written yet: what it compares first is together,
	// from facet to status.
	storedState
	id string
	indexEntry
}

// newInstance returns an instance without history.
func newInstance(id string) *instance {
	return &instance{id: id, storedState: storedState{memBytes: idleBytes + len(id)}}
}

// execution is one history, or the tail of one.
type execution struct {
	number uint64
	first  uint64 // event_id of events[0]
	// Encoded events in order. Only appended to, so a reader may keep its slice.
	events [][]byte
}

// lastEventID returns the event_id of the last event.
func (e *execution) lastEventID() uint64 { return e.first + uint64(len(e.events)) - 1 }

// indexEntry is the index entry of an instance. It is derived from the histories alone: an append,
// the restoring of a snapshot and the undoing of a rejected append all call fold for each event.
type indexEntry struct {
	execution uint64 // the latest, 0 before the first
	created   int64  // of the latest run, which may span several executions
	updated   int64
	status    journalpb.Status
	suspended bool
	last      uint64 // event_id of its last event
	// A chained start was folded since the machine last cleared this.
	hasChainedStart bool
	name            string
	version         string
	// event_id of its last StatusSet, 0 if there is none.
	statusEvent uint64
	errorCode   string            // of the error with which the latest execution failed
	tags        map[string]string // nil if there are none; never changed in place

	// Of the latest run, which may span several executions.
	first     uint64
	parent    *operationRef
	requestID string
	// Of the latest run; see journalpb.OrchestrationStarted.
	incarnation uint64
	summary     string
	copiedEvent uint64 // event_id of the last HistoryCopied of the latest execution, 0 if there is none

	open operations
	// The number of external events, by name, that no subscription has consumed yet.
	bufferedEvents map[string]int
	publishedState
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

// eventsReserve is for how many events an execution in memory has room at first: most get more than
// one append before they are written.
const eventsReserve = 8

// appendSegments adds validated segments to the histories, whole or not at all. known returns the
// instance as the store has it, nil if the store does not have it.
func (in *instance) appendSegments(segments []segment, protocol uint32, known func() (*instance, error)) error {
	if err := in.foldAll(segments, protocol); err != nil {
		if rebuildErr := in.rebuildIndex(known); rebuildErr != nil {
			return rebuildErr
		}
		return err
	}
	for i := range segments {
		s := &segments[i]
		if s.first == 1 {
			in.chainHash = hashExecution(in.chainHash, in.id, s.execution)
		}
		in.chainHash = hashEvents(in.chainHash, s.events)
		x := in.executionInMemory(s.execution)
		if x == nil {
			in.executions = append(in.executions, execution{number: s.execution, first: s.first})
			x = &in.executions[len(in.executions)-1]
			x.events = make([][]byte, 0, max(len(s.events), eventsReserve))
		}
		x.events = append(x.events, s.events...)
	}
	in.removeClosedAttempts(segments)
	in.condition = nil // any append shows that it proceeds, or ends it
	return nil
}

// validateAppend checks that segments continue the histories. It changes nothing. lastEventOf
// returns the last event_id of an execution.
func (in *instance) validateAppend(segments []segment, lastEventOf func(*instance, uint64) (uint64, error)) error {
	if in.id == "" || !utf8.ValidString(in.id) {
		return in.invalid(&segment{}, 0, "the instance ID must be non-empty UTF-8")
	}
	if len(segments) == 0 || len(segments) > 2 {
		return in.invalid(&segment{}, 0, "an append must have one or two segments")
	}
	for i := range segments {
		if len(segments[i].events) == 0 {
			return in.invalid(&segments[i], segments[i].first, "a segment must have events")
		}
	}
	s := &segments[0]
	last, err := lastEventOf(in, s.execution)
	if err != nil {
		return err
	}
	if s.first != last+1 {
		return &ConflictError{Instance: in.id, Execution: s.execution, First: s.first, Last: last}
	}
	switch {
	case in.execution > 0 && s.execution == in.execution && in.isRunning():
	case s.execution == in.execution+1 && !in.isRunning():
	case in.execution == 0 && s.execution > 1: // it was purged
		return &ConflictError{Instance: in.id, Execution: s.execution, First: s.first}
	case s.execution > in.execution:
		return in.invalid(s, s.first, fmt.Sprintf("the latest execution is %d, with status %v", in.execution, in.status))
	default:
		return in.invalid(s, s.first, "the execution has ended")
	}
	if len(segments) == 1 {
		return nil
	}
	next := &segments[1]
	if next.execution != s.execution+1 {
		return in.invalid(next, next.first, "the second segment must begin the next execution")
	}
	if next.first != 1 {
		return &ConflictError{Instance: in.id, Execution: next.execution, First: next.first}
	}
	return nil
}

// executionInMemory returns an execution, nil if none of its events is in memory. It searches from
// the latest backward.
func (in *instance) executionInMemory(number uint64) *execution {
	for i := len(in.executions) - 1; i >= 0; i-- {
		if in.executions[i].number == number {
			return &in.executions[i]
		}
	}
	return nil
}

func (in *instance) isRunning() bool { return in.status == journalpb.Status_STATUS_RUNNING }

// foldAll folds segments into the index entry. After an error the entry is incomplete.
func (in *instance) foldAll(segments []segment, protocol uint32) error {
	for i := range segments {
		s := &segments[i]
		for n, encoded := range s.events {
			if protocol < messagesProtocol {
				if required, what := in.requiredProtocol(encoded); protocol < required {
					return &InvalidAppendError{
						Instance: in.id, Execution: s.execution, EventID: s.first + uint64(n), Err: ErrProtocol,
						Reason: fmt.Sprintf("%s needs protocol %d; the cluster is at protocol %d", what, required, protocol),
					}
				}
			}
			if reason := in.fold(s.execution, s.first+uint64(n), encoded); reason != "" {
				return in.invalid(s, s.first+uint64(n), reason)
			}
		}
		if s.copied != nil {
			if err := s.copied.checkOpen(in.open); err != nil {
				return err
			}
			continue
		}
		last := i == len(segments)-1
		if continued := in.status == journalpb.Status_STATUS_CONTINUED_AS_NEW; continued == last {
			return in.invalid(s, in.last, "continue-as-new and the first events of the next execution must be in the same append")
		}
	}
	return nil
}

// rebuildIndex derives the index entry again, from the result of known and the events in memory.
func (in *instance) rebuildIndex(known func() (*instance, error)) error {
	before, err := known()
	if err != nil {
		return err
	}
	in.indexEntry = indexEntry{}
	if before != nil {
		in.indexEntry = before.indexEntry
	}
	for i := range in.executions {
		x := &in.executions[i]
		for n, encoded := range x.events {
			id := x.first + uint64(n)
			if x.number < in.execution || x.number == in.execution && id <= in.last {
				continue
			}
			// fold accepted these events before, so it accepts them again.
			_ = in.fold(x.number, id, encoded)
		}
	}
	in.keepOperationNames() // a flush may be about to drop the events
	return nil
}

func (in *instance) invalid(s *segment, event uint64, reason string) error {
	return &InvalidAppendError{Instance: in.id, Execution: s.execution, EventID: event, Reason: reason}
}

// stopped returns the error that rejects a change of an instance whose replicas disagree.
func stopped(in *instance, execution uint64) error {
	return &InvalidAppendError{Instance: in.id, Execution: execution, EventID: in.last + 1, Reason: ErrStopped.Error(), Err: ErrStopped}
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
		Summary:        in.summary,
		ErrorCode:      in.errorCode,
		Condition:      in.conditionMessage(),
		Attributes:     in.attributeMessages(),
		CopiedEventId:  in.copiedEvent,
	}
	if in.parent != nil {
		m.Parent = in.parent.message()
	}
	return m
}

// beginExecution applies the first event of an execution.
func (i *indexEntry) beginExecution(number uint64, e eventFields) (reason string) {
	var started journalpb.OrchestrationStarted
	if err := proto.Unmarshal(e.body, &started); err != nil {
		return "OrchestrationStarted does not decode"
	}
	if reason := i.validateIncarnation(started.Incarnation); reason != "" {
		return reason
	}
	if i.status != journalpb.Status_STATUS_CONTINUED_AS_NEW {
		i.first, i.created, i.requestID, i.parent = number, e.timestamp, started.RequestId, nil
	}
	if p := started.Parent; p != nil {
		ref := refOf(p)
		i.parent = &ref
	}
	i.incarnation, i.summary = started.Incarnation, started.Summary
	i.execution, i.status = number, journalpb.Status_STATUS_RUNNING
	i.name, i.version, i.tags = started.Name, started.Version, started.Tags
	i.suspended, i.statusEvent, i.errorCode, i.copiedEvent = false, 0, "", 0
	i.publishedState.begin(&started)
	for _, event := range started.Inbox {
		i.deliver(event.Name)
	}
	return ""
}

// validateIncarnation checks the incarnation at the beginning of an execution. The next execution
// of a run keeps it; the next run under the same ID must have a larger one.
func (i *indexEntry) validateIncarnation(next uint64) (reason string) {
	continued := i.status == journalpb.Status_STATUS_CONTINUED_AS_NEW
	switch {
	case continued && next != i.incarnation:
		return fmt.Sprintf("the run has incarnation %d and continues with %d", i.incarnation, next)
	case !continued && i.incarnation != 0 && next <= i.incarnation:
		return fmt.Sprintf("incarnation %d is not larger than the previous run's %d", next, i.incarnation)
	}
	return ""
}

// terminalStatus is the status after each terminal event.
var terminalStatus = map[int]journalpb.Status{
	journalpb.TypeOrchestrationCompleted:      journalpb.Status_STATUS_COMPLETED,
	journalpb.TypeOrchestrationFailed:         journalpb.Status_STATUS_FAILED,
	journalpb.TypeOrchestrationCanceled:       journalpb.Status_STATUS_CANCELED,
	journalpb.TypeOrchestrationTerminated:     journalpb.Status_STATUS_TERMINATED,
	journalpb.TypeOrchestrationContinuedAsNew: journalpb.Status_STATUS_CONTINUED_AS_NEW,
}

// endExecution applies a terminal event.
func (i *indexEntry) endExecution(e eventFields) {
	i.status = terminalStatus[e.eventType]
	if e.eventType == journalpb.TypeOrchestrationFailed {
		i.errorCode = errorCodeIn(e.body, fieldFailedError)
	}
	i.open, i.bufferedEvents, i.suspended = nil, nil, false
}

// subscribe consumes the oldest buffered external event of the name, or opens a subscription.
func (i *indexEntry) subscribe(e eventFields, name string) {
	if i.bufferedEvents[name] == 0 {
		i.open = append(i.open, operation{id: e.id, eventType: e.eventType, target: name, since: e.timestamp})
		return
	}
	if i.bufferedEvents[name]--; i.bufferedEvents[name] == 0 {
		delete(i.bufferedEvents, name)
	}
}

// deliver completes the oldest subscription to the name, or buffers the external event.
func (i *indexEntry) deliver(name string) {
	if at, ok := i.open.oldestSubscription(name); ok {
		i.open = slices.Delete(i.open, at, at+1)
		return
	}
	if i.bufferedEvents == nil {
		i.bufferedEvents = map[string]int{}
	}
	i.bufferedEvents[name]++
}
