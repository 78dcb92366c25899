package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Acks stores for each node the latest RPC that it has acknowledged, ordered by when the RPC began.
// The Raft library verifies leadership with any answer that arrives after the verification was
// requested, also from nodes without a vote. But an answer may have waited in the socket of a
// suspended process. A read must only count answers to RPCs that began after the read.
//
// Acks records only RPCs outside the pipeline, mostly heartbeats. Each verification sends a
// heartbeat to every node at once, without waiting for entries that the pipeline has queued.
type Acks struct {
	mu     sync.Mutex
	seq    RPCSeq
	latest map[raft.ServerID]Ack
}

// RPCSeq orders the beginnings of RPCs and of reads.
type RPCSeq uint64

// Ack is what a node has acknowledged.
type Ack struct {
	started    RPCSeq    // when the RPC began
	ReceivedAt time.Time // when the answer came
	Term       uint64    // of the leader that sent the RPC
	LastIndex  uint64    // of the node's log
}

// NewAcks returns an empty Acks.
func NewAcks() *Acks { return &Acks{latest: map[raft.ServerID]Ack{}} }

// Next returns a number greater than every earlier one.
func (a *Acks) Next() RPCSeq {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seq++
	return a.seq
}

// record stores that a node has acknowledged an RPC.
func (a *Acks) record(node raft.ServerID, got Ack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.latest[node].started < got.started {
		a.latest[node] = got
	}
}

// Forget drops what is known of a node that is about to be replaced.
func (a *Acks) Forget(node raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.latest, node)
}

// Get returns the latest RPC that a node has acknowledged, or the zero value.
func (a *Acks) Get(node raft.ServerID) Ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest[node]
}

// HasQuorum reports whether a majority of the voters has acknowledged an RPC that was sent in term
// and began after since. This node, self, counts without an RPC.
func (a *Acks) HasQuorum(servers []raft.Server, self raft.ServerID, term uint64, since RPCSeq) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	voters, confirming := 0, 0
	for _, server := range servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		got := a.latest[server.ID]
		if server.ID == self || got.started > since && got.Term == term {
			confirming++
		}
	}
	return confirming > voters/2
}

// Progress returns the index of the last entry in a node's log. known is false if the node has
// acknowledged no RPC that was sent in term.
func (a *Acks) Progress(node raft.ServerID, term uint64) (last uint64, known bool) {
	got := a.Get(node)
	return got.LastIndex, got.started > 0 && got.Term == term
}
