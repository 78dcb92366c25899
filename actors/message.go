package actors

import (
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Message is an input on its way to an instance.
type Message struct {
	// The event that the message becomes, and the execution that it is meant for. A start carries
	// OrchestrationStarted.
	engine.Message
	// Query makes the message a query, which has no event. nil for all other messages.
	Query *Query
	// Sent is, for a start, an event that is delivered right after it; nil for none. A start that
	// begins a run is refused if the event does not fit the types that the code declares for it.
	// The run then records the event without a check if it has the start's request ID, or is the
	// same object in the same batch.
	Sent *journalpb.ExternalEvent
	// Update is, for a start, an update that the run begins with, if the code accepts it in its
	// first step; nil for none. It is recorded in the inbox of the start.
	Update *journalpb.ExternalEvent
	// Attach says, for a start, that an existing instance is not an error.
	Attach bool
	// Reuse says, for a start, whether the ID of an ended instance may be used again.
	Reuse Reuse
	// Internal messages are never rejected with ErrBusy. The open operations in the journal bound
	// their number.
	Internal bool
	// FreshID says that the request ID was made for this message and that no earlier attempt was
	// sent, so no history has it.
	FreshID bool
	// Retry asks a stalled instance to try to continue. If it stalls again, the message is answered
	// with the reason.
	Retry bool
	// Copy makes the message a request for a run whose history begins with a copy. It names the
	// source, the last event to copy, and the request ID. If the target still runs, it is
	// terminated. nil for all other messages.
	Copy *journalpb.CopyHistory
	// withdrawal is set for an update that was taken out of a turn; nil for all other messages.
	withdrawal *withdrawal
	// Done is called once with the answer, from any goroutine. It must not block. It may be nil.
	Done func(Answer)
}

// Reuse says when a new run may use the ID of an ended instance. The run begins with the next
// execution.
type Reuse uint8

const (
	// ReuseNever allows no new run.
	ReuseNever Reuse = iota
	// ReuseEnded allows a new run however the last one ended.
	ReuseEnded
	// ReuseFailed allows a new run if the last one did not complete.
	ReuseFailed
	// ReuseTerminating allows a new run, and terminates the last one if it still runs.
	ReuseTerminating
)

// allows reports whether a new run may follow one with that status.
func (r Reuse) allows(status journalpb.Status) bool {
	switch status {
	case journalpb.Status_STATUS_RUNNING:
		return false
	case journalpb.Status_STATUS_COMPLETED:
		return r == ReuseEnded || r == ReuseTerminating
	}
	return r != ReuseNever
}

// An Answer says what became of a message. If Err is nil, the message is recorded, or nothing is
// left to record for it.
type Answer struct {
	Err error
	// Dropped says that the message was recorded before, or came too late to matter.
	Dropped bool
	// FirstExecution, Attached and Incarnation answer a start or a copy: the first execution of the
	// run, whether the instance already existed, and the run's incarnation.
	FirstExecution uint64
	Attached       bool
	Incarnation    uint64
	// UpdateRecorded says, for a start with an update that has begun a run, that the update is
	// recorded. If it is not, UpdateErr is why the code rejected it or that it has no handler; nil
	// if no code of this execution could accept it. The update then waits in memory as a message of
	// its own, which is not answered. Its sender delivers it again to learn what became of it.
	UpdateRecorded bool
	UpdateErr      error
	// Replaced says, for a start that failed, that it may have ended the existing run.
	Replaced bool
	// Overloaded says, for an external message, that messages take long to commit, and that new
	// starts will be rejected if the load grows.
	Overloaded bool
	// Instance answers a start from another partition that was dropped: the existing instance.
	// LastEvent is its last event if it has ended.
	Instance  *journalpb.Instance
	LastEvent *journalpb.Event
	// Output answers a query.
	Output *journalpb.Payload
}

func (m *Message) resolve(a Answer) {
	if m.Done != nil {
		m.Done(a)
	}
}

// markReplaced marks the answers to a start whose termination of the existing run is committed.
func (m *Message) markReplaced() {
	if done := m.Done; done != nil && isStart(*m) && m.Reuse == ReuseTerminating {
		m.Done = func(a Answer) {
			a.Replaced = true
			done(a)
		}
	}
}

// undecidedUpdate returns the update of a start as a message of its own, for the next attempt or
// execution of the run. Otherwise the run could end before the sender delivers the update again.
func (m *Message) undecidedUpdate() Message {
	return Message{Message: engine.Message{
		Incarnation: m.startEvent().Incarnation,
		Event:       &journalpb.Event{Origin: m.Event.Origin, Body: &journalpb.Event_ExternalEvent{ExternalEvent: m.Update}},
		Validation:  engine.ValidateFirst,
	}}
}

// checkedEvent returns the event of a message if its data must be checked. It returns nil for other
// messages, and if an earlier attempt to deliver the message may have been recorded.
func (m *Message) checkedEvent() *journalpb.ExternalEvent {
	if !m.CheckData || m.Retried {
		return nil
	}
	return m.Event.GetExternalEvent()
}

func (m *Message) startEvent() *journalpb.OrchestrationStarted {
	return m.Event.GetOrchestrationStarted()
}

// isStart reports whether a message starts an execution.
func isStart(m Message) bool { return m.startEvent() != nil }

// isTermination reports whether a message ends an instance without its code.
func isTermination(m Message) bool {
	return m.Event.GetOrchestrationTerminated() != nil || m.Reuse == ReuseTerminating && isStart(m) || m.Copy != nil
}

// replaces reports whether a start ends the latest run of an instance and begins another: the run
// has not ended, no parent waits for it, and another start began it.
func (m *Message) replaces(run *journalpb.Instance) bool {
	return isStart(*m) && m.Reuse == ReuseTerminating && run.Status == journalpb.Status_STATUS_RUNNING &&
		run.Parent == nil && !sameRequest(m.startEvent(), run.RequestId)
}

// replacedReason is the recorded reason of a termination by a start.
const replacedReason = "replaced by a new run with the same ID"

// termination returns the event that ends an instance for a message that is a termination.
func (m *Message) termination() *journalpb.Event {
	if !isStart(*m) {
		return &journalpb.Event{Origin: m.Event.Origin, Body: m.Event.Body}
	}
	return &journalpb.Event{Origin: m.Event.Origin, Body: &journalpb.Event_OrchestrationTerminated{
		OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: replacedReason},
	}}
}

// isForOtherRun reports whether a message of a client names another run than one.
func (m *Message) isForOtherRun(incarnation uint64) bool {
	return !m.Internal && m.Execution == 0 && m.Incarnation != 0 && m.Incarnation != incarnation
}

// size returns the approximate size of a message in bytes.
func (m *Message) size() int {
	if m.Query != nil {
		return proto.Size(m.Query.Input)
	}
	bytes := proto.Size(m.Event)
	if m.Update != nil && m.startEvent().GetInbox() == nil {
		bytes += proto.Size(m.Update)
	}
	return bytes
}

// batchSize returns how many of the waiting messages one turn takes. It takes at most limit
// messages, and no further one when those taken exceed turnBytesMax bytes. A copy takes a turn of
// its own.
func batchSize(waiting []Message, limit int) int {
	bytes := 0
	for i := 1; i < len(waiting); i++ {
		bytes += waiting[i-1].size()
		if i == limit || bytes > turnBytesMax || waiting[0].Copy != nil || waiting[i].Copy != nil {
			return i
		}
	}
	return len(waiting)
}
