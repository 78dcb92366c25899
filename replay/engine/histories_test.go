package engine_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var record = flag.Bool("record", false, "add the histories that testdata/histories lacks")

const historiesDir = "testdata/histories"

// superseded lists the histories that this build rejects, because the code was told something wrong
// in these cases.
var superseded = map[string]string{
	"composition_settles.1":    "Settle returned results although its scope had ended",
	"suspension_suspendable.1": "a scope ended while the instance was suspended",
	"suspension_waits.1":       "the instance was canceled while it was suspended",
}

// TestRecordedHistories replays every recorded history to its end. This build must continue all
// histories of earlier builds. It must reject the superseded ones.
func TestRecordedHistories(t *testing.T) {
	if *record {
		recordHistories(t)
	}
	files, err := filepath.Glob(historiesDir + "/*.jsonl")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d recorded histories: %v", len(files), err)
	}
	registry := programRegistry(t)
	recorded := make(map[int]bool)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		t.Run(name, func(t *testing.T) {
			history := readHistory(t, file)
			if reason := superseded[name]; reason != "" {
				x := engine.NewExecution("i", executionOf(t, file), registry, nil)
				defer x.Evict()
				var mismatch *replay.Mismatch
				if err := x.Replay(eventSeq(history)); !errors.As(err, &mismatch) {
					t.Errorf("history accepted although superseded (%s): %v", reason, err)
				}
				return
			}
			for _, event := range history {
				recorded[event.TypeNumber()] = true
			}
			checkHistory(t, registry, executionOf(t, file), history)
		})
	}
	for eventType := range 64 {
		if name := journalpb.TypeName(eventType); name != "" && !recorded[eventType] {
			t.Errorf("no recorded history has an event of type %s", name)
		}
	}
}

// executionOf returns the number before the file's extension.
func executionOf(t *testing.T, file string) uint64 {
	t.Helper()
	parts := strings.Split(filepath.Base(file), ".")
	number, err := strconv.ParseUint(parts[len(parts)-2], 10, 64)
	if err != nil || number == 0 {
		t.Fatalf("%s names no execution: %v", file, err)
	}
	return number
}

func readHistory(t *testing.T, file string) []*journalpb.Event {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var history []*journalpb.Event
	for line := range bytes.Lines(content) {
		event := new(journalpb.Event)
		if err := protojson.Unmarshal(line, event); err != nil {
			t.Fatalf("line %d: %v", len(history)+1, err)
		}
		history = append(history, event)
	}
	return history
}

// checkHistory replays a history of instance "i" and checks that the code schedules nothing more.
func checkHistory(t *testing.T, registry *engine.Registry, execution uint64, history []*journalpb.Event) {
	t.Helper()
	x := engine.NewExecution("i", execution, registry, nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(history)); err != nil {
		t.Fatal(err)
	}
	last := history[len(history)-1]
	if x.LastEventID() != last.EventId || x.Ended() != journalpb.IsTerminal(last.TypeNumber()) {
		t.Errorf("cursor at %d of %d, ended %t", x.LastEventID(), last.EventId, x.Ended())
	}
	if continued := last.GetOrchestrationContinuedAsNew() != nil; (x.Successor() != nil) != continued {
		t.Errorf("successor: %v", x.Successor())
	}
	if turn, err := x.Turn(begin, nil); err != nil || len(turn.Events) > 0 {
		t.Errorf("the code schedules more: %v, %v", turn, err)
	}
}

// recordHistories adds, for each transcript, the longest history of each program, and one of code
// before its patches.
func recordHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		recordTranscript(t, strings.TrimSuffix(filepath.Base(file), ".txt"), string(content), programRegistry(t))
	}
	old := "start patched\n----\n\ndone 2 \"A\"\n----\n\ndone 4 \"B\"\n----\n"
	recordTranscript(t, "before-patches", old, registryOf(t, program("patched", unpatched)))
}

func recordTranscript(t *testing.T, name, transcript string, registry *engine.Registry) {
	longest := make(map[string]*instance)
	p := &player{t: t, registry: registry, now: begin, onDone: func(in *instance) {
		file := fmt.Sprintf("%s_%s.%d.jsonl", name, in.history[0].GetOrchestrationStarted().Name, in.execution())
		if best := longest[file]; best == nil || len(best.history) < len(in.history) {
			longest[file] = in
		}
	}}
	p.play(transcript)
	for file, in := range longest {
		addHistory(t, filepath.Join(historiesDir, file), in.history)
	}
}

// addHistory writes a file that does not exist yet. Existing files stand for data on users' disks.
func addHistory(t *testing.T, file string, history []*journalpb.Event) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var content bytes.Buffer
	for _, event := range history {
		line, err := protojson.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Compact(&content, line); err != nil { // protojson varies its spacing
			t.Fatal(err)
		}
		content.WriteByte('\n')
	}
	if _, err := f.Write(content.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("added %s", file)
}

// unpatched is the body of patched before its patches.
func unpatched(ctx *replay.Context, _ string) (string, error) {
	a, err := act.Call(ctx, "a")
	if err != nil {
		return "", err
	}
	_, err = act.Call(ctx, "b")
	return a, err
}

// A change anywhere in a recorded history is detected.
func TestReplay_DetectsMissingEvent(t *testing.T) {
	history := readHistory(t, historiesDir+"/saga_journey.1.jsonl")
	registry := programRegistry(t)
	for i := range history {
		changed := slices.Delete(slices.Clone(history), i, i+1)
		x := engine.NewExecution("i", 1, registry, nil)
		err := x.Replay(eventSeq(changed))
		if last := i == len(history)-1; (err == nil) != last {
			t.Errorf("without event %d: %v", i+1, err)
		}
		x.Evict()
	}
}
