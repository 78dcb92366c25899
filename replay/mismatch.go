package replay

import (
	"fmt"
	"path"
	"runtime"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// MismatchKind is the way in which code and history disagree.
type MismatchKind string

const (
	// ScheduledDifferently: the code scheduled something other than the history has.
	ScheduledDifferently MismatchKind = "scheduled differently"
	// ScheduledNothing: the history has a scheduling event, but the code is blocked.
	ScheduledNothing MismatchKind = "scheduled nothing"
	// EndedEarly: the code returned while scheduling events remain in the history.
	EndedEarly MismatchKind = "ended early"
	// UnknownSource: a completion names an event that schedules nothing.
	UnknownSource MismatchKind = "unknown source"
	// AlreadyClosed: a completion names an operation that was completed or canceled before.
	AlreadyClosed MismatchKind = "already closed"
	// WrongEventType: a completion does not fit the operation, such as an activity's for a timer.
	WrongEventType MismatchKind = "wrong kind"
	// ForeignGoroutine: a durable call came from a goroutine that the code started.
	ForeignGoroutine MismatchKind = "called outside"
	// ForeignFuture: the code used a future or a [Semaphore] of another instance or execution.
	ForeignFuture MismatchKind = "foreign future"
	// Corrupt: the history is invalid for any code.
	Corrupt MismatchKind = "corrupt"
)

// A Mismatch is a disagreement between code and history. The instance is stalled: its history is
// unchanged, and it continues when code that fits is deployed.
type Mismatch struct {
	Kind      MismatchKind
	Instance  string
	Execution uint64
	EventID   uint64 // the first event that differs
	Expected  string // what the history has there
	Found     string // what the code did instead
	Source    string // file:line of the call that differs, "" if unknown

	events []*journalpb.Event // the events that Expected and Found describe
}

// WithoutPayloads returns a copy of the mismatch for readers who must not see user data: it shows
// only the sizes of inputs, results and error messages.
func (m *Mismatch) WithoutPayloads() *Mismatch {
	redacted := *m
	redacted.Expected, redacted.Found, redacted.events = m.redacted(m.Expected), m.redacted(m.Found), nil
	if redacted.Expected == redacted.Found && redacted.Found != "" {
		redacted.Found += ", which is not the same"
	}
	return &redacted
}

// redacted returns the description of an event without payloads. Other descriptions have none and
// are returned unchanged.
func (m *Mismatch) redacted(description string) string {
	for _, event := range m.events {
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
		if m.Found == m.Expected { // the difference is cut or hidden
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
		events:    []*journalpb.Event{event},
	}
}

// withEvent adds another event that the mismatch describes.
func (m *Mismatch) withEvent(event *journalpb.Event) *Mismatch {
	m.events = append(m.events, event)
	return m
}

// describe hides payloads if a codec is set.
func (x *Execution) describe(event *journalpb.Event) string {
	return describe(event, x.registry.payloads.Codec != nil)
}

// packagePrefix is the prefix of the names of this package's functions.
const packagePrefix = "github.com/tenuto-dev/tenuto/replay."

// sourceLine returns directory/file:line of the first call outside this package.
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
			return "" // the coroutine's entry: no call of the author
		case !strings.HasPrefix(frame.Function, packagePrefix) && !isOwnFile(frame.File):
			return shortPath(frame.File, frame.Line)
		case !more:
			return ""
		}
	}
}

// isOwnFile reports whether a file belongs to this package. A function of this package that was
// inlined has the name of the author's function.
func isOwnFile(file string) bool {
	_, own, _, _ := runtime.Caller(0)
	return path.Dir(file) == path.Dir(own) && !strings.HasSuffix(file, "_test.go")
}

func shortPath(file string, line int) string {
	return fmt.Sprintf("%s/%s:%d", path.Base(path.Dir(file)), path.Base(file), line)
}
