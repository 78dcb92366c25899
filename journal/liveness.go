package journal

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Raft sends entries to a follower independently of heartbeats. After a failure it pauses, twice as
// long each time, up to ten seconds, and nothing shortens a pause. A follower that was cut off or
// stopped would get no entry for that long after its return. The partition would have one copy
// less. So failures of messages with entries are hidden from Raft. The message is sent again after
// the follower has answered a heartbeat.

// liveness stores for each node the latest RPC that it has answered, with success or not, ordered
// by when the RPC began. RPCs in a pipeline do not count.
type liveness struct {
	mu          sync.Mutex
	lastContact map[raft.ServerID]rpcSeq
	failures    map[raft.ServerID]error // why the last RPC was not answered
}

func newLiveness() *liveness {
	return &liveness{lastContact: map[raft.ServerID]rpcSeq{}, failures: map[raft.ServerID]error{}}
}

// recordFailure records why a node has not answered.
func (s *liveness) recordFailure(node raft.ServerID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[node] = err
}

// lastFailure returns why a node has not answered the last RPC, nil if it has.
func (s *liveness) lastFailure(node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures[raft.ServerID(node)]
}

// recordContact records that a node has answered.
func (s *liveness) recordContact(node raft.ServerID, started rpcSeq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastContact[node] = max(s.lastContact[node], started)
	delete(s.failures, node)
}

// hasContactSince reports whether a node has answered an RPC that began after started.
func (s *liveness) hasContactSince(node raft.ServerID, started rpcSeq) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastContact[node] > started
}

const (
	// pollInterval is how often awaitContact checks for an answer of a follower.
	pollInterval = 20 * time.Millisecond
	// retryPauseMax is the longest pause before something is sent again to a follower that answers
	// heartbeats but nothing else.
	retryPauseMax = time.Second
)

// AppendEntries implements raft.Transport. If a message about entries fails, it sends probes until
// the follower answers one. It returns an error only for a heartbeat, or after awaitContact has
// returned false.
func (t *ackedTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := t.sendOnce(id, target, args, resp)
	if isHeartbeat(args) {
		return err
	}
	for pause := pollInterval; err != nil && t.awaitContact(id, target, args.Term, pause); pause = min(2*pause, retryPauseMax) {
		makeProbe(args)
		*resp = raft.AppendEntriesResponse{}
		err = t.sendOnce(id, target, args, resp)
	}
	if err == nil && resp.Success {
		t.recordConfirmed(id, args)
	}
	return err
}

// makeProbe turns a message into one that asks whether the follower has what precedes its entries.
// The entries need not stay in memory: Raft sends them after the answer. The probe carries no
// commit index. Otherwise the follower could take other entries at the same indexes, which it still
// has, for committed. And an old commit index would make it believe that it is up to date (see
// leadercommit.go).
func makeProbe(r *raft.AppendEntriesRequest) {
	r.Entries, r.LeaderCommitIndex = nil, 0
}

// InstallSnapshot implements raft.Transport. After a failure it returns when awaitContact does:
// Raft opens the snapshot again for each attempt.
func (t *ackedTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := t.closableTransport.InstallSnapshot(id, target, args, resp, data)
	if err != nil {
		t.awaitContact(id, target, args.Term, pollInterval)
	}
	return err
}

// isHeartbeat distinguishes heartbeats from messages about entries, as the receiver does.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// awaitContact waits until a node answers a heartbeat that begins from now on, and at least for
// pause. It returns false if this node no longer leads in that term, or if the other is no member
// any more or has another address.
func (t *ackedTransport) awaitContact(id raft.ServerID, target raft.ServerAddress, term uint64, pause time.Duration) bool {
	since, earliest := t.acks.next(), time.Now().Add(pause)
	for t.isReplicatingTo(raft.Server{ID: id, Address: target}, term) {
		time.Sleep(pollInterval)
		if !time.Now().Before(earliest) && t.liveness.hasContactSince(id, since) {
			return true
		}
	}
	return false
}

// isReplicatingTo reports whether this node leads in a term and sends entries to a server. That
// ends when Raft is told to shut down. It is also false during a transfer of leadership, when Raft
// accepts no appends and waits for the server that it sends entries to.
func (j *Journal) isReplicatingTo(to raft.Server, term uint64) bool {
	if j.transfers.Load() > 0 || j.raft.State() != raft.Leader || j.raft.CurrentTerm() != term {
		return false
	}
	server := j.membership().find(string(to.ID))
	return server != nil && server.Address == to.Address
}

const (
	// contactInterval is how often a node checks which members it has not heard from.
	contactInterval = time.Second
	// contactLogAfter is how long a member or the leader may be away before that is logged; a
	// restart takes less.
	contactLogAfter = 10 * time.Second
)

// contactMonitor logs members that do not answer the leader, and that this node knows no leader. It
// logs each case once; the library would log it ten times a second.
type contactMonitor struct {
	logger           *slog.Logger
	lastFailure      func(node string) error // why a node has not answered
	loggedMissing    map[string]bool         // members logged as not answering
	leaderlessSince  time.Time               // zero: there is a leader
	loggedLeaderless bool                    // the missing leader was logged
}

// monitorContacts runs a contactMonitor until ctx ends.
func (j *Journal) monitorContacts(ctx context.Context) {
	w := &contactMonitor{logger: j.config.Logger, lastFailure: j.liveness.lastFailure, loggedMissing: map[string]bool{}}
	tick := time.NewTicker(contactInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			leader, _ := j.Leader()
			w.checkMembers(now, leader, j.Members())
		}
	}
}

func (w *contactMonitor) checkMembers(now time.Time, leader string, members []Member) {
	w.checkLeader(now, leader, members)
	for _, m := range members {
		switch missing := w.loggedMissing[m.Node]; {
		case !m.ContactKnown:
			delete(w.loggedMissing, m.Node)
		case missing && m.BehindKnown && !m.Unreachable: // has answered this leader
			delete(w.loggedMissing, m.Node)
			w.logger.Info("member answers again", "member", m.Node)
		case !missing && m.SinceContact >= contactLogAfter:
			w.loggedMissing[m.Node] = true
			w.logger.Warn("member does not answer: check that it runs and is reachable", "member", m.Node, "address", m.Address,
				"silence", m.SinceContact.Round(time.Millisecond), "error", w.lastFailure(m.Node))
		}
	}
}

func (w *contactMonitor) checkLeader(now time.Time, leader string, members []Member) {
	switch {
	case leader != "" || len(members) == 0:
		if w.loggedLeaderless {
			w.logger.Info("leader known again", "leader", leader)
		}
		w.leaderlessSince, w.loggedLeaderless = time.Time{}, false
	case w.leaderlessSince.IsZero():
		w.leaderlessSince = now
	case !w.loggedLeaderless && now.Sub(w.leaderlessSince) >= contactLogAfter:
		w.loggedLeaderless = true
		attributes := []any{"since", w.leaderlessSince}
		for _, m := range members {
			if err := w.lastFailure(m.Node); err != nil {
				attributes = append(attributes, slog.Group(m.Node, "address", m.Address, "error", err))
			}
		}
		w.logger.Warn("no leader known: check that a majority of the members runs and is reachable", attributes...)
	}
}

// RequestVote implements raft.Transport.
func (t *ackedTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.recordError(id, t.closableTransport.RequestVote(id, target, args, resp))
}

// RequestPreVote implements raft.WithPreVote.
func (t *ackedTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.recordError(id, t.closableTransport.RequestPreVote(id, target, args, resp))
}

// recordError records err as the reason why a node has not answered, unless it is nil, and returns
// it.
func (t *ackedTransport) recordError(id raft.ServerID, err error) error {
	if err != nil {
		t.liveness.recordFailure(id, err)
	}
	return err
}
