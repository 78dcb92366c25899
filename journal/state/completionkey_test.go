package state

import (
	"bytes"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The first key that is recorded stays: tokens that were signed with it must not become invalid.
func TestCompletionKey_FirstOneStays(t *testing.T) {
	m := New()
	for i, step := range []struct {
		change *journalpb.MetadataChange
		want   string
	}{
		{new(journalpb.MetadataChange), ""},
		{&journalpb.MetadataChange{CompletionKey: []byte("one")}, "one"},
		{&journalpb.MetadataChange{CompletionKey: []byte("two")}, "one"},
		{new(journalpb.MetadataChange), "one"},
	} {
		if err := applyMetadataChange(t, m, 1, step.change); err != nil {
			t.Errorf("step %d: %v", i, err)
		}
		if got := string(m.CompletionKey()); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

func TestCompletionKey_SurvivesSnapshot(t *testing.T) {
	m := New()
	if err := applyMetadataChange(t, m, 1, &journalpb.MetadataChange{CompletionKey: []byte("\x00\xff")}); err != nil {
		t.Fatal(err)
	}
	var snapshot bytes.Buffer
	if _, err := m.Snapshot().WriteTo(&snapshot); err != nil {
		t.Fatal(err)
	}
	restored := New()
	if err := applyMetadataChange(t, restored, 1, &journalpb.MetadataChange{CompletionKey: []byte("other")}); err != nil {
		t.Fatal(err)
	}
	if err := restored.Restore(&snapshot); err != nil {
		t.Fatal(err)
	}
	if got := string(restored.CompletionKey()); got != "\x00\xff" {
		t.Errorf("%q", got)
	}
}
