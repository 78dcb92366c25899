package replaytest

import (
	"bytes"
	"regexp"
	"runtime"
	"strings"
)

// A stack is the call stack of a goroutine as the runtime prints it.
type stack struct {
	id    string // of the goroutine
	state string // what the goroutine does or waits for
	text  string // without the header
}

// header matches "goroutine 7 [chan receive (durable), synctest bubble 3]:".
var header = regexp.MustCompile(`^goroutine (\d+) [^\[]*\[([^\]]*)\]:$`)

// bubbleMark is part of the header of a goroutine in a synctest bubble.
const bubbleMark = "synctest bubble "

// currentBubble returns the bubble of the calling goroutine as named in headers, or "".
func currentBubble() string { return bubbleOf(currentHeader()) }

// currentGoroutineID returns the number of the calling goroutine.
func currentGoroutineID() string {
	if match := header.FindStringSubmatch(currentHeader()); match != nil {
		return match[1]
	}
	return ""
}

func currentHeader() string {
	text := make([]byte, 256)
	line, _, _ := strings.Cut(string(text[:runtime.Stack(text, false)]), "\n")
	return line
}

func bubbleOf(line string) string {
	at := strings.Index(line, bubbleMark)
	if at < 0 {
		return ""
	}
	id, _, _ := strings.Cut(line[at:], "]")
	id, _, _ = strings.Cut(id, ",")
	return id
}

// stacksOf returns the stacks of all goroutines in a bubble, or outside all bubbles if it is
// "".
func stacksOf(bubble string) []stack {
	text := make([]byte, 32<<10)
	n := runtime.Stack(text, true)
	for n == len(text) {
		text = make([]byte, 2*len(text))
		n = runtime.Stack(text, true)
	}
	var stacks []stack
	for _, one := range bytes.Split(text[:n], []byte("\n\n")) {
		line, rest, _ := strings.Cut(string(one), "\n")
		if match := header.FindStringSubmatch(line); match != nil && bubbleOf(line) == bubble {
			stacks = append(stacks, stack{id: match[1], state: match[2], text: strings.TrimRight(rest, "\n")})
		}
	}
	return stacks
}

const (
	enginePath    = "github.com/tenuto-dev/tenuto/"
	coroutineMain = enginePath + "replay/engine.(*coroutine).main("
	coroutinePark = enginePath + "replay/engine.(*coroutine).park("
	queryCall     = enginePath + "replay/engine.(*Execution).Query.func"
)

// contains reports whether a function is on the stack.
func (s stack) contains(function string) bool { return strings.Contains(s.text, function) }

// isStartedBy reports whether the goroutine with this number started the goroutine.
func (s stack) isStartedBy(id string) bool {
	_, by, _ := strings.Cut(s.text, "\ncreated by ")
	by, _, _ = strings.Cut(by, "\n")
	return strings.HasSuffix(by, " in goroutine "+id)
}

// isDurablyBlocked reports whether only virtual time or other goroutines of the bubble can wake the
// goroutine.
func (s stack) isDurablyBlocked() bool { return strings.Contains(s.state, "(durable)") }

// isRunning reports whether the goroutine is not blocked.
func (s stack) isRunning() bool {
	return strings.HasPrefix(s.state, "running") || strings.HasPrefix(s.state, "runnable") || strings.HasPrefix(s.state, "copystack")
}

// blockedCode returns the goroutines in which orchestration code is blocked outside durable
// calls.
func blockedCode(stacks []stack) []stack {
	var blocked []stack
	for _, s := range stacks {
		if s.runsOrchestrationCode() && !s.isRunning() {
			blocked = append(blocked, s)
		}
	}
	return blocked
}

// runsOrchestrationCode reports whether the goroutine runs orchestration code. A coroutine
// that is ended runs its deferred functions from where it was parked.
func (s stack) runsOrchestrationCode() bool {
	parked := s.contains(coroutinePark) && !s.contains("runtime.Goexit(")
	return (s.contains(coroutineMain) || s.contains(queryCall)) && !parked
}

// belongsToBubble reports whether the goroutine is part of the bubble itself: it runs the
// calls, waits for the end, or waits for an activity that is blocked forever.
func (s stack) belongsToBubble() bool {
	for _, function := range []string{
		"internal/synctest.Run(", "testing/synctest.testingSynctestTest(", enginePath + "replay/replaytest.(*bubble).",
		enginePath + "replay/replaytest.newBubble.", enginePath + "actors/worker.(*Worker).Wait.",
	} {
		if s.contains(function) {
			return true
		}
	}
	return false
}

// source returns the file and line of the author's code: the first frame outside the standard
// library and replay.
func (s stack) source() string {
	lines := strings.Split(s.text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		if !isStandard(lines[i]) && !strings.HasPrefix(lines[i], enginePath+"replay.") && !strings.HasPrefix(lines[i], enginePath+"replay/engine.") {
			position, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
			return position
		}
	}
	return ""
}

// isStandard reports whether a function is in a standard package in which code can block.
func isStandard(function string) bool {
	first, _, _ := strings.Cut(function, "/")
	first, _, _ = strings.Cut(first, ".")
	return standardPackages[first]
}

// standardPackages are the top-level names of these packages.
var standardPackages = map[string]bool{
	"bufio": true, "context": true, "crypto": true, "database": true, "internal": true, "io": true, "iter": true,
	"net": true, "os": true, "reflect": true, "runtime": true, "slices": true, "sync": true, "syscall": true, "time": true,
}

// trimmed returns the stack without the frames below the author's code.
func (s stack) trimmed() string {
	text := s.text
	for _, below := range []string{enginePath + "replay.OrchestrationHandle[", enginePath + "replay.ActivityHandle[", coroutineMain, queryCall} {
		if at := strings.Index(text, below); at > 0 {
			text = text[:at]
		}
	}
	return strings.TrimRight(text, "\n")
}
