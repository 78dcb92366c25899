package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
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

// A PayloadConverter converts values to payloads and back, with the settings of
// [replay.PayloadConverter]. It is safe for concurrent use.
type PayloadConverter replay.PayloadConverter

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
	return json.Unmarshal(plain.Data, into)
}

// serialize encodes a value without the codec; deserialize decodes one without the codec.
func (p PayloadConverter) serialize(info replay.PayloadInfo, value any) (*journalpb.Payload, error) {
	plain, err := marshal(value, cmp.Or(max(p.MaxBytes, 0), replay.PayloadMax))
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

// decoder returns the decoder of the input of user code.
func decoder(kind, name string, plain *journalpb.Payload) host.Decoder {
	return func(into any) error {
		return deserialize(replay.PayloadInfo{Kind: kind, Name: name, Part: "input"}, plain, into)
	}
}

// decodeInto decodes a payload. The caller adds to the error which payload it was.
func decodeInto(into any, plain *journalpb.Payload) *replay.PayloadError {
	if err := unmarshal(plain, into); err != nil {
		return &replay.PayloadError{Verb: "decode", Type: reflect.TypeOf(into).Elem().String(), Err: err}
	}
	return nil
}

// warn reports a large value.
func (p PayloadConverter) warn(logger *slog.Logger, info replay.PayloadInfo, plain *journalpb.Payload) {
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
func (x *Execution) encode(info replay.PayloadInfo, value any) (*journalpb.Payload, error) {
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
	return x.encode(replay.PayloadInfo{Kind: kind, Name: name, Part: "input"}, input)
}

func checkName(kind, name string) error {
	if len(name) == 0 || len(name) > host.NameMax || !utf8.ValidString(name) {
		return &replay.NameError{Kind: kind, Name: truncate(name), Bytes: len(name)}
	}
	if strings.HasPrefix(name, UpdatePrefix) {
		return fmt.Errorf("tenuto: %s %q: names that begin with %q are reserved for updates", kind, name, UpdatePrefix)
	}
	return nil
}
