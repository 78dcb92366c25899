package replaytest

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// Replay replays every history whose file matches a pattern of filepath.Glob, to its end. The
// test fails for each history that the code does not fit, that is, if a change of the code
// would affect running instances. The files are in the format of package history, as written
// by `tenuto history export` and by the client of a cluster.
//
// Only orchestrations run; activities need no bodies. A pattern without a match fails the
// test.
//
// The comparison is that of a cluster with Config.Strict: a test should see every change. Use
// [ReplayCompatible] to accept the changes that a cluster accepts by default.
func Replay(t testing.TB, pattern string, definitions ...replay.Definition) {
	t.Helper()
	replayDefinitions(t, pattern, true, definitions)
}

// ReplayCompatible is [Replay] with the comparison of a cluster without Config.Strict. It accepts
// inputs and outputs that mean the same to today's code, such as those without a field that was
// added since, and other options and statuses; see docs/versioning.md.
func ReplayCompatible(t testing.TB, pattern string, definitions ...replay.Definition) {
	t.Helper()
	replayDefinitions(t, pattern, false, definitions)
}

func replayDefinitions(t testing.TB, pattern string, strict bool, definitions []replay.Definition) {
	t.Helper()
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		t.Fatalf("replaytest: %v", err)
	}
	ReplayWith(t, pattern, registry.WithStrict(strict))
}

// ReplayWith is [Replay] for histories whose payloads were encoded by a codec, or of code within
// interceptors. The registry has the codec, set by WithPayloadConverter, the interceptors, set by
// WithInterceptors, and the comparison, set by WithStrict.
func ReplayWith(t testing.TB, pattern string, registry *engine.Registry) {
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
			t.Errorf("replaytest: %s: the history of %s does not fit the code.\n%s\nhistory:\n%s", file, h.Instance, explainMismatch(err), h)
		}
	}
}

// Check replays a history to its end. The error is a [*replay.Mismatch] or an
// [*ExtraOperationError] if code and history disagree, and a [*replay.NotRegisteredError] if the
// orchestration has no code.
func Check(h *history.History, registry *engine.Registry) error {
	if len(h.Events) == 0 {
		return fmt.Errorf("the history of %s/%d is empty", h.Instance, h.Execution)
	}
	return replayAll(h.Instance, h.Execution, registry, eventpb.Messages(h.Events))
}
