package journalpb_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A field added to the schema must be added to ShallowCopy.
func TestShallowCopy_CopiesEveryField(t *testing.T) {
	original := new(journalpb.OrchestrationStarted)
	message := original.ProtoReflect()
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		message.Set(field, nonzero(message, field))
	}
	if replica := original.ShallowCopy(); !proto.Equal(replica, original) {
		t.Errorf("the copy is\n%v\nwant\n%v", replica, original)
	}
}

// nonzero returns a value of a field that differs from the default.
func nonzero(message protoreflect.Message, field protoreflect.FieldDescriptor) protoreflect.Value {
	value := message.NewField(field)
	switch {
	case field.IsMap():
		value.Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString("value"))
	case field.IsList() && field.Message() != nil:
		value.List().Append(value.List().NewElement())
	case field.IsList():
		value.List().Append(protoreflect.ValueOfString("element"))
	case field.Kind() == protoreflect.StringKind:
		return protoreflect.ValueOfString("text")
	case field.Kind() == protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case field.Kind() == protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1)
	case field.Kind() == protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	case field.Kind() == protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	}
	return value
}
