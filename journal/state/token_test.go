package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// applyMetadataChange applies a change of the partition's metadata at a time.
func applyMetadataChange(t *testing.T, m *Machine, at time.Duration, c *journalpb.MetadataChange) error {
	t.Helper()
	c.Epoch, c.Clock = m.Epoch(), int64(at)
	record, err := proto.Marshal(&journalpb.Record{Command: &journalpb.Record_MetadataChange{MetadataChange: c}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Apply(record)
	return err
}

func issueChange(key string, expires time.Duration) *journalpb.MetadataChange {
	return &journalpb.MetadataChange{Issued: &journalpb.JoinToken{Key: []byte(key), ExpiresAt: int64(expires)}}
}

func useChange(key, node string) *journalpb.MetadataChange {
	return &journalpb.MetadataChange{Used: &journalpb.JoinToken{Key: []byte(key), Node: node}}
}

func TestToken_IsUsableOnce(t *testing.T) {
	m := New()
	for i, step := range []struct {
		at     time.Duration
		change *journalpb.MetadataChange
		want   error
	}{
		{1, issueChange("a", time.Hour), nil},
		{2, issueChange("b", time.Hour), nil},
		{3, useChange("c", "n1"), ErrTokenUnknown},
		{4, useChange("a", "n1"), nil},
		{5, useChange("a", "n1"), nil},
		{6, useChange("a", "n2"), ErrTokenUsed},
		{7, issueChange("a", 2*time.Hour), nil}, // changes nothing
		{8, useChange("a", "n2"), ErrTokenUsed},
		{time.Hour - 1, useChange("b", "n2"), nil},
		{time.Hour, useChange("b", "n2"), ErrTokenExpired},
		{25*time.Hour + 1, issueChange("d", 26*time.Hour), nil},
		{25*time.Hour + 1, useChange("b", "n2"), ErrTokenUnknown},
	} {
		before := m.Clock()
		if err := applyMetadataChange(t, m, step.at, step.change); !errors.Is(err, step.want) {
			t.Errorf("step %d: %v, want %v", i, err, step.want)
		}
		if step.want != nil && m.Clock() != before {
			t.Errorf("step %d was rejected but moved the clock", i)
		}
	}
}

func TestTokens_AreBounded(t *testing.T) {
	m := New()
	for i := range tokensMax {
		if err := applyMetadataChange(t, m, 1, issueChange(fmt.Sprint(i), time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if err := applyMetadataChange(t, m, 2, issueChange("one more", time.Hour)); !errors.Is(err, ErrTooManyTokens) {
		t.Errorf("one more: %v", err)
	}
	if err := applyMetadataChange(t, m, 26*time.Hour, issueChange("one more", 27*time.Hour)); err != nil {
		t.Errorf("a day after the others have expired: %v", err)
	}
}

// Metadata is stored and sent with every field that it has.
func TestMetadata_EncodesEveryField(t *testing.T) {
	want := new(journalpb.PartitionMetadata)
	number := uint64(0)
	fillMessage(want.ProtoReflect(), &number)
	m := metadataOf(want)
	for name, encoded := range map[string][]byte{"bytes": m.encode(), "message": mustMarshal(t, m.message())} {
		got := new(journalpb.PartitionMetadata)
		if err := proto.Unmarshal(encoded, got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, want) {
			t.Errorf("%s:\n%v, want\n%v", name, prototext.Format(got), prototext.Format(want))
		}
	}
}

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	encoded, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// fillMessage sets each field of a message to a different value.
func fillMessage(m protoreflect.Message, number *uint64) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		*number++
		scalar := func() protoreflect.Value {
			switch field.Kind() {
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(fmt.Sprint("s", *number))
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes(fmt.Append(nil, "b", *number))
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(1)
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(uint32(*number))
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(*number)
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(int64(*number))
			}
			panic(fmt.Sprintf("%s has kind %v", field.FullName(), field.Kind()))
		}
		switch {
		case field.IsList() && field.Message() != nil:
			list := m.Mutable(field).List()
			fillMessage(list.AppendMutable().Message(), number)
			fillMessage(list.AppendMutable().Message(), number)
		case field.IsList():
			m.Mutable(field).List().Append(scalar())
		case field.Message() != nil:
			fillMessage(m.Mutable(field).Message(), number)
		default:
			m.Set(field, scalar())
		}
	}
}

// Metadata is unchanged after encoding and decoding, as bytes and as messages.
func TestMetadata_RoundTrips(t *testing.T) {
	m := New()
	for _, c := range []*journalpb.MetadataChange{
		{Removed: "n9"}, issueChange("b", time.Hour), issueChange("a", time.Hour), useChange("a", "n1"), {Protocol: 3},
		{Settings: []byte("s"), SettingsVersion: 1}, {CompletionKey: []byte("\x00\xff")},
		rolesChange("r", 1), {Cut: 7},
	} {
		if err := applyMetadataChange(t, m, 5, c); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := parseMetadata(m.metadata.encode())
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]metadata{"bytes": parsed, "message": metadataOf(m.metadata.message())} {
		if got.clock != clustertime.FromUnixNano(5) || got.protocol != 3 || !slices.Equal(got.removed, m.metadata.removed) || !slices.Equal(got.tokens, m.metadata.tokens) ||
			string(got.settings.encoded) != "s" || got.settings.version != 1 || string(got.completionKey) != "\x00\xff" ||
			string(got.roles.encoded) != "r" || got.roles.version != 1 || got.cut != 7 {
			t.Errorf("%s: %+v, want %+v", name, got, m.metadata)
		}
	}
	if tokens := m.metadata.tokens; len(tokens) != 2 || tokens[0].node != "n1" || tokens[1].node != "" {
		t.Errorf("tokens: %+v", tokens)
	}
	if err := applyMetadataChange(t, m, 6, &journalpb.MetadataChange{Protocol: 2}); err != nil || m.Protocol() != 3 {
		t.Errorf("the protocol is %d, %v", m.Protocol(), err)
	}
}
