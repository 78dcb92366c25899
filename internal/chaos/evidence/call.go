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

	SendOrStart Kind = "send or start"
	Cancel      Kind = "cancel"
	Suspend     Kind = "suspend"
	Resume      Kind = "resume"
	Complete    Kind = "complete" // an activity, by its token
	Query       Kind = "query"
	Get         Kind = "get"
	List        Kind = "list"  // of the instances whose IDs begin with that of the request
	Watch       Kind = "watch" // of the events from a position on
)

// Looks tells whether calls of the kind change nothing.
func (k Kind) Looks() bool {
	switch k {
	case Wait, Read, Query, Get, List, Watch:
		return true
	}
	return false
}

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
	Early    = "early"  // no handler of the update or query yet
	Closed   = "closed" // the activity has another end
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
	// Of a completion.
	Token string `json:",omitempty"`
	// Of a watch: where it begins; the zero value is the beginning.
	From Position `json:",omitzero"`
	// How long the caller's context lasts: 0 for as long as it takes, less for one that has
	// ended before the call.
	Limit time.Duration `json:",omitempty"`
	// Of a read: by the asked node alone.
	Stale bool `json:",omitempty"`
	// It was acknowledged before, and is put to a node that has it from a snapshot.
	Repeated bool `json:",omitempty"`
}

// A Position is a place in the histories of an instance.
type Position struct{ Execution, EventID uint64 }

// A Watched is an event that a watch has shown.
type Watched struct {
	Execution, EventID uint64
	Digest             string
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
	// Of a get: where the histories end.
	Execution   uint64 `json:",omitempty"`
	LastEventID uint64 `json:",omitempty"`
	// Of a list, and of a watch.
	Listed  []string  `json:",omitempty"`
	Watched []Watched `json:",omitempty"`
	// Where a watch goes on.
	Next Position `json:",omitzero"`
	// Of a wait for an instance that has completed, of an update and of a query.
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
	// It went through the remote client, which is no node.
	Remote bool `json:",omitempty"`
	// One of the tries before the last may have been carried out.
	Doubtful   bool
	Begin, End time.Duration
}
