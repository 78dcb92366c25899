package engine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// The alphabet and maximum length of instance IDs.
const (
	idAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@/+-"
	idMax      = 128
)

// ValidInstanceID reports whether id is a valid instance ID: 1 to 128 of A-Z a-z 0-9 . _ : @ / + -.
func ValidInstanceID(id string) bool {
	return len(id) > 0 && len(id) <= idMax && strings.TrimLeft(id, idAlphabet) == ""
}

// warnBytesDefault is the default of WarnBytes.
const warnBytesDefault = 256 << 10

// A PayloadConverter converts values to payloads and back; see [replay.PayloadConverter]. It is
// safe for concurrent use.
type PayloadConverter struct {
	Codec     replay.Codec
	WarnBytes int
	Warn      func(info replay.PayloadInfo, bytes int)
	// PayloadMax returns the size of the largest value, in bytes of JSON before the codec. It may
	// change: an execution that has recorded a bound keeps it. nil means replay.PayloadMax, and
	// executions record no bound.
	PayloadMax func() int
}

// NewPayloadConverter returns a converter with the settings of a [replay.PayloadConverter].
func NewPayloadConverter(settings replay.PayloadConverter, payloadMax func() int) PayloadConverter {
	return PayloadConverter{Codec: settings.Codec, WarnBytes: settings.WarnBytes, Warn: settings.Warn, PayloadMax: payloadMax}
}

// Encode converts a value to a payload: JSON as encoding/json writes it, then encoded by the codec.
// The error is a [*replay.PayloadError] or a [*replay.CodecError].
func (p PayloadConverter) Encode(info replay.PayloadInfo, value any) (*journalpb.Payload, error) {
	payload, err := p.serialize(info, value)
	if err != nil {
		return nil, err
	}
	p.warn(slog.Default(), info, payload)
	return p.seal(payload)
}

// EncodeJSON converts valid JSON to a payload, as Encode converts a json.RawMessage: without space,
// and with the characters escaped that HTML reserves. If that is too large only because of these
// escapes, the payload is the JSON without space.
func (p PayloadConverter) EncodeJSON(info replay.PayloadInfo, data json.RawMessage) (*journalpb.Payload, error) {
	payload, err := p.serialize(info, data)
	if large := new(replay.PayloadTooLargeError); errors.As(err, &large) {
		var compact bytes.Buffer
		if json.Compact(&compact, data) == nil && compact.Len() <= large.Max {
			payload, err = &journalpb.Payload{Data: compact.Bytes()}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	p.warn(slog.Default(), info, payload)
	return p.seal(payload)
}

// Decode converts a payload and stores the value in the variable that into points to. A missing
// payload leaves it unchanged. The error is a [*replay.PayloadError] or a [*replay.CodecError].
func (p PayloadConverter) Decode(info replay.PayloadInfo, payload *journalpb.Payload, into any) error {
	plain, err := p.open(payload)
	if err != nil {
		return err
	}
	return deserialize(info, plain, into)
}

// Encode converts a value to a payload like the zero [PayloadConverter]. The error is
// encoding/json's or a [*replay.PayloadTooLargeError].
func Encode(value any) (*journalpb.Payload, error) { return marshal(value, replay.PayloadMax) }

// Decode converts a payload like the zero [PayloadConverter] and stores the value in the variable
// that into points to. A missing payload leaves it unchanged.
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
		return nil, &replay.PayloadTooLargeError{Bytes: len(data), Max: maximum}
	}
	alloc.payload.Data = data
	return &alloc.payload, nil
}

func unmarshal(plain *journalpb.Payload, into any) error {
	if len(plain.GetData()) == 0 || readScalar(plain.Data, into) {
		return nil
	}
	// It returns an error if into is not a pointer or is nil.
	return json.Unmarshal(plain.Data, into)
}

// recordedMax returns the bound that a new execution records, 0 for none.
func (p PayloadConverter) recordedMax() uint64 {
	if p.PayloadMax == nil {
		return 0
	}
	return uint64(p.PayloadMax())
}

// serialize encodes a value without the codec; deserialize decodes one without the codec.
func (p PayloadConverter) serialize(info replay.PayloadInfo, value any) (*journalpb.Payload, error) {
	return serialize(info, value, cmp.Or(int(p.recordedMax()), replay.PayloadMax))
}

func serialize(info replay.PayloadInfo, value any, maximum int) (*journalpb.Payload, error) {
	plain, err := marshal(value, maximum)
	if err != nil {
		return nil, &replay.PayloadError{Verb: "encode", PayloadInfo: info, Type: fmt.Sprintf("%T", value), Err: err}
	}
	return plain, nil
}

func deserialize(info replay.PayloadInfo, plain *journalpb.Payload, into any) error {
	if failed := decodeInto(into, plain); failed != nil {
		failed.PayloadInfo = info
		return failed
	}
	return nil
}

// A codeInput is the [host.Decoder] of the input of user code.
type codeInput struct {
	kind, name string
	plain      *journalpb.Payload
}

func (i codeInput) Decode(into any) error {
	return deserialize(replay.PayloadInfo{Kind: i.kind, Name: i.name, Part: "input"}, i.plain, into)
}

// decodeInto decodes a payload. The caller adds to the error which payload it was.
func decodeInto(into any, plain *journalpb.Payload) *replay.PayloadError {
	if err := unmarshal(plain, into); err != nil {
		return &replay.PayloadError{Verb: "decode", Type: destinationType(into), Err: err}
	}
	return nil
}

// A refusableInput is the [host.Decoder] of the input of an update before it is recorded.
type refusableInput struct {
	codeInput
	payloads *PayloadConverter
}

func (i refusableInput) Decode(into any) error {
	if len(i.plain.GetData()) == 0 || readScalar(i.plain.Data, into) {
		return nil
	}
	reason := i.payloads.tryDecode(func() error { return json.Unmarshal(i.plain.Data, into) })
	if reason == nil {
		return nil
	}
	return i.payloads.refuse(&replay.PayloadError{
		Verb: "decode", PayloadInfo: replay.PayloadInfo{Kind: i.kind, Name: i.name, Part: "input"},
		Type: destinationType(into), Err: reason,
	}, i.plain)
}

// refusal returns a [*replay.PayloadError] if the data of an event decodes as none of the types,
// nil if it does or there are none. Data that the codec cannot read is left to the turn that
// consumes it.
func (p PayloadConverter) refusal(event *journalpb.ExternalEvent, types []reflect.Type) error {
	if len(types) == 0 {
		return nil
	}
	plain, err := p.open(event.Data)
	if err != nil {
		return nil
	}
	var failed error
	var names []string
	for _, t := range types {
		err := p.decodeAs(plain, t)
		if err == nil {
			return nil
		}
		if name := t.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
		failed = cmp.Or(failed, err)
	}
	return p.refuse(&replay.PayloadError{
		Verb: "decode", PayloadInfo: replay.PayloadInfo{Kind: "event", Name: event.Name, Part: "data"},
		Type: strings.Join(names, " or "), RequestID: event.RequestId, Err: failed,
	}, plain)
}

// decodeAs returns why a payload does not decode as a value of that type, nil if it does.
func (p PayloadConverter) decodeAs(plain *journalpb.Payload, t reflect.Type) (reason error) {
	if len(plain.GetData()) == 0 || isScalar(plain.Data, t) {
		return nil
	}
	return p.tryDecode(func() error { return json.Unmarshal(plain.Data, reflect.New(t).Interface()) })
}

// tryDecode returns why decode fails, nil if it does not. A panic is a failure. The reason is text,
// because code of the author may have returned any error, whose methods may panic.
func (p PayloadConverter) tryDecode(decode func() error) (reason error) {
	crashed := callIsolated(func() {
		if err := decode(); err != nil {
			reason = p.refusalReason(err)
		}
	})
	if crashed != nil {
		return p.refusalReason(crashed)
	}
	return reason
}

// The bounds of the texts of a refused payload, in bytes.
const (
	sentTextMax   = 200
	refuseTextMax = 1000
)

// refuse completes the error for a payload that is not recorded. Its reason is a refusalReason.
// With a codec, the error has nothing of the data.
func (p PayloadConverter) refuse(e *replay.PayloadError, plain *journalpb.Payload) error {
	e.Host().Refused = true
	if p.Codec == nil {
		e.Sent = strings.ToValidUTF8(truncateTo(string(plain.GetData()), sentTextMax-len("…")), "?")
	}
	return e
}

// refusalReason returns the text of an error as the reason of a refusal. It calls methods of the
// error.
func (p PayloadConverter) refusalReason(err error) error {
	if p.Codec != nil {
		return withoutData(err)
	}
	return errors.New(strings.ToValidUTF8(truncateTo(err.Error(), refuseTextMax), "?"))
}

// withoutData returns the reason why a payload cannot be decoded, without any of its data.
func withoutData(reason error) error {
	var mismatch *json.UnmarshalTypeError
	if errors.As(reason, &mismatch) {
		kind, _, _ := strings.Cut(mismatch.Value, " ") // a number follows
		return fmt.Errorf("JSON %s at byte %d", kind, mismatch.Offset)
	}
	return errors.New("it is encoded by a codec, so nothing of it is shown")
}

// destinationType names the type of the variable that into points to, or that of into itself if it
// is not a pointer.
func destinationType(into any) string {
	if pointer := reflect.TypeOf(into); pointer != nil && pointer.Kind() == reflect.Pointer {
		return pointer.Elem().String()
	}
	return fmt.Sprintf("%T", into)
}

// warn reports a large value.
func (p PayloadConverter) warn(logger *slog.Logger, info replay.PayloadInfo, plain *journalpb.Payload) {
	from := cmp.Or(p.WarnBytes, warnBytesDefault)
	switch {
	case from < 0 || len(plain.Data) < from:
	case p.Warn == nil:
		logger.Warn("large payload", "payload", info.String(), "bytes", len(plain.Data), "warn_bytes", from)
	default:
		_ = callIsolated(func() { p.Warn(info, len(plain.Data)) })
	}
}

func checkName(kind, name string) error {
	if len(name) == 0 || len(name) > host.NameMax || !utf8.ValidString(name) {
		return invalidName(kind, name, name)
	}
	if strings.HasPrefix(name, UpdatePrefix) {
		return fmt.Errorf("tenuto: %s %q: names that begin with %q are reserved for updates", kind, name, UpdatePrefix)
	}
	return nil
}

// invalidName returns the error for an invalid text: the name, or the version, of what kind and
// name identify.
func invalidName(kind, name, text string) error {
	reason := "is not UTF-8"
	if len(text) == 0 || len(text) > host.NameMax {
		reason = fmt.Sprintf("has %d bytes: 1 to %d are allowed", len(text), host.NameMax)
	}
	return &replay.InvalidError{Field: fmt.Sprintf("name of %s %q", kind, truncate(name)), Reason: reason}
}

// Values of simple types, which are most small payloads, are encoded and decoded without
// reflection. The output is that of encoding/json. The reader accepts only a subset of what
// encoding/json accepts; everything else is left to encoding/json.

// appendScalar appends the JSON of a value of a simple type.
func appendScalar(data []byte, value any) (appended []byte, ok bool) {
	switch v := value.(type) {
	case int:
		return strconv.AppendInt(data, int64(v), 10), true
	case int64:
		return strconv.AppendInt(data, v, 10), true
	case bool:
		return strconv.AppendBool(data, v), true
	case string:
		if !isPlainText(v, `"\<>&`) {
			return data, false
		}
		return append(append(append(data, '"'), v...), '"'), true
	}
	return data, false
}

// readScalar decodes JSON into the variable that into points to, if that is of a simple type.
func readScalar(data []byte, into any) (ok bool) {
	switch v := into.(type) {
	case *int:
		n, ok := readInteger(data)
		if ok = ok && v != nil && int64(int(n)) == n; ok {
			*v = int(n)
		}
		return ok
	case *int64:
		n, ok := readInteger(data)
		if ok = ok && v != nil; ok {
			*v = n
		}
		return ok
	case *bool:
		return v != nil && readBool(data, v)
	case *string:
		if v == nil || !isPlainString(data) {
			return false
		}
		*v = string(data[1 : len(data)-1])
		return true
	}
	return false
}

// isPlainString reports whether data is a JSON string without escapes.
func isPlainString(data []byte) bool {
	last := len(data) - 1
	return last >= 1 && data[0] == '"' && data[last] == '"' && isPlainText(string(data[1:last]), `"\`)
}

func readBool(data []byte, into *bool) (ok bool) {
	switch string(data) {
	case "true":
		*into = true
	case "false":
		*into = false
	default:
		return false
	}
	return true
}

// integerDigitsMax is the number of digits that always fit into 64 bits.
const integerDigitsMax = 18

// isScalar reports whether JSON is a value of a simple type, and t is that type. It is false also
// for JSON that only encoding/json accepts.
func isScalar(data []byte, t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[int](), reflect.TypeFor[int64]():
		n, ok := readInteger(data)
		return ok && (t == reflect.TypeFor[int64]() || int64(int(n)) == n)
	case reflect.TypeFor[bool]():
		var value bool
		return readBool(data, &value)
	case reflect.TypeFor[string]():
		return isPlainString(data)
	}
	return false
}

// readInteger reads a JSON integer: without a plus or leading zeros.
func readInteger(data []byte) (n int64, ok bool) {
	digits := data
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	if len(digits) == 0 || len(digits) > integerDigitsMax || digits[0] == '0' && len(digits) > 1 {
		return 0, false
	}
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		n = 10*n + int64(digit-'0')
	}
	if len(digits) < len(data) {
		n = -n
	}
	return n, true
}

// isPlainText reports whether text is printable ASCII without the given characters.
func isPlainText(text, without string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
		for j := range len(without) {
			if text[i] == without[j] {
				return false
			}
		}
	}
	return true
}
