package evidence

import (
	"encoding/json"
	"time"
)

// A Kind is the kind of a call.
type Kind string

// The kinds of calls.
const (
	Start     Kind = "start"
	Send      Kind = "send"
	Update    Kind = "update"
	Terminate Kind = "terminate"
	Purge     Kind = "purge"
	Wait      Kind = "wait"
	Read      Kind = "read" // the history of an instance with one execution

	SendOrStart Kind = "send or start"
	Cancel      Kind = "cancel"
	Suspend     Kind = "suspend"
	Resume      Kind = "resume"
	Complete    Kind = "complete" // an activity, by its token
	Query       Kind = "query"
	Get         Kind = "get"
	List        Kind = "list"  // of the instances whose IDs have Request.Instance as prefix
	Watch       Kind = "watch" // of the events from a position on
)

// IsReadOnly reports whether calls of the kind change nothing.
func (k Kind) IsReadOnly() bool {
	switch k {
	case Wait, Read, Query, Get, List, Watch:
		return true
	}
	return false
}

// An Outcome is what the caller knows after its call.
type Outcome string

// The outcomes.
const (
	Acked       Outcome = "acked"
	Rejected    Outcome = "rejected"     // answered with Code; not executed
	NotExecuted Outcome = "not executed" // no answer; not executed
	Unknown     Outcome = "unknown"
)

// The codes of rejections.
const (
	NotFound  = "not found"
	Exists    = "exists"
	Ended     = "ended"
	Busy      = "busy"
	NoHandler = "early"  // no handler of the update or query yet
	Closed    = "closed" // the activity has already ended
	Other     = "other"
)

// A Request is what a client asks of a node.
type Request struct {
	Kind     Kind
	Instance string
	// For a start, an event or an update.
	RequestID string          `json:",omitempty"`
	Name      string          `json:",omitempty"`
	Input     json.RawMessage `json:",omitempty"`
	// For a completion.
	Token string `json:",omitempty"`
	// For a watch: its first position; the zero value is the beginning.
	From Position `json:",omitzero"`
	// How long the caller's context lasts: 0 means without limit, a negative value means that it
	// has already ended.
	Limit time.Duration `json:",omitempty"`
	// For a read: answered by the called node alone, without the leader.
	Stale bool `json:",omitempty"`
	// The call was acknowledged before and is repeated on a node that was sent a snapshot.
	Repeated bool `json:",omitempty"`
}

// A Position is the position of an event in the histories of an instance.
type Position struct{ Execution, EventID uint64 }

// A WatchedEvent is an event that a watch returned.
type WatchedEvent struct {
	Execution, EventID uint64
	Digest             string
}

// An Answer is the answer of a node.
type Answer struct {
	Outcome Outcome
	Code    string `json:",omitempty"`
	Message string `json:",omitempty"`
	// For a read: a lower bound of the index that it reflects, the state of the instance, and the
	// request IDs of its external events, in order.
	AppliedIndex uint64   `json:",omitempty"`
	State        string   `json:",omitempty"`
	AcceptedIDs  []string `json:",omitempty"`
	// For a get: the position of the last event.
	Execution   uint64 `json:",omitempty"`
	LastEventID uint64 `json:",omitempty"`
	// For a list and for a watch.
	ListedIDs     []string       `json:",omitempty"`
	WatchedEvents []WatchedEvent `json:",omitempty"`
	// The position at which a watch continues.
	Next Position `json:",omitzero"`
	// For a wait on a completed instance, for an update and for a query.
	Output json.RawMessage `json:",omitempty"`
}

// A Call is a request with all its tries: the same request goes to one node after the other until
// one gives a final answer.
type Call struct {
	Request
	Answer
	Client int
	// The node that answered, and which of its processes, counted from 1.
	Node       string
	Generation int
	Tries      int
	// The call went through the remote client, which is not a node.
	Remote bool `json:",omitempty"`
	// A try before the last may have been executed.
	MaybeExecuted bool
	Begin, End    time.Duration
}
