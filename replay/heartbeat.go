package replay

import (
	"bytes"
	"context"
	"sync"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Heartbeat says that the attempt that the context of an activity's body belongs
// to is alive, and how far it has come. The attempt after this one, on whatever
// node, finds the details by [HeartbeatDetails]; operators see them as well.
//
// It may be called as often as one likes: details are recorded when they have
// changed, and at most once in a second, or in a third of the call's
// [HeartbeatTimeout] if that is longer. What was reported last may be lost with
// the node, then; an attempt that fails leaves all of it behind.
//
// The error says that there is no use in going on: it is the cause with which
// the context has ended. It is a [*PayloadError] or a [*CodecError] if details
// cannot be encoded, and then the sign of life counts all the same. Outside of an activity, in a test of its
// body for example, it does nothing.
func Heartbeat[T any](ctx context.Context, details T) error {
	attempt := ActivityInfo(ctx)
	if attempt == nil || attempt.Beat == nil {
		return context.Cause(ctx)
	}
	payload, err := attempt.encodeDetails(details)
	attempt.Beat(payload)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// HeartbeatDetails returns what an earlier attempt of the same call has reported
// last; false if there was nothing, or something that is no T.
func HeartbeatDetails[T any](ctx context.Context) (T, bool) {
	var details T
	attempt := ActivityInfo(ctx)
	if attempt == nil || attempt.Details == nil {
		return details, false
	}
	if err := attempt.payloads.Decode(attempt.detailsOf(), attempt.Details, &details); err != nil {
		var zero T
		return zero, false
	}
	return details, true
}

func (a *Attempt) detailsOf() PayloadOf { return PayloadOf{"activity", a.Name, "details"} }

// encodeDetails encodes the same details only once: a codec would make something
// else of them each time, and they would be recorded again.
func (a *Attempt) encodeDetails(details any) (*journalpb.Payload, error) {
	plain, err := a.payloads.serialize(a.detailsOf(), details)
	if err != nil || a.payloads.Codec == nil {
		return plain, err
	}
	a.last.Lock()
	defer a.last.Unlock()
	if a.last.sealed == nil || !bytes.Equal(a.last.plain, plain.Data) {
		a.last.plain = plain.Data
		a.last.sealed, err = a.payloads.seal(plain)
	}
	return a.last.sealed, err
}

// lastDetails are those that a heartbeat has reported last.
type lastDetails struct {
	sync.Mutex
	plain  []byte
	sealed *journalpb.Payload // nil if they could not be encoded
}
