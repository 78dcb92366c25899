package replaytest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/broken"
)

// failureParts lists parts of the failure in the default mode for each broken orchestration;
// nil if only the analyzer finds the mistake. ../docs/determinism.md says the same.
var failureParts = map[string][]string{
	"clock":            {"scheduled differently, at event 2", " at 20", "broken/broken.go:", "ctx.Now"},
	"random":           {"scheduled differently, at event 2", "broken/broken.go:", "ctx.Random"},
	"map order":        {"scheduled differently", "broken/broken.go:", "sorted keys"},
	"goroutine":        {"goroutines leaked", "broken.goroutine.func1", "replay.Go"},
	"channel":          {"blocked outside durable calls", "broken/broken.go:", "chan receive", "instead of goroutines and channels"},
	"global counter":   {"scheduled differently, at event 2", "broken/broken.go:", "variables"},
	"unawaited future": nil,
	"durable defer":    nil,
	"closure":          {"scheduled differently, at event 2", `"in,in"`, "variables"},
	"file":             {"scheduled differently, at event 2", "read and changed", "files"},
	"changed order":    {"scheduled differently, at event 2", `input="in first"`, `input="in second"`, "broken/broken.go:", "replay.Patched"},
	"changed input":    {"scheduled differently, at event 4", `input="in second"`, "broken/broken.go:", "replay.Patched"},
}

func TestBrokenOrchestrations_AreCaught(t *testing.T) {
	for _, c := range broken.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			input := "in"
			if c.Name == "file" {
				input = filepath.Join(t.TempDir(), "file")
				if err := os.WriteFile(input, []byte("read"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			text := tryBroken(t, c, input)
			parts, known := failureParts[c.Name]
			switch {
			case !known:
				t.Errorf("failureParts has no entry")
			case parts == nil && text != "":
				t.Errorf("unexpectedly caught: %s", text)
			case parts != nil:
				wantFailure(t, text, parts...)
			}
		})
	}
}

// tryBroken tests an orchestration as its author would: with an activity that takes no time,
// and one that changes a file. Changed code is replayed over a history of the old code.
func tryBroken(t *testing.T, c broken.Case, input string) string {
	t.Helper()
	work := func(_ context.Context, in string) (string, error) {
		if in == "read" {
			return in, os.WriteFile(input, []byte("read and changed"), 0o600)
		}
		return in, nil
	}
	body := c.Body
	if c.OldBody != nil {
		body = c.OldBody
	}
	recorded := filepath.Join(t.TempDir(), "before.json")
	text := failures(t, func(tb testing.TB, env *Env) {
		Stub(env, broken.Work, work)
		if _, err := Call(env, c.Handle(), "instance", input); err != nil {
			tb.Errorf("call: %v", err)
		}
		if err := writeFile(recorded, env.History("instance")); err != nil {
			tb.Error(err)
		}
	}, c.Handle().Bind(body))
	if c.OldBody == nil {
		return text
	}
	if text != "" {
		t.Errorf("the old code fails: %s", text)
	}
	return failuresOf(t, func(tb testing.TB) { Replay(tb, recorded, c.Handle().Bind(c.Body)) })
}

// Without replays the same orchestrations pass.
func TestReplayEvery_ZeroMissesBrokenCode(t *testing.T) {
	for _, c := range broken.Cases() {
		switch c.Name {
		case "clock", "random", "map order", "global counter", "closure":
			text := failures(t, func(tb testing.TB, env *Env) {
				env.ReplayEvery(0)
				Stub(env, broken.Work, func(_ context.Context, in string) (string, error) { return in, nil })
				if _, err := Call(env, c.Handle(), "instance", "in"); err != nil {
					tb.Errorf("call: %v", err)
				}
			}, []replay.Definition{c.Handle().Bind(c.Body)}...)
			if text != "" {
				t.Errorf("%s: %s", c.Name, text)
			}
		}
	}
}
