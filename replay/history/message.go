package history

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

var payloadName = (&journalpb.Payload{}).ProtoReflect().Descriptor().FullName()

// jsonField is the field that replaces data in a payload that is plain JSON.
const jsonField = "json"

// writeMessage writes a message like protojson, but deterministically, without spaces.
func writeMessage(text *bytes.Buffer, m protoreflect.Message) error {
	if m.Descriptor().FullName() == payloadName && writePayload(text, m.Interface().(*journalpb.Payload)) {
		return nil
	}
	fields := slices.SortedFunc(populatedFields(m), func(a, b protoreflect.FieldDescriptor) int {
		return int(a.Number() - b.Number())
	})
	text.WriteByte('{')
	for i, field := range fields {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(strconv.Quote(field.JSONName()) + ":")
		if err := writeField(text, field, m.Get(field)); err != nil {
			return err
		}
	}
	text.WriteByte('}')
	return nil
}

// populatedFields yields the fields that are set in a message.
func populatedFields(m protoreflect.Message) func(func(protoreflect.FieldDescriptor) bool) {
	return func(yield func(protoreflect.FieldDescriptor) bool) {
		m.Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool { return yield(field) })
	}
}

// writePayload writes a payload as plain JSON if that reads back as the same bytes.
func writePayload(text *bytes.Buffer, p *journalpb.Payload) bool {
	if p.ContentType != "" || !utf8.Valid(p.Data) {
		return false
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, p.Data); err != nil || !bytes.Equal(compact.Bytes(), p.Data) {
		return false
	}
	fmt.Fprintf(text, `{"%s":%s}`, jsonField, p.Data)
	return true
}

func writeField(text *bytes.Buffer, field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	switch {
	case field.IsList():
		return writeList(text, field, value.List())
	case field.IsMap():
		return writeMap(text, field, value.Map())
	}
	return writeValue(text, field, value)
}

func writeList(text *bytes.Buffer, field protoreflect.FieldDescriptor, list protoreflect.List) error {
	text.WriteByte('[')
	for i := range list.Len() {
		if i > 0 {
			text.WriteByte(',')
		}
		if err := writeValue(text, field, list.Get(i)); err != nil {
			return err
		}
	}
	text.WriteByte(']')
	return nil
}

// writeMap writes a map in the order of its string keys.
func writeMap(text *bytes.Buffer, field protoreflect.FieldDescriptor, m protoreflect.Map) error {
	values := make(map[string]protoreflect.Value)
	m.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		values[key.String()] = value
		return true
	})
	text.WriteByte('{')
	for i, key := range slices.Sorted(maps.Keys(values)) {
		if i > 0 {
			text.WriteByte(',')
		}
		if err := writeText(text, key); err != nil {
			return err
		}
		text.WriteByte(':')
		if err := writeValue(text, field.MapValue(), values[key]); err != nil {
			return err
		}
	}
	text.WriteByte('}')
	return nil
}

func writeValue(text *bytes.Buffer, field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	switch field.Kind() {
	case protoreflect.MessageKind:
		return writeMessage(text, value.Message())
	case protoreflect.StringKind:
		return writeText(text, value.String())
	case protoreflect.BytesKind:
		return writeText(text, base64.StdEncoding.EncodeToString(value.Bytes()))
	case protoreflect.Int64Kind, protoreflect.Uint64Kind:
		return writeText(text, value.String())
	case protoreflect.EnumKind:
		if known := field.Enum().Values().ByNumber(value.Enum()); known != nil {
			return writeText(text, string(known.Name()))
		}
		text.WriteString(strconv.Itoa(int(value.Enum())))
		return nil
	case protoreflect.DoubleKind:
		return writeNumber(text, value.Float())
	case protoreflect.BoolKind, protoreflect.Uint32Kind:
		encoded, err := json.Marshal(value.Interface())
		text.Write(encoded)
		return err
	}
	return fmt.Errorf("field %s: unsupported kind %v", field.FullName(), field.Kind())
}

// writeNumber writes NaN and infinities as protojson does.
func writeNumber(text *bytes.Buffer, number float64) error {
	switch {
	case math.IsNaN(number):
		return writeText(text, "NaN")
	case math.IsInf(number, 1):
		return writeText(text, "Infinity")
	case math.IsInf(number, -1):
		return writeText(text, "-Infinity")
	}
	encoded, err := json.Marshal(number)
	text.Write(encoded)
	return err
}

var errNotUTF8 = errors.New("text is not UTF-8")

func writeText(text *bytes.Buffer, s string) error {
	if !utf8.ValidString(s) {
		return errNotUTF8
	}
	encoded, err := json.Marshal(s)
	text.Write(encoded)
	return err
}

// protoJSONMessage returns the encoded message with its payloads in protobuf form.
func protoJSONMessage(encoded json.RawMessage, m protoreflect.MessageDescriptor) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return nil, err
	}
	if value, ok := fields[jsonField]; ok && m.FullName() == payloadName {
		return protoJSONPayload(fields, value)
	}
	for name, value := range fields {
		field := m.Fields().ByJSONName(name)
		if field == nil || field.Kind() != protoreflect.MessageKind || field.IsMap() {
			continue // protojson reads it or rejects it
		}
		plain, err := protoJSONField(value, field)
		if err != nil {
			return nil, err
		}
		fields[name] = plain
	}
	return json.Marshal(fields)
}

func protoJSONField(encoded json.RawMessage, field protoreflect.FieldDescriptor) (json.RawMessage, error) {
	if !field.IsList() {
		return protoJSONMessage(encoded, field.Message())
	}
	var list []json.RawMessage
	if err := json.Unmarshal(encoded, &list); err != nil {
		return nil, err
	}
	for i := range list {
		plain, err := protoJSONMessage(list[i], field.Message())
		if err != nil {
			return nil, err
		}
		list[i] = plain
	}
	return json.Marshal(list)
}

func protoJSONPayload(fields map[string]json.RawMessage, value json.RawMessage) (json.RawMessage, error) {
	if len(fields) > 1 {
		return nil, fmt.Errorf("a payload that has %q must have no other field", jsonField)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, value); err != nil {
		return nil, err
	}
	return json.Marshal(map[string][]byte{"data": compact.Bytes()})
}
