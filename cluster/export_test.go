package cluster

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

func TestWhatIsExportedIsTheHistory(t *testing.T) {
	ctx := testContext(t)
	client := startNode(t, Config{InMemory: true, Definitions: definitions()}).Client()
	if _, err := Call(ctx, client, fifth, "f-1", 1); err != nil {
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
	if diff := cmp.Diff(want, exported, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestNothingIsWrittenOfAHistoryThatIsNotThere(t *testing.T) {
	ctx := testContext(t)
	client := startNode(t, Config{InMemory: true, Definitions: definitions()}).Client()
	if _, err := Call(ctx, client, fifth, "f-1", 1); err != nil {
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
	var input *InputError
	if err := client.Export(ctx, "not an id", 0, &text); !errors.As(err, &input) {
		t.Errorf("%v; want an InputError", err)
	}
	if text.Len() > 0 {
		t.Errorf("written: %s", &text)
	}
}

// TestExportLeavesPayloadsAsTheyAreRecorded has a client read what a codec has
// encoded, of which it knows nothing.
func TestExportLeavesPayloadsAsTheyAreRecorded(t *testing.T) {
	ctx := testContext(t)
	node := startNode(t, Config{InMemory: true, Definitions: definitions(), Payloads: replay.Payloads{Codec: flipped{}}})
	if _, err := Call(ctx, node.Client(), fifth, "f-1", 1); err != nil {
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
	if input := exported.Events[0].GetOrchestrationStarted().GetInput(); input.GetContentType() != flippedType {
		t.Errorf("the input is exported as %v", input)
	}
}

const flippedType = "application/x-flipped"

// A flipped codec turns every bit around.
type flipped struct{}

func (flipped) Encode(data []byte) ([]byte, string, error)   { return flip(data), flippedType, nil }
func (flipped) Decode(data []byte, _ string) ([]byte, error) { return flip(data), nil }

func flip(data []byte) []byte {
	turned := make([]byte, len(data))
	for i, b := range data {
		turned[i] = ^b
	}
	return turned
}
