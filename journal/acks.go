package journal

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// acks stores for each node the latest RPC that it has acknowledged, ordered by when the RPC began.
// The Raft library verifies leadership with any answer that arrives after the verification was
// requested, also from nodes without a vote. But an answer may have waited in the socket of a
// suspended process. A read must only count answers to RPCs that began after the read.
//
// acks records only RPCs outside the pipeline, mostly heartbeats. Each verification sends a
// heartbeat to every node at once, without waiting for entries that the pipeline has queued.
type acks struct {
	mu     sync.Mutex
	seq    rpcSeq
	latest map[raft.ServerID]ack
}

// rpcSeq orders the beginnings of RPCs and of reads.
type rpcSeq uint64

type ack struct {
	started    rpcSeq    // when the RPC began
	receivedAt time.Time // when the answer came
	term       uint64    // of the leader that sent the RPC
	lastIndex  uint64    // of the node's log
}

func newAcks() *acks { return &acks{latest: map[raft.ServerID]ack{}} }

// next returns a number greater than every earlier one.
func (a *acks) next() rpcSeq {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seq++
	return a.seq
}

// record stores that a node has acknowledged an RPC.
func (a *acks) record(node raft.ServerID, got ack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.latest[node].started < got.started {
		a.latest[node] = got
	}
}

// forget drops what is known of a node that is about to be replaced.
func (a *acks) forget(node raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.latest, node)
}

// get returns the latest RPC that a node has acknowledged, or the zero value.
func (a *acks) get(node raft.ServerID) ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest[node]
}

// hasQuorum reports whether a majority of the voters has acknowledged an RPC that was sent in term
// and began after since. This node, self, counts without an RPC.
func (a *acks) hasQuorum(servers []raft.Server, self raft.ServerID, term uint64, since rpcSeq) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	voters, confirming := 0, 0
	for _, server := range servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		got := a.latest[server.ID]
		if server.ID == self || got.started > since && got.term == term {
			confirming++
		}
	}
	return confirming > voters/2
}

// progress returns the index of the last entry in a node's log. known is false if the node has
// acknowledged no RPC that was sent in term.
func (a *acks) progress(node raft.ServerID, term uint64) (last uint64, known bool) {
	got := a.get(node)
	return got.lastIndex, got.started > 0 && got.term == term
}

// ackedTransport records the answers to its messages in acks and liveness.
type ackedTransport struct {
	closableTransport
	acks     *acks
	liveness *liveness
	// isReplicatingTo reports whether this node leads in a term and sends entries to a server.
	isReplicatingTo func(to raft.Server, term uint64) bool
	pipelines       sync.WaitGroup // two goroutines for each open pipeline

	// onPipelineEnd is called when a server has no working pipeline any more. Raft may not notice
	// that before it sends the next entry. It must not block; may be nil.
	onPipelineEnd func()

	mu            sync.Mutex
	openPipelines map[*pipeline]struct{}
	confirmed     map[raft.ServerID]*raft.AppendEntriesRequest // see recordConfirmed
	lastCommitted entryID                                      // latest applied entry
}

// sendOnce sends a message once and records the answer or the failure.
func (t *ackedTransport) sendOnce(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	started := t.acks.next()
	err := t.closableTransport.AppendEntries(id, target, args, resp)
	if err != nil {
		return t.recordError(id, err)
	}
	t.liveness.recordContact(id, started)
	if resp.Success {
		t.acks.record(id, ack{started, time.Now(), args.Term, resp.LastLog})
	}
	return nil
}
