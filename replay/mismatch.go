package replay

import (
	"fmt"
	"path"
	"runtime"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// MismatchKind says in which way code and history disagree.
type MismatchKind string

const (
	// ScheduledDifferently: the code asked for something else than the history has.
	ScheduledDifferently MismatchKind = "scheduled differently"
	// ScheduledNothing: the history has a scheduling event, the code is blocked.
	ScheduledNothing MismatchKind = "scheduled nothing"
	// EndedEarly: the code returned while scheduling events remain in the history.
	EndedEarly MismatchKind = "ended early"
	// UnknownSource: a completion names an event that schedules nothing.
	UnknownSource MismatchKind = "unknown source"
	// AlreadyClosed: a completion names an operation that has one, or was given up.
	AlreadyClosed MismatchKind = "already closed"
	// WrongKind: an activity's completion for a timer, and so on.
	WrongKind MismatchKind = "wrong kind"
	// CalledOutside: a durable call came from a goroutine that the code started itself.
	CalledOutside MismatchKind = "called outside"
	// ForeignFuture: the code uses a future or a [Semaphore] of another instance or execution.
	ForeignFuture MismatchKind = "foreign future"
	// Corrupt: the history is none, whatever the code does.
	Corrupt MismatchKind = "corrupt"
)

// A Mismatch is a disagreement of code and history. The instance is stalled:
// its history stays as it is, and it goes on with code that fits.
type Mismatch struct {
	Kind      MismatchKind
	Instance  string
	Execution uint64
	EventID   uint64 // the first event that differs
	Expected  string // what the history has there
	Found     string // what the code did instead
	Source    string // file:line of the call that differs, "" if there is none

	about []*journalpb.Event // that Expected and Found describe, if they describe any
}

// WithoutPayloads returns the mismatch as it may be shown to those who must not see what
// the instance holds: inputs, results and messages of errors are given by their size.
func (m *Mismatch) WithoutPayloads() *Mismatch {
	shown := *m
	shown.Expected, shown.Found, shown.about = m.hidden(m.Expected), m.hidden(m.Found), nil
	if shown.Expected == shown.Found && shown.Found != "" {
		shown.Found += ", which is not the same"
	}
	return &shown
}

// hidden returns a description of an event again, without payloads. Words that describe
// no event have none.
func (m *Mismatch) hidden(description string) string {
	for _, event := range m.about {
		if description == describe(event, false) || description == describe(event, true) {
			return describe(event, true)
		}
	}
	return description
}

func (m *Mismatch) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at event %d of %s/%d", m.Kind, m.EventID, m.Instance, m.Execution)
	if m.Expected != "" {
		fmt.Fprintf(&b, ": expected %s", m.Expected)
	}
	if m.Found != "" {
		fmt.Fprintf(&b, ", found %s", m.Found)
		if m.Found == m.Expected { // they differ in what is cut, or not shown
			b.WriteString(", which is not the same")
		}
	}
	if m.Source != "" {
		fmt.Fprintf(&b, " (%s)", m.Source)
	}
	return b.String()
}

func (x *Execution) mismatch(kind MismatchKind, event *journalpb.Event, expected, found string, callers []uintptr) *Mismatch {
	return &Mismatch{
		Kind:      kind,
		Instance:  x.instance,
		Execution: x.number,
		EventID:   event.EventId,
		Expected:  expected,
		Found:     found,
		Source:    sourceLine(callers),
		about:     []*journalpb.Event{event},
	}
}

// and names another event that is described.
func (m *Mismatch) and(event *journalpb.Event) *Mismatch {
	m.about = append(m.about, event)
	return m
}

// describe shows no payload if there is a codec to hide it.
func (x *Execution) describe(event *journalpb.Event) string {
	return describe(event, x.registry.payloads.Codec != nil)
}

// ours is how the names of this package's functions begin.
const ours = "github.com/tenuto-dev/tenuto/replay."

// sourceLine returns directory/file:line of the first call that is not this
// package's own.
func sourceLine(callers []uintptr) string {
	for len(callers) > 0 && callers[len(callers)-1] == 0 {
		callers = callers[:len(callers)-1]
	}
	if len(callers) == 0 {
		return ""
	}
	frames := runtime.CallersFrames(callers)
	for {
		frame, more := frames.Next()
		switch {
		case !more && frame.Function == "", strings.HasPrefix(frame.Function, "runtime."):
			return "" // the bottom of the coroutine: no author's call
		case !strings.HasPrefix(frame.Function, ours) && !isOwnFile(frame.File):
			return shortPath(frame.File, frame.Line)
		case !more:
			return ""
		}
	}
}

// isOwnFile reports whether a file is this package's own. A closure of it that was inlined
// has the name of the author's function.
func isOwnFile(file string) bool {
	_, own, _, _ := runtime.Caller(0)
	return path.Dir(file) == path.Dir(own) && !strings.HasSuffix(file, "_test.go")
}

func shortPath(file string, line int) string {
	return fmt.Sprintf("%s/%s:%d", path.Base(path.Dir(file)), path.Base(file), line)
}
