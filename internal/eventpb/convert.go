package eventpb

import (
	"github.com/tenuto-dev/tenuto/internal/eventpb/hook"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var (
	newEvent = hook.New.(func(uint64, *journalpb.Event) history.Event)
	message  = hook.Message.(func(history.Event) *journalpb.Event)
)

// New returns the event of an execution. It keeps the message, which must not change any more.
func New(execution uint64, message *journalpb.Event) history.Event {
	return newEvent(execution, message)
}

// NewList returns the events of an execution; see [New].
func NewList(execution uint64, messages []*journalpb.Event) []history.Event {
	events := make([]history.Event, len(messages))
	for i, m := range messages {
		events[i] = newEvent(execution, m)
	}
	return events
}

// Message returns the message of an event, which must not be changed. It is empty for the zero
// event.
func Message(event history.Event) *journalpb.Event { return message(event) }

// Messages returns the messages of events; see [Message].
func Messages(events []history.Event) []*journalpb.Event {
	messages := make([]*journalpb.Event, len(events))
	for i, event := range events {
		messages[i] = message(event)
	}
	return messages
}

// Failures returns the failed attempts that the record of an open activity has.
func Failures(recorded *journalpb.FailedAttempts) []history.FailedAttempt {
	end := &journalpb.ActivityFailed{FailedAttempts: recorded}
	return newEvent(0, &journalpb.Event{Body: &journalpb.Event_ActivityFailed{ActivityFailed: end}}).Failures()
}
