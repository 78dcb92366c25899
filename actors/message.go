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
	// For a start: if the instance exists, that is no error.
	Attach bool
	// Internal messages are never refused with ErrBusy: how many there can be
	// is bounded by the operations that the journal has open.
	Internal bool
	// Called once with the answer, from any goroutine; must not block. May be
	// nil.
	Done func(Answer)
}

// An Answer says what became of a message. With Err nil it is recorded, or
// there is nothing left to record of it.
type Answer struct {
	Err error
	// The message had been recorded before, or came too late to matter.
	Dropped bool
	// The answer to a start: the instance, and whether it existed already.
	Instance *journalpb.Instance
	Attached bool
}

func (m *Message) answer(a Answer) {
	if m.Done != nil {
		m.Done(a)
	}
}

func (m *Message) started() *journalpb.OrchestrationStarted {
	return m.Event.GetOrchestrationStarted()
}

// turnful returns how many of the waiting messages one turn takes.
func turnful(waiting []Message) int {
	bytes := 0
	for i := range waiting {
		if i == turnMax || bytes > turnBytesMax {
			return i
		}
		bytes += proto.Size(waiting[i].Event)
	}
	return len(waiting)
}
