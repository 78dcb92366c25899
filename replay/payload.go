package replay

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A Codec encodes payloads on their way into the journal and decodes them on their way back, to
// encrypt or compress them. It processes inputs, outputs, results, event data, side effects,
// statuses, heartbeat details, and the errors of user code with their messages, details and stacks.
// It does not process what the system uses itself: names, versions, IDs, tags, error codes, and the
// reasons for canceling, suspending and terminating.
//
// Encode need not be deterministic: code and history are compared after decoding. Decode must
// return what was given to Encode, on every node, for as long as the data is kept.
//
// The content type that Encode returns is recorded with the data and passed to Decode; it may name
// the key, for example. It is at most 128 bytes of UTF-8. "" means that the data was left
// unencoded: Decode is not called, and the data can be read without the codec. The same holds for
// data recorded before a codec was set.
//
// A codec is called concurrently, and while an instance runs its code. It must not block for long,
// so fetch keys in advance. A panic in it is treated as an error. Orchestration code never sees a
// codec error, because it could then take another branch than on replay. Instead the turn or replay
// fails with a [*CodecError], nothing is recorded, the sender of an input gets the error, and
// inputs from the system itself are sent again. An activity's attempt fails and is retried under
// its policy. The codec's error messages are logged and recorded unencoded.
type Codec interface {
	Encode(data []byte) (encoded []byte, contentType string, err error)
	Decode(encoded []byte, contentType string) (data []byte, err error)
}

// PayloadMax is the default limit of one value, in bytes of JSON before the codec; clusters may set
// another (cluster.Settings). Keep larger values in another store and pass a reference.
const PayloadMax = 1 << 20

// A PayloadConverter says how values become payloads. The zero value means JSON. All nodes of a
// cluster and all its clients need the same codec for as long as there are instances.
type PayloadConverter struct {
	// Codec encrypts or compresses payloads. Defaults to nil: payloads are kept as they are.
	Codec Codec
	// WarnBytes is the size from which Warn is called, in bytes of JSON. Defaults to 256 KiB;
	// negative: never.
	WarnBytes int
	// Warn is called for large values, but not again on replay. A panic in it is ignored. Defaults
	// to a log warning: to the node's logger for values of orchestration code, to slog.Default()
	// for others.
	Warn func(info PayloadInfo, bytes int)
}

// A CodecError reports that a codec failed, or that none is set for a payload that needs one.
type CodecError struct {
	Verb        string // "encode" or "decode"
	ContentType string // of the payload to decode
	Err         error  `json:"-"`
}

func (e *CodecError) Error() string {
	if e.Verb == "encode" {
		return fmt.Sprintf("tenuto: codec: encode: %v", e.Err)
	}
	return fmt.Sprintf("tenuto: codec: decode %q: %v", e.ContentType, e.Err)
}

func (e *CodecError) Unwrap() error { return e.Err }

// PayloadInfo identifies a payload.
type PayloadInfo struct {
	// Kind is "activity", "orchestration", "event", "update", "query", "side effect", "key-value
	// map" or "attribute".
	Kind string
	Name string // of the activity, orchestration, event and so on
	Part string // "input", "output", "result", "data", "value", "status" or "details"
}

func (info PayloadInfo) String() string {
	return fmt.Sprintf("%s of %s %q", info.Part, info.Kind, info.Name)
}

// A PayloadError reports a value that cannot be encoded, or a payload that is not of the handle's
// type. errors.As finds it before and after it is recorded, and no retry policy retries it. For a
// value that is too large it wraps a [*PayloadTooLargeError].
type PayloadError struct {
	Verb string // "encode" or "decode"
	PayloadInfo
	Type string // Go type of the value, or of the destination
	// EventID is, for a result, the event_id of the event that scheduled the activity or the child.
	// For the data of an event it is the event's own event_id, 0 if it was recorded in an earlier
	// execution. It is 0 in executions that began before protocol 3.
	EventID uint64 `json:",omitempty"`
	// RequestID is, for the data of an event, the ID that its sender gave it, "" if none.
	RequestID string `json:",omitempty"`
	// Sent is what was sent, at most 200 bytes of its JSON, if the receiver refused it before it
	// was recorded: the data of an event (see [Receives]) or the input of an update. It is "" if a
	// codec is configured.
	Sent string `json:",omitempty"`
	Err  error  `json:"-"`

	text host.PayloadText
}

// Host returns what selects the text, for package engine.
func (e *PayloadError) Host() *host.PayloadText { return &e.text }

// Error returns the text that existing histories have recorded, so its wording must not change.
func (e *PayloadError) Error() string { return fmt.Sprintf("%s: %v", e.subject(), e.Err) }

// subject returns the part of the text that says what failed: the verb and the payload.
func (e *PayloadError) subject() string {
	switch {
	case e.text.Refused && e.Sent != "":
		return fmt.Sprintf("%s %v as %s: sent %s", e.Verb, e.PayloadInfo, e.Type, e.Sent)
	case e.text.Refused:
		return fmt.Sprintf("%s %v as %s", e.Verb, e.PayloadInfo, e.Type)
	case e.text.Detailed:
		return fmt.Sprintf("%s %v (%s)", e.Verb, e.PayloadInfo, e.location())
	case e.Verb == "encode" && e.Part == "input", e.Part == "value":
		return fmt.Sprintf("%s %v", e.Verb, e.PayloadInfo)
	}
	return e.Verb + " " + e.Part
}

// location returns where a payload was recorded, and its request ID.
func (e *PayloadError) location() string {
	place := "recorded in an earlier execution"
	if e.EventID != 0 {
		place = fmt.Sprintf("event_id %d", e.EventID)
	}
	if e.RequestID != "" {
		place += fmt.Sprintf(", request ID %q", e.RequestID)
	}
	return place
}

func (e *PayloadError) Unwrap() error { return e.Err }

// A PayloadTooLargeError reports a value that is larger as JSON than the cluster allows, or than it
// allowed when the execution began; see [PayloadMax].
type PayloadTooLargeError struct {
	Bytes int
	Max   int
}

func (e *PayloadTooLargeError) Error() string {
	return fmt.Sprintf("tenuto: payload of %d bytes: at most %d are allowed", e.Bytes, e.Max)
}
