package actors

import (
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Message is an input on its way to an instance.
type Message struct {
	// The event that it becomes, and the execution that it is meant for. A
	// start carries OrchestrationStarted.
	replay.Message
	// For a query: the question; there is no event then.
	Query *Query
	// For a start: if the instance exists, that is no error.
	Attach bool
	// For a start: what is to happen if the instance exists and has ended.
	Reuse Reuse
	// Internal messages are never refused with ErrBusy: how many there can be
	// is bounded by the operations that the journal has open.
	Internal bool
	// Says nothing: the instance is to try whether it can go on. If it cannot, the
	// message does not wait.
	Retry bool
	// Called once with the answer, from any goroutine; must not block. May be
	// nil.
	Done func(Answer)
}

// Reuse says when the ID of an instance that has ended may be used again: a new
// run begins, with the next execution.
type Reuse uint8

const (
	// ReuseNever: an ID is used once.
	ReuseNever Reuse = iota
	// ReuseEnded: however the run ended.
	ReuseEnded
	// ReuseFailed: if the run did not complete.
	ReuseFailed
)

// allows tells whether the policy lets a new run follow one with that status.
func (r Reuse) allows(status journalpb.Status) bool {
	switch status {
	case journalpb.Status_STATUS_RUNNING:
		return false
	case journalpb.Status_STATUS_COMPLETED:
		return r == ReuseEnded
	}
	return r != ReuseNever
}

// A Query is a question to an instance. It becomes no event.
type Query struct {
	Name  string
	Input *journalpb.Payload
}

// An Answer says what became of a message. With Err nil it is recorded, or
// there is nothing left to record of it.
type Answer struct {
	Err error
	// The message had been recorded before, or came too late to matter.
	Dropped bool
	// The answer to a start: the execution with which the run began, and whether it
	// existed already; and the run's incarnation.
	FirstExecution uint64
	Attached       bool
	Incarnation    uint64
	// Of a message from outside: such messages take long, and new starts will be
	// refused if there are more of them.
	Crowded bool
	// The answer to a start from another partition that was dropped: the instance that
	// it has met, and its last event if that has ended.
	Instance *journalpb.Instance
	End      *journalpb.Event
	// The answer to a query.
	Output *journalpb.Payload
}

func (m *Message) answer(a Answer) {
	if m.Done != nil {
		m.Done(a)
	}
}

func (m *Message) started() *journalpb.OrchestrationStarted {
	return m.Event.GetOrchestrationStarted()
}

// starts reports whether a message starts an execution.
func starts(m Message) bool { return m.started() != nil }

// terminates tells whether a message ends an instance without its code.
func terminates(m Message) bool { return m.Event.GetOrchestrationTerminated() != nil }

// size returns about how many bytes a message takes.
func (m *Message) size() int {
	if m.Query != nil {
		return proto.Size(m.Query.Input)
	}
	return proto.Size(m.Event)
}

// turnful returns how many of the waiting messages one turn takes: at most most.
func turnful(waiting []Message, most int) int {
	bytes := 0
	for i := 1; i < len(waiting); i++ {
		bytes += proto.Size(waiting[i-1].Event)
		if i == most || bytes > turnBytesMax {
			return i
		}
	}
	return len(waiting)
}
