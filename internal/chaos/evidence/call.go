package evidence

import (
	"encoding/json"
	"time"
)

// A Kind says what a call asks for.
type Kind string

// The kinds of calls.
const (
	Start     Kind = "start"
	Send      Kind = "send"
	Update    Kind = "update"
	Terminate Kind = "terminate"
	Purge     Kind = "purge"
	Wait      Kind = "wait"
	Read      Kind = "read" // the history of an instance of one execution
)

// An Outcome is what a caller knows of its call in the end.
type Outcome string

// The outcomes.
const (
	Acked       Outcome = "acked"
	Refused     Outcome = "refused"      // answered with Code; nothing was done
	NotExecuted Outcome = "not executed" // no answer; nothing was done
	Unknown     Outcome = "unknown"
)

// The codes of refusals.
const (
	NotFound = "not found"
	Exists   = "exists"
	Ended    = "ended"
	Busy     = "busy"
	Early    = "early" // no handler of the update yet
	Other    = "other"
)

// A Request is what a client asks of a node.
type Request struct {
	Kind     Kind
	Instance string
	// Of a start, an event or an update.
	RequestID string          `json:",omitempty"`
	Name      string          `json:",omitempty"`
	Input     json.RawMessage `json:",omitempty"`
	// Of a read: by the asked node alone.
	Stale bool `json:",omitempty"`
	// It was acknowledged before, and is put to a node that has it from a snapshot.
	Repeated bool `json:",omitempty"`
}

// An Answer is what a node says to it.
type Answer struct {
	Outcome Outcome
	Code    string `json:",omitempty"`
	Message string `json:",omitempty"`
	// Of a read: the index that it shows at least, the state of the instance,
	// and the request IDs of its external events, in order.
	AppliedIndex uint64   `json:",omitempty"`
	State        string   `json:",omitempty"`
	Accepted     []string `json:",omitempty"`
	// Of a wait for an instance that has completed, and of an update.
	Output json.RawMessage `json:",omitempty"`
}

// A Call is a request with all that was done to get an answer: the same request
// is put to one node after the other, until one gives an answer that counts.
type Call struct {
	Request
	Answer
	Client int
	// The node that answered and which of its processes, counted from 1.
	Node  string
	Life  int
	Tries int
	// One of the tries before the last may have been carried out.
	Doubtful   bool
	Begin, End time.Duration
}
