package replay

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// Asked returns how many actions are queued.
func (x *Execution) Asked() int { return len(x.queue) }

// SealEvent returns an event as it is recorded.
func (p Payloads) SealEvent(event *journalpb.Event) (*journalpb.Event, error) {
	return p.sealEvent(event)
}

// SealedEvent tells whether an event needs the codec.
func SealedEvent(event *journalpb.Event) bool { return sealedEvent(event) }

// ValueBytes returns the bytes of user data in an event.
func ValueBytes(event *journalpb.Event) int { return valueBytes(event) }
