package replaytest

import (
	"bytes"
	"regexp"
	"runtime"
	"strings"
)

// A stack is the call stack of a goroutine, as the runtime prints it.
type stack struct {
	id    string // of the goroutine
	state string // what it is doing or waiting for
	text  string // without the header
}

// header is "goroutine 7 [chan receive (durable), synctest bubble 3]:".
var header = regexp.MustCompile(`^goroutine (\d+) [^\[]*\[([^\]]*)\]:$`)

// bubbleMark is what the header of a goroutine in a synctest bubble has.
const bubbleMark = "synctest bubble "

// ownBubble returns how headers name the bubble of the calling goroutine, "" if
// it is in none.
func ownBubble() string { return bubbleOf(ownHeader()) }

// ownID returns the number of the calling goroutine.
func ownID() string {
	if match := header.FindStringSubmatch(ownHeader()); match != nil {
		return match[1]
	}
	return ""
}

func ownHeader() string {
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

// stacksOf returns the stacks of all goroutines of a bubble; of all that are in
// none if it is "".
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
	coroutineMain = enginePath + "replay.(*coroutine).main("
	coroutinePark = enginePath + "replay.(*coroutine).park("
	queryCall     = enginePath + "replay.(*Execution).Query.func"
)

// in tells whether the goroutine is in that function, or was called by it.
func (s stack) in(function string) bool { return strings.Contains(s.text, function) }

// startedBy tells whether the go statement that began the goroutine was made by
// that one.
func (s stack) startedBy(id string) bool {
	_, by, _ := strings.Cut(s.text, "\ncreated by ")
	by, _, _ = strings.Cut(by, "\n")
	return strings.HasSuffix(by, " in goroutine "+id)
}

// durable tells whether only other goroutines of the bubble, or time, can wake
// the goroutine.
func (s stack) durable() bool { return strings.Contains(s.state, "(durable)") }

// working tells whether it is not blocked at all.
func (s stack) working() bool {
	return strings.HasPrefix(s.state, "running") || strings.HasPrefix(s.state, "runnable") || strings.HasPrefix(s.state, "copystack")
}

// blockedCode returns the goroutines in which orchestration code is blocked
// elsewhere than in a durable call.
func blockedCode(stacks []stack) []stack {
	var blocked []stack
	for _, s := range stacks {
		if s.inCode() && !s.working() {
			blocked = append(blocked, s)
		}
	}
	return blocked
}

// inCode tells whether the goroutine runs orchestration code. A coroutine that is ended
// runs its deferred functions from where it was parked.
func (s stack) inCode() bool {
	parked := s.in(coroutinePark) && !s.in("runtime.Goexit(")
	return (s.in(coroutineMain) || s.in(queryCall)) && !parked
}

// ours tells whether the goroutine belongs to the bubble itself: it runs the
// calls, waits for the end, or waits for an activity that is blocked for ever.
func (s stack) ours() bool {
	for _, function := range []string{
		"internal/synctest.Run(", "testing/synctest.testingSynctestTest(", enginePath + "replay/replaytest.(*bubble).",
		enginePath + "replay/replaytest.newBubble.", enginePath + "actors.(*pool).close.",
	} {
		if s.in(function) {
			return true
		}
	}
	return false
}

// source returns the file and line of the author's call: the first that is not
// the standard library's.
func (s stack) source() string {
	lines := strings.Split(s.text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		if !isStandard(lines[i]) && !strings.HasPrefix(lines[i], enginePath+"replay.") {
			place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
			return place
		}
	}
	return ""
}

// isStandard tells whether a function is one of the standard library in which
// code can be blocked.
func isStandard(function string) bool {
	first, _, _ := strings.Cut(function, "/")
	first, _, _ = strings.Cut(first, ".")
	return standard[first]
}

// standard are the top-level names of those packages.
var standard = map[string]bool{
	"bufio": true, "context": true, "crypto": true, "database": true, "internal": true, "io": true, "iter": true,
	"net": true, "os": true, "reflect": true, "runtime": true, "slices": true, "sync": true, "syscall": true, "time": true,
}

// trimmed leaves out of a stack what is below the author's code.
func (s stack) trimmed() string {
	text := s.text
	for _, below := range []string{enginePath + "replay.OrchestrationHandle[", enginePath + "replay.ActivityHandle[", coroutineMain, queryCall} {
		if at := strings.Index(text, below); at > 0 {
			text = text[:at]
		}
	}
	return strings.TrimRight(text, "\n")
}
