package cluster

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

func TestExport_EqualsHistory(t *testing.T) {
	ctx := testContext(t)
	client := startNode(t, Config{InMemory: true, Definitions: definitions()}).Client()
	if _, err := Call(ctx, client, fiveActivities, "f-1", 1); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := client.Export(ctx, "f-1", 0, &text, Stale()); err != nil {
		t.Fatal(err)
	}
	exported, err := history.Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := client.HistoryOf(ctx, "f-1", 1)
	if err != nil {
		t.Fatal(err)
	}
	want := &history.History{Instance: "f-1", Execution: 1, Events: recorded.Events}
	if diff := cmp.Diff(want, exported); diff != "" {
		t.Error(diff)
	}
}

func TestExport_MissingHistoryWritesNothing(t *testing.T) {
	ctx := testContext(t)
	client := startNode(t, Config{InMemory: true, Definitions: definitions()}).Client()
	if _, err := Call(ctx, client, fiveActivities, "f-1", 1); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, missing := range []struct {
		id        string
		execution uint64
	}{{"f-2", 0}, {"f-1", 2}} {
		if err := client.Export(ctx, missing.id, missing.execution, &text); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s/%d: %v; want %v", missing.id, missing.execution, err, ErrNotFound)
		}
	}
	var input *replay.InvalidError
	if err := client.Export(ctx, "not an id", 0, &text); !errors.As(err, &input) {
		t.Errorf("%v; want an InvalidError", err)
	}
	if text.Len() > 0 {
		t.Errorf("written: %s", &text)
	}
}

// TestExport_KeepsPayloadEncoding reads payloads encoded by a codec with a client that lacks the
// codec.
func TestExport_KeepsPayloadEncoding(t *testing.T) {
	ctx := testContext(t)
	node := startNode(t, Config{InMemory: true, Definitions: definitions(), PayloadConverter: replay.PayloadConverter{Codec: flippingCodec{}}})
	if _, err := Call(ctx, node.Client(), fiveActivities, "f-1", 1); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := node.Client().Export(ctx, "f-1", 0, &text); err != nil {
		t.Fatal(err)
	}
	exported, err := history.Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	var input int
	var noCodec *replay.CodecError
	if err := exported.Events[0].Decode(&input); !errors.As(err, &noCodec) || noCodec.ContentType != flippedContentType {
		t.Errorf("without the codec: %v; want a CodecError", err)
	}
	opened, err := exported.Events[0].Open(replay.PayloadConverter{Codec: flippingCodec{}})
	if err := errors.Join(err, opened.Decode(&input)); err != nil || input != 1 {
		t.Errorf("with the codec: %d, %v", input, err)
	}
}

const flippedContentType = "application/x-flipped"

// A flippingCodec inverts every bit.
type flippingCodec struct{}

func (flippingCodec) Encode(data []byte) ([]byte, string, error) {
	return flipBits(data), flippedContentType, nil
}
func (flippingCodec) Decode(data []byte, _ string) ([]byte, error) { return flipBits(data), nil }

func flipBits(data []byte) []byte {
	turned := make([]byte, len(data))
	for i, b := range data {
		turned[i] = ^b
	}
	return turned
}
