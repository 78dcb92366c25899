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

// The alphabet and length of instance IDs.
const (
	idAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@/+-"
	idMax      = 128
)

// ValidInstanceID reports whether an instance may have that ID: 1 to 128 of
// A-Z a-z 0-9 . _ : @ / + -.
func ValidInstanceID(id string) bool {
	return len(id) > 0 && len(id) <= idMax && strings.TrimLeft(id, idAlphabet) == ""
}

// PayloadMax bounds one value, in bytes as JSON, unless [Payloads.Max] says
// something else. Larger ones belong into a store of their own, with a
// reference here.
const PayloadMax = 1 << 20

// warnFromDefault is the default of Payloads.WarnFrom.
const warnFromDefault = 256 << 10

// Payloads says how values become payloads, and payloads values. The zero value
// means JSON with the default bounds. All nodes of a cluster, and those that
// call it, need the same, for as long as there are instances: a value that was
// refused once and is taken on replay makes code disagree with its history.
//
// It may be used concurrently.
type Payloads struct {
	// What encrypts or compresses payloads. Defaults to nil: they are kept as
	// they are.
	Codec Codec
	// The largest value, in bytes as JSON, before the codec. 0 and less mean
	// PayloadMax, 1 MiB. An append of the journal must have room for several.
	Max int
	// From which size on Warn is called, in bytes as JSON. Defaults to 256 KiB;
	// negative: never.
	WarnFrom int
	// Is told of large values, not again when they are repeated on replay. A
	// panic in it is ignored. Defaults to a warning in the log: the node's for
	// values of orchestration code, slog.Default() for others.
	Warn func(of PayloadOf, bytes int)
}

// PayloadOf says which payload is meant.
type PayloadOf struct {
	Kind string // "activity", "orchestration", "event", "update", "query" or "side effect"
	Name string // of the activity, orchestration …
	Part string // "input", "output", "result", "data", "value", "status" or "details"
}

func (of PayloadOf) String() string {
	return fmt.Sprintf("%s of %s %q", of.Part, of.Kind, of.Name)
}

// Encode turns a value into a payload: JSON, as encoding/json writes it, and
// then what the codec makes of it. The error is a [*PayloadError] or a
// [*CodecError].
func (p Payloads) Encode(of PayloadOf, value any) (*journalpb.Payload, error) {
	payload, err := p.serialize(of, value)
	if err != nil {
		return nil, err
	}
	p.warn(slog.Default(), of, payload)
	return p.seal(payload)
}

// Decode turns a payload into the value that into points to. A missing payload
// leaves it as it is. The error is a [*PayloadError] or a [*CodecError].
func (p Payloads) Decode(of PayloadOf, payload *journalpb.Payload, into any) error {
	plain, err := p.open(payload)
	if err != nil {
		return err
	}
	return deserialize(of, plain, into)
}

// Encode turns a value into a payload as the zero [Payloads] do. The error is
// encoding/json's or a [*PayloadTooLargeError].
func Encode(value any) (*journalpb.Payload, error) { return marshal(value, PayloadMax) }

// Decode turns a payload into the value that into points to, as the zero
// [Payloads] do. A missing payload leaves it as it is.
func Decode(payload *journalpb.Payload, into any) error {
	plain, err := Payloads{}.open(payload)
	if err != nil {
		return err
	}
	return unmarshal(plain, into)
}

func marshal(value any, most int) (*journalpb.Payload, error) {
	made := &struct {
		payload journalpb.Payload
		room    [24]byte // for a number
	}{}
	data, ok := appendScalar(made.room[:0], value)
	if !ok {
		var err error
		if data, err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	if len(data) > most {
		return nil, &PayloadTooLargeError{Bytes: len(data), Max: most}
	}
	made.payload.Data = data
	return &made.payload, nil
}

func unmarshal(plain *journalpb.Payload, into any) error {
	if len(plain.GetData()) == 0 || readScalar(plain.Data, into) {
		return nil
	}
	return json.Unmarshal(plain.Data, into)
}

// serialize is the first half of encoding a value, what deserialize is the
// second half of decoding one: between them and the codec's halves, a payload
// is plain.
func (p Payloads) serialize(of PayloadOf, value any) (*journalpb.Payload, error) {
	plain, err := marshal(value, cmp.Or(max(p.Max, 0), PayloadMax))
	if err != nil {
		return nil, &PayloadError{Verb: "encode", PayloadOf: of, Type: fmt.Sprintf("%T", value), Err: err}
	}
	return plain, nil
}

func deserialize(of PayloadOf, plain *journalpb.Payload, into any) error {
	if failed := decodeInto(into, plain); failed != nil {
		failed.PayloadOf = of
		return failed
	}
	return nil
}

// decodeInto returns an error that does not say yet of what the payload is, or nil.
func decodeInto(into any, plain *journalpb.Payload) *PayloadError {
	if err := unmarshal(plain, into); err != nil {
		return &PayloadError{Verb: "decode", Type: reflect.TypeOf(into).Elem().String(), Err: err}
	}
	return nil
}

// warn tells of a large value.
func (p Payloads) warn(logger *slog.Logger, of PayloadOf, plain *journalpb.Payload) {
	from := cmp.Or(p.WarnFrom, warnFromDefault)
	switch {
	case from < 0 || len(plain.Data) < from:
	case p.Warn == nil:
		logger.Warn("large payload", "of", of.String(), "bytes", len(plain.Data))
	default:
		_ = apart(func() { p.Warn(of, len(plain.Data)) })
	}
}

// encode serializes a value of the code. What the codec does comes when the
// event is recorded: see seal.
func (x *Execution) encode(of PayloadOf, value any) (*journalpb.Payload, error) {
	plain, err := x.registry.payloads.serialize(of, value)
	if err == nil && !x.replaying && !x.dropping {
		x.registry.payloads.warn(x.logger, of, plain)
	}
	return plain, err
}

// encodeInput encodes the input of something that is called by name.
func (x *Execution) encodeInput(kind, name string, input any) (*journalpb.Payload, error) {
	x.running("a durable call")
	if err := checkName(kind, name); err != nil {
		return nil, err
	}
	return x.encode(PayloadOf{kind, name, "input"}, input)
}

func checkName(kind, name string) error {
	if len(name) == 0 || len(name) > nameMax || !utf8.ValidString(name) {
		return &NameError{Kind: kind, Name: cut(name), Bytes: len(name)}
	}
	if strings.HasPrefix(name, UpdatePrefix) {
		return fmt.Errorf("tenuto: %s %q: names that begin with %q are those of updates", kind, name, UpdatePrefix)
	}
	return nil
}

// A NameError reports a name that is empty, longer than 128 bytes, or not
// UTF-8.
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

// A PayloadError reports a value that cannot be encoded, or a payload that is
// not of the type that the handle says. It is known by errors.As on both sides
// of the journal, and no retry policy tries again: that would change nothing.
// A value that is too large has a [*PayloadTooLargeError] as its cause.
type PayloadError struct {
	Verb string // "encode" or "decode"
	PayloadOf
	Type string // the Go type of the value, or of what was to be decoded into
	// Of a result: the event_id of the event that scheduled the activity or the child. Of the
	// data of an event: its own event_id, 0 if it was recorded in an earlier execution. 0 also
	// in executions that began before protocol 3.
	EventID uint64 `json:",omitempty"`
	// Of the data of an event: the ID that its sender gave to it, "" for none.
	RequestID string `json:",omitempty"`
	Err       error  `json:"-"`

	named bool // the text says of what the payload is, and its event_id
}

// Error keeps to the wording of histories that exist.
func (e *PayloadError) Error() string { return fmt.Sprintf("%s: %v", e.what(), e.Err) }

// what says what was to be done to which payload.
func (e *PayloadError) what() string {
	switch {
	case e.named:
		return fmt.Sprintf("%s %v (%s)", e.Verb, e.PayloadOf, e.place())
	case e.Verb == "encode" && e.Part == "input", e.Part == "value":
		return fmt.Sprintf("%s %v", e.Verb, e.PayloadOf)
	}
	return e.Verb + " " + e.Part
}

// place says where a payload was recorded, and from whom.
func (e *PayloadError) place() string {
	place := "recorded in an earlier execution"
	if e.EventID != 0 {
		place = fmt.Sprintf("event_id %d", e.EventID)
	}
	if e.RequestID != "" {
		place += fmt.Sprintf(", request ID %q", e.RequestID)
	}
	return place
}

// worded makes the text the one that was recorded: named, or as it was before protocol 3.
func (e *PayloadError) worded(recorded string) {
	e.named = true
	e.named = strings.HasPrefix(recorded, e.what())
}

func (e *PayloadError) Unwrap() error { return e.Err }

// A PayloadTooLargeError reports a value that is larger than [Payloads.Max]
// when encoded as JSON.
type PayloadTooLargeError struct {
	Bytes int
	Max   int
}

func (e *PayloadTooLargeError) Error() string {
	return fmt.Sprintf("tenuto: payload of %d bytes: at most %d are allowed", e.Bytes, e.Max)
}
