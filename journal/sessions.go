package journal

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/peer"
)

// Two processes can open two copies of one directory, on two machines. Both have the same identity,
// and only one may continue, or entries would be acknowledged twice. Each node remembers, for each
// other node, the latest process and how often its directory had been opened by then:
//
//   - A process with fewer starts has an older copy and is rejected. So is another process with as
//     many starts: it has a copy, too.
//   - A process with more starts was started later: the node was restarted, or a copy of its
//     directory was started in parallel. So the recorded address of the node is probed. If another
//     process answers there with the same identity, that is the node, and the new process is
//     rejected. The reply says so, and the new process fails.
//
// A member rejects one of two processes, not both. Another process may answer at the recorded
// address that could not replace the recorded process (checkProcessOrder). The recorded process is
// not rejected because of it. If a copy is started while the node is down, the process that members
// see first continues: it may have acknowledged what the other lacks. If some members have seen one
// first and some the other, both are rejected.
//
// This memory is not persisted: a copy started while the node is down is rejected only if a running
// member remembers a later start.
type sessions struct {
	mu    sync.Mutex
	known map[string]peer.Process
}

func newSessions() *sessions { return &sessions{known: map[string]peer.Process{}} }

// latest returns the latest process of a node.
func (s *sessions) latest(node string) (peer.Process, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[node]
	return known, ok
}

// update records a process of a node, or returns a *DirectoryCopiedError. For a new process it
// calls probe, without holding mu. probe returns an error if another process answers at the node's
// address, and informs that process of the new one.
func (s *sessions) update(node string, now peer.Process, probe func() error) error {
	if known, ok := s.latest(node); ok && known == now {
		return nil
	}
	if err := s.checkSuccessor(node, now); err != nil {
		_ = probe() // to inform the other process: this one is rejected whatever the answer
		return err
	}
	if err := probe(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := checkProcessOrder(node, s.known[node], now); err != nil {
		return err // another process was recorded during the probe
	}
	s.known[node] = now
	return nil
}

func (s *sessions) checkSuccessor(node string, now peer.Process) error {
	known, _ := s.latest(node)
	return checkProcessOrder(node, known, now)
}

// isLatest reports whether no other process of the node with the same identity is known.
func (s *sessions) isLatest(node string, of peer.Process) bool {
	known, ok := s.latest(node)
	return !ok || known.Identity != of.Identity || known.Session == of.Session
}

// checkProcessOrder returns a *DirectoryCopiedError unless a process may replace an earlier one.
func checkProcessOrder(node string, before, now peer.Process) error {
	switch {
	case before.Identity != now.Identity, before.Session == now.Session, before.Starts < now.Starts:
		return nil
	case before.Starts == now.Starts:
		return &DirectoryCopiedError{node, fmt.Sprintf("another process was seen before with the same directory, also opened %d times", now.Starts)}
	}
	return &DirectoryCopiedError{node, fmt.Sprintf("its directory was opened %d times, but one opened %d times was seen before: this is an older copy",
		now.Starts, before.Starts)}
}

// probeDirectory returns a *DirectoryCopiedError if another process with the same identity answers
// at the address of a member. That process is informed.
func (i *identities) probeDirectory(node string, as peer.Process) error {
	for _, server := range i.servers() {
		if string(server.ID) == node && node != i.config.Node {
			return i.probeAddress(node, peer.AddressOf(&server), as)
		}
	}
	return nil
}

func (i *identities) probeAddress(node, address string, as peer.Process) error {
	h := i.newHandshake(purposeProbe)
	known, _ := i.sessions.latest(node)
	if known != as {
		h.CopySession = as.Session
	}
	r, err := i.dialHandshake(context.Background(), address, h, probeTimeout)
	if err != nil || r.Node != node || r.Identity != as.Identity || r.Session == as.Session {
		return nil // nobody there, or another node: no other process has the directory
	}
	if known == as && checkProcessOrder(node, as, r.Process) != nil {
		return nil // the process there came later and is rejected itself
	}
	return &DirectoryCopiedError{node, fmt.Sprintf("another process answers at %s with the same directory", address)}
}

// answersAt reports whether a node answers at its address, with its directory.
func (i *identities) answersAt(ctx context.Context, p Peer) bool {
	if p.Identity == "" {
		return false
	}
	r, err := i.dialHandshake(ctx, p.Address, i.newHandshake(purposeProbe), probeTimeout)
	return err == nil && r.Node == p.Node && r.Identity == p.Identity
}

// CheckDirectoryCopy returns a *DirectoryCopiedError if a process other than p's, with the same
// identity, answers at the recorded address of the member.
func (i *identities) CheckDirectoryCopy(p Peer) error {
	if p.Identity == "" {
		return nil
	}
	return i.probeDirectory(p.Node, peer.Process{Identity: p.Identity, Starts: p.Starts, Session: p.Session})
}

// peerIdentities are the identities of other nodes seen by this one.
type peerIdentities struct {
	mu    sync.Mutex
	nodes map[string]string
}

func (p *peerIdentities) set(node, identity string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nodes == nil {
		p.nodes = map[string]string{}
	}
	p.nodes[node] = identity
}

func (p *peerIdentities) get(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[node]
}

// copyReports counts how often other nodes have reported a copy of this node's directory.
type copyReports struct {
	mu     sync.Mutex
	count  int
	latest time.Time
}

func (r *copyReports) add(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count, r.latest = r.count+1, time.Now()
}

// CopyReports returns how often other nodes have reported a process with a copy of this node's
// directory, and the time of the latest report.
func (i *identities) CopyReports() (count int, latest time.Time) {
	i.copyReports.mu.Lock()
	defer i.copyReports.mu.Unlock()
	return i.copyReports.count, i.copyReports.latest
}
