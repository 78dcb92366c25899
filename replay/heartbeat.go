package replay

import (
	"bytes"
	"context"
	"sync"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Heartbeat reports that the activity attempt of ctx is alive, and its progress. The next attempt,
// on any node, reads the details with [HeartbeatDetails]; operators see them too.
//
// It may be called as often as needed. Details are recorded only when they have changed, and at
// most once a second, or once in a third of the call's [HeartbeatTimeout] if that is longer. If the
// node dies, the latest details may be lost. If only the attempt fails, no details are lost.
//
// Heartbeat returns the cause with which the context has ended; the body should then return. It
// returns a [*PayloadError] or a [*CodecError] if details cannot be encoded; the attempt still
// counts as alive. Outside an activity, such as in a test of its body, it does nothing.
func Heartbeat[T any](ctx context.Context, details T) error {
	attempt := ActivityInfo(ctx)
	if attempt == nil || attempt.RecordHeartbeat == nil {
		return context.Cause(ctx)
	}
	payload, err := attempt.encodeDetails(details)
	attempt.RecordHeartbeat(payload)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// HeartbeatDetails returns the details that an earlier attempt of the same call reported last. It
// returns false if there are none or they do not decode as a T.
func HeartbeatDetails[T any](ctx context.Context) (T, bool) {
	var details T
	attempt := ActivityInfo(ctx)
	if attempt == nil || attempt.Details == nil {
		return details, false
	}
	if err := attempt.payloads.Decode(attempt.detailsInfo(), attempt.Details, &details); err != nil {
		var zero T
		return zero, false
	}
	return details, true
}

func (a *Attempt) detailsInfo() PayloadInfo { return PayloadInfo{"activity", a.Name, "details"} }

// encodeDetails reuses the encoding of unchanged details. A codec may encode them differently each
// time, and they would then be recorded again.
func (a *Attempt) encodeDetails(details any) (*journalpb.Payload, error) {
	plain, err := a.payloads.serialize(a.detailsInfo(), details)
	if err != nil || a.payloads.Codec == nil {
		return plain, err
	}
	a.lastHeartbeat.Lock()
	defer a.lastHeartbeat.Unlock()
	if a.lastHeartbeat.sealed == nil || !bytes.Equal(a.lastHeartbeat.plain, plain.Data) {
		a.lastHeartbeat.plain = plain.Data
		a.lastHeartbeat.sealed, err = a.payloads.seal(plain)
	}
	return a.lastHeartbeat.sealed, err
}

// lastDetails holds the details of the latest heartbeat.
type lastDetails struct {
	sync.Mutex
	plain  []byte
	sealed *journalpb.Payload // nil if they could not be encoded
}
