package replay

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// nameMax bounds the names of activities, orchestrations and events, in bytes.
const nameMax = 128

// PayloadMax bounds one encoded value, in bytes. Larger ones belong into a store
// of their own, with a reference here.
const PayloadMax = 1 << 20

// A PayloadTooLargeError reports a value that is larger than [PayloadMax] when
// encoded.
type PayloadTooLargeError struct{ Bytes int }

func (e *PayloadTooLargeError) Error() string {
	return fmt.Sprintf("tenuto: payload of %d bytes: at most %d are allowed", e.Bytes, PayloadMax)
}

// Encode turns a value into a payload: JSON, as encoding/json writes it.
// The error is encoding/json's or a [*PayloadTooLargeError].
func Encode(value any) (*journalpb.Payload, error) { return encode(value) }

// Decode turns a payload into the value that into points to. A missing payload
// leaves it as it is.
func Decode(payload *journalpb.Payload, into any) error { return decode(payload, into) }

func encode(value any) (*journalpb.Payload, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	if len(data) > PayloadMax {
		return nil, &PayloadTooLargeError{Bytes: len(data)}
	}
	return &journalpb.Payload{Data: data}, nil
}

func decode(payload *journalpb.Payload, into any) error {
	if len(payload.GetData()) == 0 {
		return nil
	}
	if payload.ContentType != "" {
		return fmt.Errorf("tenuto: unknown content type %q", payload.ContentType)
	}
	return json.Unmarshal(payload.Data, into)
}

// encodeNamed encodes the input of something called by name.
func encodeNamed(kind, name string, input any) (*journalpb.Payload, error) {
	if err := checkName(kind, name); err != nil {
		return nil, err
	}
	payload, err := encode(input)
	if err != nil {
		return nil, fmt.Errorf("encode input of %s %q: %w", kind, name, err)
	}
	return payload, nil
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
