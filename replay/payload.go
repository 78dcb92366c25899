package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// nameMax bounds the names of activities, orchestrations and events, in bytes.
const nameMax = 128

// The alphabet and maximum length of instance IDs.
const (
	idAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@/+-"
	idMax      = 128
)

// ValidInstanceID reports whether id is a valid instance ID: 1 to 128 of A-Z a-z 0-9 . _ : @ / + -.
func ValidInstanceID(id string) bool {
	return len(id) > 0 && len(id) <= idMax && strings.TrimLeft(id, idAlphabet) == ""
}

// PayloadMax is the default limit of one value, in bytes of JSON; see [PayloadConverter.MaxBytes].
// Keep larger values in another store and pass a reference.
const PayloadMax = 1 << 20

// warnBytesDefault is the default of PayloadConverter.WarnBytes.
const warnBytesDefault = 256 << 10

// PayloadConverter converts values to payloads and back. The zero value uses JSON with the default
// bounds. All nodes of a cluster and all its clients need the same settings for as long as there
// are instances: a value that was first rejected and is then accepted on replay makes code disagree
// with its history.
//
// It is safe for concurrent use.
type PayloadConverter struct {
	// Codec encrypts or compresses payloads. Defaults to nil: payloads are kept as they are.
	Codec Codec
	// MaxBytes is the size of the largest value, in bytes of JSON, before the codec. 0 or less
	// means PayloadMax, 1 MiB. An append to the journal must have room for several values.
	MaxBytes int
	// WarnBytes is the size from which Warn is called, in bytes of JSON. Defaults to 256 KiB;
	// negative: never.
	WarnBytes int
	// Warn is called for large values, but not again on replay. A panic in it is ignored. Defaults
	// to a log warning: to the node's logger for values of orchestration code, to slog.Default()
	// for others.
	Warn func(info PayloadInfo, bytes int)
}

// PayloadInfo identifies a payload.
type PayloadInfo struct {
	Kind string // "activity", "orchestration", "event", "update", "query" or "side effect"
	Name string // of the activity, orchestration, event and so on
	Part string // "input", "output", "result", "data", "value", "status" or "details"
}

func (info PayloadInfo) String() string {
	return fmt.Sprintf("%s of %s %q", info.Part, info.Kind, info.Name)
}

// Encode converts a value to a payload: JSON as encoding/json writes it, then encoded by the codec.
// The error is a [*PayloadError] or a [*CodecError].
func (p PayloadConverter) Encode(info PayloadInfo, value any) (*journalpb.Payload, error) {
	payload, err := p.serialize(info, value)
	if err != nil {
		return nil, err
	}
	p.warn(slog.Default(), info, payload)
	return p.seal(payload)
}

// Decode converts a payload and stores the value in what into points to. A missing payload leaves
// it unchanged. The error is a [*PayloadError] or a [*CodecError].
func (p PayloadConverter) Decode(info PayloadInfo, payload *journalpb.Payload, into any) error {
	plain, err := p.open(payload)
	if err != nil {
		return err
	}
	return deserialize(info, plain, into)
}

// Encode converts a value to a payload like the zero [PayloadConverter]. The error is
// encoding/json's or a [*PayloadTooLargeError].
func Encode(value any) (*journalpb.Payload, error) { return marshal(value, PayloadMax) }

// Decode converts a payload like the zero [PayloadConverter] and stores the value in what into
// points to. A missing payload leaves it unchanged.
func Decode(payload *journalpb.Payload, into any) error {
	plain, err := PayloadConverter{}.open(payload)
	if err != nil {
		return err
	}
	return unmarshal(plain, into)
}

func marshal(value any, maximum int) (*journalpb.Payload, error) {
	alloc := &struct {
		payload journalpb.Payload
		room    [24]byte // enough for a number
	}{}
	data, ok := appendScalar(alloc.room[:0], value)
	if !ok {
		var err error
		if data, err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	if len(data) > maximum {
		return nil, &PayloadTooLargeError{Bytes: len(data), Max: maximum}
	}
	alloc.payload.Data = data
	return &alloc.payload, nil
}

func unmarshal(plain *journalpb.Payload, into any) error {
	if len(plain.GetData()) == 0 || readScalar(plain.Data, into) {
		return nil
	}
	return json.Unmarshal(plain.Data, into)
}

// serialize encodes a value without the codec; deserialize decodes one without the codec.
func (p PayloadConverter) serialize(info PayloadInfo, value any) (*journalpb.Payload, error) {
	plain, err := marshal(value, cmp.Or(max(p.MaxBytes, 0), PayloadMax))
	if err != nil {
		return nil, &PayloadError{Verb: "encode", PayloadInfo: info, Type: fmt.Sprintf("%T", value), Err: err}
	}
	return plain, nil
}

func deserialize(info PayloadInfo, plain *journalpb.Payload, into any) error {
	if failed := decodeInto(into, plain); failed != nil {
		failed.PayloadInfo = info
		return failed
	}
	return nil
}

// decodeInto decodes a payload. The caller adds to the error which payload it was.
func decodeInto(into any, plain *journalpb.Payload) *PayloadError {
	if err := unmarshal(plain, into); err != nil {
		return &PayloadError{Verb: "decode", Type: reflect.TypeOf(into).Elem().String(), Err: err}
	}
	return nil
}

// warn reports a large value.
func (p PayloadConverter) warn(logger *slog.Logger, info PayloadInfo, plain *journalpb.Payload) {
	from := cmp.Or(p.WarnBytes, warnBytesDefault)
	switch {
	case from < 0 || len(plain.Data) < from:
	case p.Warn == nil:
		logger.Warn("large payload", "of", info.String(), "bytes", len(plain.Data))
	default:
		_ = callIsolated(func() { p.Warn(info, len(plain.Data)) })
	}
}

// encode serializes a value of orchestration code. The codec is applied when the event is recorded
// (see seal).
func (x *Execution) encode(info PayloadInfo, value any) (*journalpb.Payload, error) {
	plain, err := x.registry.payloads.serialize(info, value)
	if err == nil && !x.replaying && !x.evicting {
		x.registry.payloads.warn(x.logger, info, plain)
	}
	return plain, err
}

// encodeInput encodes the input of a named operation.
func (x *Execution) encodeInput(kind, name string, input any) (*journalpb.Payload, error) {
	x.currentCoroutine("a durable call")
	if err := checkName(kind, name); err != nil {
		return nil, err
	}
	return x.encode(PayloadInfo{kind, name, "input"}, input)
}

func checkName(kind, name string) error {
	if len(name) == 0 || len(name) > nameMax || !utf8.ValidString(name) {
		return &NameError{Kind: kind, Name: truncate(name), Bytes: len(name)}
	}
	if strings.HasPrefix(name, UpdatePrefix) {
		return fmt.Errorf("tenuto: %s %q: names that begin with %q are reserved for updates", kind, name, UpdatePrefix)
	}
	return nil
}

// A NameError reports a name that is empty, longer than 128 bytes, or not UTF-8.
type NameError struct {
	Kind  string // activity, orchestration or event
	Name  string
	Bytes int
}

func (e *NameError) Error() string {
	if 0 < e.Bytes && e.Bytes <= nameMax {
		return fmt.Sprintf("tenuto: name of %s %q is not UTF-8", e.Kind, e.Name)
	}
	return fmt.Sprintf("tenuto: name of %s %q has %d bytes: 1 to %d are allowed", e.Kind, e.Name, e.Bytes, nameMax)
}

// A PayloadError reports a value that cannot be encoded, or a payload that is not of the handle's
// type. errors.As finds it on both sides of the journal, and no retry policy retries it. For a
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
	Err       error  `json:"-"`

	detailedText bool // the text identifies the payload and its event_id
}

// Error must keep the wording that existing histories have recorded.
func (e *PayloadError) Error() string { return fmt.Sprintf("%s: %v", e.subject(), e.Err) }

// subject returns the part of the text that says what failed: the verb and the payload.
func (e *PayloadError) subject() string {
	switch {
	case e.detailedText:
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

// restoreText selects the wording that was recorded: the detailed one, or the one used before
// protocol 3.
func (e *PayloadError) restoreText(recorded string) {
	e.detailedText = true
	e.detailedText = strings.HasPrefix(recorded, e.subject())
}

func (e *PayloadError) Unwrap() error { return e.Err }

// A PayloadTooLargeError reports a value that is larger than [PayloadConverter.MaxBytes] as JSON.
type PayloadTooLargeError struct {
	Bytes int
	Max   int
}

func (e *PayloadTooLargeError) Error() string {
	return fmt.Sprintf("tenuto: payload of %d bytes: at most %d are allowed", e.Bytes, e.Max)
}
