package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Format names the text format and its version.
const Format = "tenuto.history/1"

// A History is the history of one execution of an instance.
type History struct {
	Instance  string
	Execution uint64
	// Events are in order, starting with the first.
	Events []Event
}

// String returns the history as a table, one event per line: event_id, time since the first event,
// type and fields.
func (h *History) String() string {
	var b strings.Builder
	for _, event := range h.Events {
		since := event.Time.Sub(h.Events[0].Time).Round(10 * time.Microsecond)
		fmt.Fprintf(&b, "%5d  %10s  %s\n", event.EventID, "+"+since.String(), event)
	}
	return b.String()
}

// header is the part of the document before the events.
type header struct {
	Format    string `json:"format"`
	Instance  string `json:"instance"`
	Execution uint64 `json:"execution"`
}

// document is the whole text.
type document struct {
	header
	Events []json.RawMessage `json:"events"`
}

// Write writes a history. The error is w's, or names the event that contains text that is not
// UTF-8.
func Write(w io.Writer, h *History) error {
	var text bytes.Buffer
	first, err := json.Marshal(header{Format, h.Instance, h.Execution})
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	text.Write(bytes.TrimSuffix(first, []byte("}")))
	text.WriteString(`,"events":[`)
	for i, event := range h.Events {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteByte('\n')
		if err := event.write(&text); err != nil {
			return err
		}
	}
	text.WriteString("\n]}\n")
	_, err = w.Write(text.Bytes())
	return err
}

// Read reads a history to the end of r. The error is r's, a [*FormatError] for another format, or
// names the event that is invalid.
func Read(r io.Reader) (*History, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var doc document
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&doc); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("read history: unexpected text after the end")
	}
	switch {
	case doc.Format != Format:
		return nil, &FormatError{Format: doc.Format}
	case doc.Instance == "" || doc.Execution == 0:
		return nil, fmt.Errorf("read history: instance or execution is missing")
	}
	h := &History{Instance: doc.Instance, Execution: doc.Execution}
	for i, encoded := range doc.Events {
		message, err := readEvent(encoded)
		if err != nil {
			return nil, fmt.Errorf("read event %d: %w", i+1, err)
		}
		h.Events = append(h.Events, newEvent(h.Execution, message))
	}
	return h, nil
}

// readEvent converts payloads to their protobuf form and then uses protojson.
func readEvent(encoded json.RawMessage) (*journalpb.Event, error) {
	event := new(journalpb.Event)
	plain, err := protoJSONMessage(encoded, event.ProtoReflect().Descriptor())
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(plain, event); err != nil {
		return nil, err
	}
	return event, nil
}

// A FormatError reports a text in an unknown format or version.
type FormatError struct{ Format string }

func (e *FormatError) Error() string {
	return fmt.Sprintf("unsupported history format %q: this build reads %q", e.Format, Format)
}
