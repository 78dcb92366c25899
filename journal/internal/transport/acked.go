package transport

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Acked records the answers to its messages in Acks and Liveness, and hides failures of messages
// about entries from Raft.
type Acked struct {
	Transport
	Acks     *Acks
	Liveness *Liveness
	// IsReplicatingTo reports whether this node leads in a term and sends entries to a server.
	IsReplicatingTo func(to raft.Server, term uint64) bool
	pipelines       sync.WaitGroup // two goroutines for each open pipeline

	// OnPipelineEnd is called when a server has no working pipeline any more. Raft may not notice
	// that before it sends the next entry. It must not block; may be nil.
	OnPipelineEnd func()

	mu            sync.Mutex
	openPipelines map[*pipeline]struct{}
	confirmed     map[raft.ServerID]*raft.AppendEntriesRequest // see recordConfirmed
	lastCommitted entryID                                      // latest applied entry
}

// sendOnce sends a message once and records the answer or the failure.
func (a *Acked) sendOnce(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	started := a.Acks.Next()
	err := a.Transport.AppendEntries(id, target, args, resp)
	if err != nil {
		return a.recordError(id, err)
	}
	a.Liveness.recordContact(id, started)
	if resp.Success {
		a.Acks.record(id, Ack{started, time.Now(), args.Term, resp.LastLog})
	}
	return nil
}

// AppendEntries implements raft.Transport. If a message about entries fails, it sends probes until
// the follower answers one. It returns an error only for a heartbeat, or after awaitContact has
// returned false.
func (a *Acked) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := a.sendOnce(id, target, args, resp)
	if isHeartbeat(args) {
		return err
	}
	for pause := contactPollInterval; err != nil && a.awaitContact(id, target, args.Term, pause); pause = min(2*pause, retryPauseMax) {
		makeProbe(args)
		*resp = raft.AppendEntriesResponse{}
		err = a.sendOnce(id, target, args, resp)
	}
	if err == nil && resp.Success {
		a.recordConfirmed(id, args)
	}
	return err
}

// InstallSnapshot implements raft.Transport. After a failure it returns when awaitContact does:
// Raft opens the snapshot again for each attempt.
func (a *Acked) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := a.Transport.InstallSnapshot(id, target, args, resp, data)
	if err != nil {
		a.awaitContact(id, target, args.Term, contactPollInterval)
	}
	return err
}

// awaitContact waits until a node answers a heartbeat that begins from now on, and at least for
// pause. It returns false if this node no longer leads in that term, or if the other is no member
// any more or has another address.
func (a *Acked) awaitContact(id raft.ServerID, target raft.ServerAddress, term uint64, pause time.Duration) bool {
	since, earliest := a.Acks.Next(), time.Now().Add(pause)
	for a.IsReplicatingTo(raft.Server{ID: id, Address: target}, term) {
		time.Sleep(contactPollInterval)
		if !time.Now().Before(earliest) && a.Liveness.hasContactSince(id, since) {
			return true
		}
	}
	return false
}

// RequestVote implements raft.Transport.
func (a *Acked) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return a.recordError(id, a.Transport.RequestVote(id, target, args, resp))
}

// RequestPreVote implements raft.WithPreVote.
func (a *Acked) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return a.recordError(id, a.Transport.RequestPreVote(id, target, args, resp))
}

// recordError records err as the reason why a node has not answered, unless it is nil, and returns
// it.
func (a *Acked) recordError(id raft.ServerID, err error) error {
	if err != nil {
		a.Liveness.recordFailure(id, err)
	}
	return err
}

// makeProbe turns a message into one that asks whether the follower has what precedes its entries.
// The entries need not stay in memory: Raft sends them after the answer. The probe carries no
// commit index. Otherwise the follower could take other entries at the same indexes, which it still
// has, for committed. And an old commit index would make it report that it is up to date (see
// leadercommit.go).
func makeProbe(r *raft.AppendEntriesRequest) {
	r.Entries, r.LeaderCommitIndex = nil, 0
}

// isHeartbeat distinguishes heartbeats from messages about entries, as the receiver does.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// Transport is implemented by both of Raft's transports.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// IOTimeout bounds one exchange between two nodes; Raft allows more for a large snapshot.
const IOTimeout = 5 * time.Second
