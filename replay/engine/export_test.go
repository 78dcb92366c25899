package engine

import (
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// QueuedActions returns the number of queued actions.
func (x *Execution) QueuedActions() int { return len(x.program.operations.queue.actions) }

// SealEvent returns an event as it is recorded.
func (p PayloadConverter) SealEvent(event *journalpb.Event) (*journalpb.Event, error) {
	return p.sealEvent(event)
}

// IsSealedEvent reports whether an event needs the codec.
func IsSealedEvent(event *journalpb.Event) bool { return isSealedEvent(event) }

// ValueBytes returns the bytes of user data in an event.
func ValueBytes(event *journalpb.Event) int { return valueBytes(event) }

// RecordedOptions returns the record of the options of a call.
func RecordedOptions(options ...replay.Option) *journalpb.ActivityOptions {
	requested, recorded := new(host.ActivityOptions), new(journalpb.ActivityOptions)
	if err := ApplyOptions(options, requested, "an activity"); err != nil {
		panic(err)
	}
	recordActivityOptions(recorded, requested)
	return recorded
}
