package replay

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Between the cursor and the code all payloads are decoded. The engine opens (decodes) an event
// before the cursor moves onto it, and seals (encodes) an action of the code when it becomes an
// event. So each payload is encoded once, and the codec's output is never compared with the
// history.

// sealEvent returns an event as it is recorded.
func (p PayloadConverter) sealEvent(event *journalpb.Event) (*journalpb.Event, error) {
	if p.Codec == nil {
		return event, nil
	}
	return replaceValues(event, p.seal, p.sealError)
}

// OpenEvent returns a copy of a recorded event with decoded payloads and errors. An event that
// needs no codec is returned itself. The error is a [*CodecError].
func (p PayloadConverter) OpenEvent(event *journalpb.Event) (*journalpb.Event, error) {
	if !isSealedEvent(event) {
		return event, nil
	}
	return replaceValues(event, p.open, p.openError)
}

// replaceValues returns a copy of an event with every payload and every error in it replaced.
func replaceValues(event *journalpb.Event, payload func(*journalpb.Payload) (*journalpb.Payload, error), failure func(*journalpb.Error) (*journalpb.Error, error)) (*journalpb.Event, error) {
	event = proto.CloneOf(event)
	err := eachValue(event.ProtoReflect(), func(m proto.Message) error {
		var other proto.Message
		var err error
		switch m := m.(type) {
		case *journalpb.Payload:
			other, err = payload(m)
		case *journalpb.Error:
			other, err = failure(m)
		}
		if err == nil && other != m {
			proto.Reset(m)
			proto.Merge(m, other)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return event, nil
}

// eachValue calls fn with every payload and every error in a message, but not with the details and
// causes inside an error.
func eachValue(m protoreflect.Message, fn func(proto.Message) error) (err error) {
	visit := func(value protoreflect.Value) bool {
		inner := value.Message()
		switch message := inner.Interface().(type) {
		case *journalpb.Payload, *journalpb.Error:
			err = fn(message)
		default:
			err = eachValue(inner, fn)
		}
		return err == nil
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap() || field.Message() == nil:
			return true
		case field.IsList():
			for i := range value.List().Len() {
				if !visit(value.List().Get(i)) {
					return false
				}
			}
			return true
		}
		return visit(value)
	})
	return err
}

// isSealedEvent reports whether an event holds anything that is encoded by a codec.
func isSealedEvent(event *journalpb.Event) (sealed bool) {
	visitValues(event, func(payload *journalpb.Payload, failure *journalpb.Error) {
		sealed = sealed || isSealed(payload) || needsCodec(failure)
	})
	return sealed
}
