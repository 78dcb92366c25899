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

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// updateFlag is not named -update, because the test's package may have one.
var updateFlag = flag.Bool("replaytest.update", false, "write golden histories anew")

// updating tells whether golden files are to be written: by our flag, or by one
// of the test's package that is named -update.
func updating() bool {
	if *updateFlag {
		return true
	}
	theirs := flag.Lookup("update")
	return theirs != nil && theirs.Value.String() == "true"
}

// ExpectCalls fails the test if an activity was not called as often as that, and
// shows the calls that there were. What a call is, see [Calls].
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

// ExpectHistory compares the history of an instance's latest execution with a
// golden file, in the format of package history, and fails the test with the
// difference. Run the test with -replaytest.update (or with the -update of its own
// package) to write the file anew, and read what has changed.
//
// Compared is everything but times, which depend on the pauses between attempts
// and hence on chance: of timestamps nothing, of a timer for how long it is set.
// Of errors the stacks are left out, and causes too.
//
// Files of histories that real instances have left are for [Replay]; a golden
// file serves there too.
func (e *Env) ExpectHistory(id, file string) {
	e.t.Helper()
	got := e.History(id)
	if updating() {
		if err := writeFile(file, got); err != nil {
			e.t.Fatalf("replaytest: %v", err)
		}
		return
	}
	want, err := readFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		e.t.Fatalf("replaytest: %s is not there: write it with -replaytest.update", file)
	}
	if err != nil {
		e.t.Fatalf("replaytest: %v", err)
	}
	if sameHistory(want, got) {
		return
	}
	e.t.Errorf("replaytest: the history of %s is not that of %s (-), but (+):\n%s", id, file, diff(lines(want), lines(got)))
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

// sameHistory compares all but what chance has a part in.
func sameHistory(a, b *history.History) bool {
	if a.Instance != b.Instance || a.Execution != b.Execution || len(a.Events) != len(b.Events) {
		return false
	}
	for i := range a.Events {
		if !proto.Equal(timeless(a.Events[i]), timeless(b.Events[i])) {
			return false
		}
	}
	return true
}

// timeless returns the event without times, but for how long a timer is set.
func timeless(event *journalpb.Event) *journalpb.Event {
	e := proto.CloneOf(event)
	e.Timestamp = 0
	switch body := e.Body.(type) {
	case *journalpb.Event_TimerCreated:
		body.TimerCreated.FireAt -= event.Timestamp
	case *journalpb.Event_TimerFired:
		body.TimerFired.FireAt = 0
	case *journalpb.Event_OrchestrationStarted:
		body.OrchestrationStarted.StartAt = 0
	case *journalpb.Event_OrchestrationFailed:
		plainError(body.OrchestrationFailed.Error)
	case *journalpb.Event_ActivityFailed:
		plainError(body.ActivityFailed.Error)
	case *journalpb.Event_SubOrchestrationFailed:
		plainError(body.SubOrchestrationFailed.Error)
	case *journalpb.Event_SideEffectRecorded:
		plainError(body.SideEffectRecorded.Error)
	}
	return e
}

// plainError leaves out of an error what changes with the build.
func plainError(e *journalpb.Error) {
	if e != nil {
		e.Stack, e.Cause, e.OtherCauses = "", nil, nil
	}
}

// lines are the events of a history as they are compared, one a line.
func lines(h *history.History) []string {
	all := []string{fmt.Sprintf("%s, execution %d", h.Instance, h.Execution)}
	for _, event := range h.Events {
		var line strings.Builder
		if err := history.WriteEvent(&line, timeless(event)); err != nil {
			line.WriteString(err.Error())
		}
		all = append(all, line.String())
	}
	return all
}

// diff shows what has to be taken from a (-) and added from b (+), with what
// they have in common around it.
func diff(a, b []string) string {
	common := longestCommon(a, b)
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
	return strings.Join(around(all), "\n")
}

// longestCommon returns for each pair of rests how many lines they have in
// common, in order.
func longestCommon(a, b []string) [][]int {
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

// contextLines is how many lines are shown around a difference.
const contextLines = 3

// around leaves out what is far from every difference.
func around(all []string) []string {
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
