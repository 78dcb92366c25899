package journal

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// acks remember, of each node, the latest RPC that it has acknowledged, by when
// the RPC was started. The Raft library verifies leadership by any answer that
// arrives after it was asked to, from nodes without a vote too; but one that has
// waited in the socket of a process that was stopped says nothing of now. What
// counts for a read is an answer to a question that was put after the read began.
//
// Only RPCs outside the pipeline are looked at, heartbeats for the most part:
// each verification sends one to every node at once, past what the pipeline has
// queued for the disks.
type acks struct {
	mu     sync.Mutex
	now    moment
	latest map[raft.ServerID]ack
}

// moment orders the beginnings of RPCs and of reads.
type moment uint64

type ack struct {
	begun moment    // of the RPC
	at    time.Time // when the answer came
	term  uint64    // of the leader that has sent it
	last  uint64    // the index of the node's last entry
}

func newAcks() *acks { return &acks{latest: map[raft.ServerID]ack{}} }

// begin returns a moment after every earlier one.
func (a *acks) begin() moment {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now++
	return a.now
}

// note remembers that a node has acknowledged an RPC.
func (a *acks) note(node raft.ServerID, got ack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.latest[node].begun < got.begun {
		a.latest[node] = got
	}
}

// forget drops what is known of a node: another one is to take its place.
func (a *acks) forget(node raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.latest, node)
}

// of returns the latest RPC that a node has acknowledged, the zero value if it has none.
func (a *acks) of(node raft.ServerID) ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest[node]
}

// confirmed tells whether a majority of those who have a vote, self without
// being asked, has acknowledged an RPC of a term that was begun after since.
func (a *acks) confirmed(servers []raft.Server, self raft.ServerID, term uint64, since moment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	voters, confirming := 0, 0
	for _, server := range servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		got := a.latest[server.ID]
		if server.ID == self || got.begun > since && got.term == term {
			confirming++
		}
	}
	return confirming > voters/2
}

// progress returns the index of the last entry of a node, if it has acknowledged
// anything in a term.
func (a *acks) progress(node raft.ServerID, term uint64) (last uint64, known bool) {
	got := a.of(node)
	return got.last, got.begun > 0 && got.term == term
}

// ackedTransport tells the acks, and the signs of life, of what it sends.
type ackedTransport struct {
	closingTransport
	acks  *acks
	signs *signs
	// replicates tells whether this node leads in a term and sends entries to a server.
	replicates func(to raft.Server, term uint64) bool
	pipelines  sync.WaitGroup // two goroutines for each pipeline that is open

	// ended is told that a server has no working pipeline any more, of which Raft may take
	// no notice before it sends the next entry. It must not block. nil: nobody is told.
	ended func()

	mu        sync.Mutex
	open      map[*pipeline]struct{}
	confirmed map[raft.ServerID]*raft.AppendEntriesRequest // before a pipeline is opened; see behind
	latest    entryID                                      // that is committed and applied here
}

// exchange sends a message once.
func (t *ackedTransport) exchange(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	begun := t.acks.begin()
	err := t.closingTransport.AppendEntries(id, target, args, resp)
	if err != nil {
		return t.noted(id, err)
	}
	t.signs.give(id, begun)
	if resp.Success {
		t.acks.note(id, ack{begun, time.Now(), args.Term, resp.LastLog})
	}
	return nil
}
