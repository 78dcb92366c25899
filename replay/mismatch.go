package replay

import (
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
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
	// Strict says that only the strict comparison rejects the difference: a value that means the
	// same to today's code, another option or another status. See docs/versioning.md. The status of
	// an instance in a cluster does not have it.
	Strict bool

	text host.MismatchText
}

// Host returns what package engine keeps in the mismatch.
func (m *Mismatch) Host() *host.MismatchText { return &m.text }

// WithoutPayloads returns a copy of the mismatch for readers who must not see user data: it shows
// only the sizes of inputs, results and error messages.
func (m *Mismatch) WithoutPayloads() *Mismatch {
	redacted := *m
	redacted.text = host.MismatchText{}
	if m.text.Redact != nil {
		redacted.Expected, redacted.Found = m.text.Redact(m.Expected), m.text.Redact(m.Found)
	}
	if redacted.Expected == redacted.Found && redacted.Found != "" {
		redacted.Found += " (they differ in a part that is not shown)"
	}
	return &redacted
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
			b.WriteString(" (they differ in a part that is not shown)")
		}
	}
	if m.Source != "" {
		fmt.Fprintf(&b, " (%s)", m.Source)
	}
	return b.String()
}
