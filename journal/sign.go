package journal

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Raft sends entries to a follower beside the heartbeats. After one that failed it
// pauses, twice as long each time, up to ten seconds, and nothing cuts a pause short: a
// follower that was cut off for a while, or was stopped, would get no entry for so long
// after it is there again, and the group would have a copy less. So Raft does not hear of a
// message with entries that failed. It is sent again when the follower has given a sign
// of life.

// signs are the signs of life that others have given: of each node, when the latest
// RPC was begun that it has answered, with yes or no. Those in a pipeline do not count.
type signs struct {
	mu     sync.Mutex
	latest map[raft.ServerID]moment
	failed map[raft.ServerID]error // why the last RPC was not answered, if it was not
}

func newSigns() *signs {
	return &signs{latest: map[raft.ServerID]moment{}, failed: map[raft.ServerID]error{}}
}

// fail remembers why a node has not answered.
func (s *signs) fail(node raft.ServerID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[node] = err
}

// failure returns why a node has not answered the last RPC, nil if it has.
func (s *signs) failure(node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed[raft.ServerID(node)]
}

// give remembers that a node has answered.
func (s *signs) give(node raft.ServerID, begun moment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest[node] = max(s.latest[node], begun)
	delete(s.failed, node)
}

// since tells whether a node has answered an RPC that was begun later than that.
func (s *signs) since(node raft.ServerID, begun moment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest[node] > begun
}

const (
	// How often is looked for a sign of life of a follower that was not reached.
	lookEvery = 20 * time.Millisecond
	// The longest pause before something is sent again to a follower that answers
	// heartbeats and nothing else.
	againMax = time.Second
)

// AppendEntries implements raft.Transport. A message with entries fails only when there
// is no point in sending it any more.
func (t *ackedTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := t.exchange(id, target, args, resp)
	if isHeartbeat(args) {
		return err
	}
	for pause := lookEvery; err != nil && t.awaitSign(id, target, args.Term, pause); pause = min(2*pause, againMax) {
		probe(args)
		*resp = raft.AppendEntriesResponse{}
		err = t.exchange(id, target, args, resp)
	}
	if err == nil && resp.Success {
		t.confirm(id, args)
	}
	return err
}

// probe makes a message one that asks whether the follower has what comes before its
// entries. They need not wait for the answer in memory: Raft sends them when it has it.
// Nor may anything be called committed that they would have put in the place of what
// the follower has there, and what was committed when the message was first sent would have
// the follower believe that it has all (see leadercommit.go): so it says nothing of the
// commit index.
func probe(r *raft.AppendEntriesRequest) {
	r.Entries, r.LeaderCommitIndex = nil, 0
}

// InstallSnapshot implements raft.Transport. When it fails it returns no sooner than
// trying again makes sense: Raft opens the snapshot anew for that.
func (t *ackedTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := t.closingTransport.InstallSnapshot(id, target, args, resp, data)
	if err != nil {
		t.awaitSign(id, target, args.Term, lookEvery)
	}
	return err
}

// isHeartbeat tells heartbeats from messages about entries, as whoever gets them does.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// awaitSign waits until a node answers a heartbeat that is begun from now on, and for a
// pause at least. It tells whether it does: otherwise this node leads no longer in that
// term, or the other is no member any more, or not at that address.
func (t *ackedTransport) awaitSign(id raft.ServerID, target raft.ServerAddress, term uint64, pause time.Duration) bool {
	since, soonest := t.acks.begin(), time.Now().Add(pause)
	for t.replicates(raft.Server{ID: id, Address: target}, term) {
		time.Sleep(lookEvery)
		if !time.Now().Before(soonest) && t.signs.since(id, since) {
			return true
		}
	}
	return false
}

// replicates tells whether this node leads in a term and sends entries to a server. Once
// Raft is told to shut down it does not. Nor during a transfer of leadership: Raft takes
// no appends then, and waits for the one that it sends entries to.
func (j *Journal) replicates(to raft.Server, term uint64) bool {
	if j.transfers.Load() > 0 || j.raft.State() != raft.Leader || j.raft.CurrentTerm() != term {
		return false
	}
	server := j.roster().find(string(to.ID))
	return server != nil && server.Address == to.Address
}

const (
	// How often a node looks whom it has not heard of.
	contactEvery = time.Second
	// For how long a member, or the leader, may be away before an operator hears of it: a
	// restart takes less.
	missedAfter = 10 * time.Second
)

// A contactWatch says in the log which members do not answer the leader, and that a node knows
// no leader. So each is said once, and not ten times a second as by the library.
type contactWatch struct {
	logger  *slog.Logger
	failure func(node string) error // why a node has not answered
	missed  map[string]bool         // members that the log says do not answer
	since   time.Time               // when this node was first seen without a leader; zero: it has one
	alone   bool                    // the log says so
}

// watchContacts looks until ctx ends.
func (j *Journal) watchContacts(ctx context.Context) {
	w := &contactWatch{logger: j.config.Logger, failure: j.signs.failure, missed: map[string]bool{}}
	tick := time.NewTicker(contactEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			leader, _ := j.Leader()
			w.look(now, leader, j.Members())
		}
	}
}

func (w *contactWatch) look(now time.Time, leader string, members []Member) {
	w.lookForLeader(now, leader, members)
	for _, m := range members {
		switch missed := w.missed[m.Node]; {
		case !m.SilenceKnown:
			delete(w.missed, m.Node)
		case missed && m.BehindKnown && !m.Silent: // it has answered since the leadership began
			delete(w.missed, m.Node)
			w.logger.Info("member answers again", "member", m.Node)
		case !missed && m.Silence >= missedAfter:
			w.missed[m.Node] = true
			w.logger.Warn("member does not answer: see whether it runs and is reached", "member", m.Node, "address", m.Address,
				"silence", m.Silence.Round(time.Millisecond), "error", w.failure(m.Node))
		}
	}
}

func (w *contactWatch) lookForLeader(now time.Time, leader string, members []Member) {
	switch {
	case leader != "" || len(members) == 0:
		if w.alone {
			w.logger.Info("there is a leader again", "leader", leader)
		}
		w.since, w.alone = time.Time{}, false
	case w.since.IsZero():
		w.since = now
	case !w.alone && now.Sub(w.since) >= missedAfter:
		w.alone = true
		attributes := []any{"since", w.since}
		for _, m := range members {
			if err := w.failure(m.Node); err != nil {
				attributes = append(attributes, slog.Group(m.Node, "address", m.Address, "error", err))
			}
		}
		w.logger.Warn("this node knows no leader: see whether a majority of the members runs and is reached", attributes...)
	}
}

// RequestVote implements raft.Transport.
func (t *ackedTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.noted(id, t.closingTransport.RequestVote(id, target, args, resp))
}

// RequestPreVote implements raft.WithPreVote.
func (t *ackedTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.noted(id, t.closingTransport.RequestPreVote(id, target, args, resp))
}

// noted returns why a node has not answered, if it has not, and remembers it.
func (t *ackedTransport) noted(id raft.ServerID, err error) error {
	if err != nil {
		t.signs.fail(id, err)
	}
	return err
}
