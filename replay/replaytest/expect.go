package replaytest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// updateFlag is not named -update, because the test's package may have that flag.
var updateFlag = flag.Bool("replaytest.update", false, "rewrite golden histories")

// shouldUpdate reports whether to write golden files: by -replaytest.update, or by a flag
// -update of the test's package.
func shouldUpdate() bool {
	if *updateFlag {
		return true
	}
	packageFlag := flag.Lookup("update")
	return packageFlag != nil && packageFlag.Value.String() == "true"
}

// ExpectCalls fails the test if the number of calls of an activity differs, and lists the
// calls. [Calls] says what a call is.
func (e *Env) ExpectCalls(activity interface{ Name() string }, calls int) {
	e.t.Helper()
	recorded := e.calls[activity.Name()]
	if len(recorded) == calls {
		return
	}
	text := ""
	for i, payload := range recorded {
		text += fmt.Sprintf("\n%5d. %s", i+1, payload.GetData())
	}
	e.t.Errorf("replaytest: %d calls of %s, want %d:%s", len(recorded), activity.Name(), calls, text)
}

// ExpectHistory compares the history of an instance's latest execution with a golden file in
// the format of package history, and fails the test with the difference. Run the test with
// -replaytest.update (or the -update of its own package) to rewrite the file, and review the
// change.
//
// Timestamps are not compared, because backoffs are random. Durations of timers are compared.
// Stacks and causes of errors are not compared.
//
// Use [Replay] for histories of real instances; it accepts golden files too.
func (e *Env) ExpectHistory(id, file string) {
	e.t.Helper()
	got := e.History(id)
	if shouldUpdate() {
		if err := writeFile(file, got); err != nil {
			e.t.Fatalf("replaytest: %v", err)
		}
		return
	}
	want, err := readFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		e.t.Fatalf("replaytest: golden file %s does not exist: write it with -replaytest.update", file)
	}
	if err != nil {
		e.t.Fatalf("replaytest: %v", err)
	}
	if sameHistory(want, got) {
		return
	}
	e.t.Errorf("replaytest: the history of %s (+) differs from %s (-):\n%s", id, file, diff(eventLines(want), eventLines(got)))
}

func readFile(name string) (*history.History, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, err := history.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, nil
}

func writeFile(name string, h *history.History) error {
	var text bytes.Buffer
	if err := history.Write(&text, h); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text.Bytes(), 0o644)
}

// sameHistory compares histories without their random parts.
func sameHistory(a, b *history.History) bool {
	if a.Instance != b.Instance || a.Execution != b.Execution || len(a.Events) != len(b.Events) {
		return false
	}
	for i := range a.Events {
		if !withoutTimes(a.Events[i]).Equal(withoutTimes(b.Events[i])) {
			return false
		}
	}
	return true
}

// withoutTimes returns the event without times, except the duration of a timer.
func withoutTimes(event history.Event) history.Event {
	e := proto.CloneOf(eventpb.Message(event))
	began := e.Timestamp
	e.Timestamp = 0
	switch body := e.Body.(type) {
	case *journalpb.Event_TimerCreated:
		body.TimerCreated.FireAt -= began
	case *journalpb.Event_TimerFired:
		body.TimerFired.FireAt = 0
	case *journalpb.Event_OrchestrationStarted:
		body.OrchestrationStarted.StartAt, body.OrchestrationStarted.Deadline = 0, 0
		stripError(body.OrchestrationStarted.LastFailure)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		stripError(body.OrchestrationContinuedAsNew.Retried)
	case *journalpb.Event_OrchestrationFailed:
		stripError(body.OrchestrationFailed.Error)
	case *journalpb.Event_ActivityCompleted:
		body.ActivityCompleted.FailedAttempts = nil // their number counts, which is another field
	case *journalpb.Event_ActivityFailed:
		body.ActivityFailed.FailedAttempts = nil
		stripError(body.ActivityFailed.Error)
	case *journalpb.Event_SubOrchestrationFailed:
		stripError(body.SubOrchestrationFailed.Error)
	case *journalpb.Event_SideEffectRecorded:
		stripError(body.SideEffectRecorded.Error)
	}
	return eventpb.New(event.Execution, e)
}

// stripError removes the parts of an error that change with the build.
func stripError(e *journalpb.Error) {
	if e != nil {
		e.Stack, e.Cause, e.OtherCauses = "", nil, nil
	}
}

// eventLines returns the compared form of a history, one event a line.
func eventLines(h *history.History) []string {
	all := []string{fmt.Sprintf("%s, execution %d", h.Instance, h.Execution)}
	for _, event := range h.Events {
		line, err := withoutTimes(event).MarshalJSON()
		if err != nil {
			line = []byte(err.Error())
		}
		all = append(all, string(line))
	}
	return all
}

// diff shows the lines to remove from a (-) and to add from b (+), with context.
func diff(a, b []string) string {
	common := longestCommonLengths(a, b)
	var all []string
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			all = append(all, "- "+a[i])
			i++
		default:
			all = append(all, "+ "+b[j])
			j++
		}
	}
	return strings.Join(trimContext(all), "\n")
}

// longestCommonLengths returns the length of the longest common subsequence for each pair of
// suffixes.
func longestCommonLengths(a, b []string) [][]int {
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	return common
}

// contextLines is the number of lines shown around a difference.
const contextLines = 3

// trimContext omits lines that are far from every difference.
func trimContext(all []string) []string {
	near := make([]bool, len(all))
	for i, line := range all {
		if line[0] == ' ' {
			continue
		}
		for j := max(0, i-contextLines); j <= min(len(all)-1, i+contextLines); j++ {
			near[j] = true
		}
	}
	var shown []string
	for i, line := range all {
		switch {
		case near[i]:
			shown = append(shown, line)
		case i == 0 || near[i-1]:
			shown = append(shown, "  ...")
		}
	}
	return shown
}
