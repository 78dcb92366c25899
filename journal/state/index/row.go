package index

// State is the state of a run.
type State uint8

// The states. Their numbers are on disk and never change.
const (
	Running        State = 1
	Suspended      State = 2
	Stalled        State = 3
	Hung           State = 4
	WaitingForCode State = 5
	Completed      State = 6
	Failed         State = 7
	Canceled       State = 8
	Terminated     State = 9
)

var stateTexts = [...]string{
	Running: "running", Suspended: "suspended", Stalled: "stalled", Hung: "hung", WaitingForCode: "waiting for code",
	Completed: "completed", Failed: "failed", Canceled: "canceled", Terminated: "terminated",
}

// String returns the state in words, as in the public API.
func (s State) String() string {
	if int(s) < len(stateTexts) {
		return stateTexts[s]
	}
	return ""
}

// IsEnded reports whether nothing follows the state.
func (s State) IsEnded() bool { return s >= Completed }

// Kind is what an open operation waits for.
type Kind uint8

// The kinds. Their numbers are on disk and never change.
const (
	Activity Kind = 1
	Timer    Kind = 2
	Event    Kind = 3
	Child    Kind = 4
)

// A Wait is an open operation of a running instance.
type Wait struct {
	Kind Kind
	// Name of the activity, event or child's orchestration; empty for a timer.
	Name string
	// Since is when the operation was scheduled, FireAt when a timer is due; Unix nanoseconds.
	Since, FireAt int64
	// Failed is how many attempts of an activity have failed, ErrorCode the code of the last
	// failure.
	Failed    uint32
	ErrorCode string
}

// A Row is what can be queried of an instance.
type Row struct {
	ID, Name, Version string
	State             State
	// Created is when the run began, Updated when its last event was recorded, Ended the same once
	// it has ended, 0 before; Unix nanoseconds.
	Created, Updated, Ended int64
	// ParentID is the instance that started it as a child; empty for none.
	ParentID string
	// ErrorCode is the code of the error with which it failed; empty for none.
	ErrorCode string
	Tags      map[string]string
	// Attributes holds the text of each attribute.
	Attributes map[string]string
	// Waits holds the open operations in order of their event_ids.
	Waits []Wait
}

// About how many bytes a row takes besides its texts, and a text of a map besides its own.
const rowBytes, textBytes = 256, 16

// Bytes returns about how many bytes the row takes without its open operations.
func (r *Row) Bytes() int {
	n := rowBytes + len(r.ID) + len(r.Name) + len(r.Version) + len(r.ParentID) + len(r.ErrorCode)
	for key, value := range r.Tags {
		n += textBytes + len(key) + len(value)
	}
	for name, text := range r.Attributes {
		n += textBytes + len(name) + len(text)
	}
	return n
}

// NextTimer returns when the earliest open timer is due, Unix nanoseconds; false if none is open.
func (r *Row) NextTimer() (at int64, ok bool) {
	for i := range r.Waits {
		if w := &r.Waits[i]; w.Kind == Timer && (!ok || w.FireAt < at) {
			at, ok = w.FireAt, true
		}
	}
	return at, ok
}
