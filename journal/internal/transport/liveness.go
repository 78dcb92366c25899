package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Raft sends entries to a follower independently of heartbeats. After a failure it pauses, twice as
// long each time, up to ten seconds, and nothing shortens a pause. A follower that was cut off or
// stopped would get no entry for that long after its return, and new entries would have one copy
// less. So failures of messages with entries are hidden from Raft. The message is sent again after
// the follower has answered a heartbeat.

// Liveness stores for each node the latest RPC that it has answered, with success or not, ordered
// by when the RPC began. RPCs in a pipeline do not count.
type Liveness struct {
	mu          sync.Mutex
	lastContact map[raft.ServerID]RPCSeq
	failures    map[raft.ServerID]error // why the last RPC was not answered
}

// NewLiveness returns an empty Liveness.
func NewLiveness() *Liveness {
	return &Liveness{lastContact: map[raft.ServerID]RPCSeq{}, failures: map[raft.ServerID]error{}}
}

// recordFailure records why a node has not answered.
func (s *Liveness) recordFailure(node raft.ServerID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[node] = err
}

// LastFailure returns why a node has not answered the last RPC, nil if it has.
func (s *Liveness) LastFailure(node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures[raft.ServerID(node)]
}

// recordContact records that a node has answered.
func (s *Liveness) recordContact(node raft.ServerID, started RPCSeq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastContact[node] = max(s.lastContact[node], started)
	delete(s.failures, node)
}

// hasContactSince reports whether a node has answered an RPC that began after started.
func (s *Liveness) hasContactSince(node raft.ServerID, started RPCSeq) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastContact[node] > started
}

const (
	// contactPollInterval is how often awaitContact checks for an answer of a follower.
	contactPollInterval = 20 * time.Millisecond
	// retryPauseMax is the longest pause before a message is sent again to a follower that answers
	// heartbeats but nothing else.
	retryPauseMax = time.Second
)
