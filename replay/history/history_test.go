package history_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const recordedFiles = "../engine/testdata/histories/*.jsonl"

// histories returns the recorded histories of package replay, with events of every type.
func histories(t testing.TB) []*history.History {
	t.Helper()
	files, err := filepath.Glob(recordedFiles)
	if err != nil || len(files) == 0 {
		t.Fatalf("%d recorded histories: %v", len(files), err)
	}
	var all []*history.History
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var events []*journalpb.Event
		for line := range bytes.Lines(content) {
			event := new(journalpb.Event)
			if err := protojson.Unmarshal(line, event); err != nil {
				t.Fatal(err)
			}
			events = append(events, event)
		}
		all = append(all, historyOf("i", 1, events...))
	}
	return all
}

func historyOf(instance string, execution uint64, events ...*journalpb.Event) *history.History {
	return &history.History{Instance: instance, Execution: execution, Events: eventpb.NewList(execution, events)}
}

func write(t testing.TB, h *history.History) string {
	t.Helper()
	var text bytes.Buffer
	if err := history.Write(&text, h); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func wantEqual(t testing.TB, got, want *history.History) {
	t.Helper()
	if got.Instance != want.Instance || got.Execution != want.Execution || len(got.Events) != len(want.Events) {
		t.Fatalf("%s/%d of %d events, want %s/%d of %d", got.Instance, got.Execution, len(got.Events),
			want.Instance, want.Execution, len(want.Events))
	}
	for i := range got.Events {
		if !got.Events[i].Equal(want.Events[i]) {
			t.Errorf("event %d:\n%v\nwant:\n%v", i+1, got.Events[i], want.Events[i])
		}
	}
}

func TestRead_RoundTrip(t *testing.T) {
	for _, h := range histories(t) {
		text := write(t, h)
		reread, err := history.Read(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, reread, h)
		if second := write(t, reread); second != text {
			t.Errorf("two writes differ:\n%s\n%s", text, second)
		}
	}
}

func TestWrite_OneEventPerLine(t *testing.T) {
	for _, h := range histories(t) {
		text := write(t, h)
		if !json.Valid([]byte(text)) {
			t.Fatalf("no JSON:\n%s", text)
		}
		if lines := strings.Count(text, "\n"); lines != len(h.Events)+2 {
			t.Errorf("%d lines for %d events", lines, len(h.Events))
		}
	}
}

// Except for payloads, protojson reads what is written.
func TestEvent_MarshalJSONIsProtoJSON(t *testing.T) {
	for _, h := range histories(t) {
		for _, event := range h.Events {
			line, err := event.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(line, []byte(`{"json":`)) {
				continue
			}
			reread := new(journalpb.Event)
			if err := protojson.Unmarshal(line, reread); err != nil || !proto.Equal(reread, eventpb.Message(event)) {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
}

func TestRead_IgnoresWhitespace(t *testing.T) {
	for _, h := range histories(t) {
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, []byte(write(t, h)), "", "\t"); err != nil {
			t.Fatal(err)
		}
		reread, err := history.Read(&pretty)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, reread, h)
	}
}

func started(input *journalpb.Payload) *history.History {
	return historyOf("a", 2, &journalpb.Event{
		EventId: 1, Timestamp: 7,
		Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: &journalpb.OrchestrationStarted{
			Name: "n", Input: input,
			Parent: &journalpb.OperationRef{Instance: "p", Execution: 1, EventId: 5},
			Inbox:  []*journalpb.ExternalEvent{{Name: "e", Data: &journalpb.Payload{Data: []byte("1")}}, {Name: "f"}},
			Tags:   map[string]string{"b": "<2>", "a": "1"},
		}},
	})
}

func TestWrite_PreservesPayloadBytes(t *testing.T) {
	for _, c := range []struct{ name, data, contentType, want string }{
		{"an object", `{"b":1,"a":[2,null]}`, "", `{"json":{"b":1,"a":[2,null]}}`},
		{"a number beyond float64", `12345678901234567890123`, "", `{"json":12345678901234567890123}`},
		{"null", `null`, "", `{"json":null}`},
		{"text with HTML in it", `"\u003cb\u003e"`, "", `{"json":"\u003cb\u003e"}`},
		{"spaces", `{"a": 1}`, "", `{"data":"eyJhIjogMX0="}`},
		{"no JSON", `\x00`, "", `{"data":"XHgwMA=="}`},
		{"no UTF-8", "\"\xff\"", "", `{"data":"Iv8i"}`},
		{"two values", `1 2`, "", `{"data":"MSAy"}`},
		{"nothing", ``, "", `{}`},
		{"sealed", `{"a":1}`, "aes", `{"data":"eyJhIjoxfQ==","contentType":"aes"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := started(&journalpb.Payload{Data: []byte(c.data), ContentType: c.contentType})
			text := write(t, h)
			if !strings.Contains(text, `"input":`+c.want+`,`) {
				t.Errorf("wrote %s, want the input %s", text, c.want)
			}
			reread, err := history.Read(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			wantEqual(t, reread, h)
		})
	}
}

func TestWrite_GoldenOutput(t *testing.T) {
	const want = `{"format":"tenuto.history/1","instance":"a","execution":2,"events":[
{"eventId":"1","timestamp":"7","orchestrationStarted":{"name":"n","input":{"json":true},"parent":{"instance":"p","execution":"1","eventId":"5"},"inbox":[{"name":"e","data":{"json":1}},{"name":"f"}],"tags":{"a":"1","b":"\u003c2\u003e"}}}
]}
`
	if got := write(t, started(&journalpb.Payload{Data: []byte("true")})); got != want {
		t.Errorf("wrote\n%s\nwant\n%s", got, want)
	}
}

func TestRead_RejectsInvalidHistory(t *testing.T) {
	for text, want := range map[string]string{
		"":   "EOF",
		"{}": `format ""`,
		`{"format":"tenuto.history/2","instance":"a","execution":1}`:                                                     "tenuto.history/2",
		`{"format":"tenuto.history/1","execution":1}`:                                                                    "missing",
		`{"format":"tenuto.history/1","instance":"a","execution":-1}`:                                                    "uint64",
		`{"format":"tenuto.history/1","instance":"a","execution":1,"other":2}`:                                           "other",
		`{"format":"tenuto.history/1","instance":"a","execution":1} 2`:                                                   "after the end",
		`{"format":"tenuto.history/1","instance":"a","execution":1,"events":[1]}`:                                        "event 1",
		`{"format":"tenuto.history/1","instance":"a","execution":1,"events":[{},{"unknown":1}]}`:                         "event 2",
		`{"format":"tenuto.history/1","instance":"a","execution":1,"events":[{"statusSet":{"value":{"json":1,"x":2}}}]}`: "no other field",
		`{"format":"tenuto.history/1","instance":"a","execution":1,"events":[{"statusSet":{"value":[]}}]}`:               "event 1",
	} {
		if _, err := history.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
	var format *history.FormatError
	if _, err := history.Read(strings.NewReader(`{"format":"x"}`)); !errors.As(err, &format) || format.Format != "x" {
		t.Errorf("%v is not a FormatError", err)
	}
}

func TestWrite_NonFiniteNumbers(t *testing.T) {
	for number, want := range map[float64]string{math.Inf(1): `"Infinity"`, math.Inf(-1): `"-Infinity"`, 1.5: "1.5"} {
		h := historyOf("a", 1, &journalpb.Event{Body: &journalpb.Event_ActivityScheduled{
			ActivityScheduled: &journalpb.ActivityScheduled{Options: &journalpb.ActivityOptions{Retry: &journalpb.RetryPolicy{Backoff: number}}},
		}})
		text := write(t, h)
		if !strings.Contains(text, `"backoff":`+want+`}`) {
			t.Errorf("wrote %s, want %s", text, want)
		}
		reread, err := history.Read(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, reread, h)
	}
}

func TestWrite_RejectsInvalidUTF8(t *testing.T) {
	h := started(nil)
	eventpb.Message(h.Events[0]).GetOrchestrationStarted().Name = "\xff"
	if err := history.Write(new(bytes.Buffer), h); err == nil || !strings.Contains(err.Error(), "event 1") {
		t.Errorf("wrote it: %v", err)
	}
}

// Whatever is read is written as text that reads back equal.
func FuzzRead(f *testing.F) {
	for _, h := range histories(f) {
		f.Add([]byte(write(f, h)))
	}
	f.Add([]byte(write(f, started(&journalpb.Payload{Data: []byte(`{"a":[1e400,"\u2028"]}`)}))))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := history.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		written := write(t, h)
		reread, err := history.Read(strings.NewReader(written))
		if err != nil {
			t.Fatalf("%v:\n%s", err, written)
		}
		wantEqual(t, reread, h)
		if second := write(t, reread); second != written {
			t.Errorf("two writes differ:\n%s\n%s", written, second)
		}
	})
}
