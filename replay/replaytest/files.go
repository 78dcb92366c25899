package replaytest

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// Replay replays every history whose file matches a pattern, as filepath.Glob
// has it, to its very end, and fails the test for each that the code does not
// fit: code that was changed in a way that running instances would notice. The
// files are in the format of package history: `tenuto history export` and the
// client of a cluster write them.
//
// Only orchestrations run; activities need no bodies. A pattern that matches
// nothing fails the test.
func Replay(t testing.TB, pattern string, definitions ...replay.Definition) {
	t.Helper()
	registry, err := replay.NewRegistry(definitions...)
	if err != nil {
		t.Fatalf("replaytest: %v", err)
	}
	ReplayWith(t, pattern, registry)
}

// ReplayWith is [Replay] for histories whose payloads a codec has encoded: the
// registry has it, by WithPayloads.
func ReplayWith(t testing.TB, pattern string, registry *replay.Registry) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatalf("replaytest: pattern %q: %v", pattern, err)
	}
	if len(files) == 0 {
		t.Fatalf("replaytest: no file matches %q", pattern)
	}
	for _, file := range files {
		h, err := readFile(file)
		if err != nil {
			t.Errorf("replaytest: %v", err)
			continue
		}
		if err := Check(h, registry); err != nil {
			t.Errorf("replaytest: %s: %s does not fit the code.\n%s\nthe history:\n%s", file, h.Instance, explain(err), table(h.Events))
		}
	}
}

// Check replays a history to its very end. The error is a [*replay.Mismatch] or
// a [*MoreError] if code and history disagree, and a [*replay.NoCodeError] if
// there is no code for the orchestration.
func Check(h *history.History, registry *replay.Registry) error {
	if len(h.Events) == 0 {
		return fmt.Errorf("the history of %s/%d is empty", h.Instance, h.Execution)
	}
	return replayAll(h.Instance, h.Execution, registry, h.Events)
}
