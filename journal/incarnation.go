package journal

import (
	"fmt"
	"sync"
	"time"
)

// Two processes can open two copies of one directory, on two machines. Both show the same
// identity, and only one may go on: what they acknowledge is acknowledged once. Each node
// remembers, of each other, the process that it has heard of last, and how often the
// directory of that had been opened by then:
//
//   - A process that shows fewer starts has an older copy. As many starts, by another
//     process, is a copy too. Neither is heard.
//   - One that shows more was started later: the node was restarted, or a copy of its
//     directory was started beside it. So the address that is recorded for the node is
//     asked: when another process answers there with the same identity, that is the node,
//     and the newcomer is not heard. It is told so and takes no further part.
//
// A member refuses one of two processes, and not both: one that it has heard of already is not
// refused because of another at the recorded address that could not take its place. So of a
// copy that is started while the node is down, and the node, the one that was heard of first
// goes on: it may have acknowledged what the other lacks. If some members have heard of the one
// and some of the other, both are refused.
//
// What it remembers is in memory: a copy that is started while the node is down is refused
// only if a running member remembers a later start.
type sessions struct {
	mu    sync.Mutex
	known map[string]self
}

func newSessions() *sessions { return &sessions{known: map[string]self{}} }

// of returns the process that was heard of last of a node.
func (s *sessions) of(node string) (self, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[node]
	return known, ok
}

// renew remembers a process of a node, or returns a *CopiedError. probe is called, without
// the lock, for each process that is not the one known already: it tells the process at the
// node's address of this one.
func (s *sessions) renew(node string, now self, probe func() error) error {
	if known, ok := s.of(node); ok && known == now {
		return nil
	}
	if err := s.mayFollow(node, now); err != nil {
		_ = probe() // to tell the other process: this one is refused whatever answers
		return err
	}
	if err := probe(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := follows(node, s.known[node], now); err != nil {
		return err // another came while the address was asked
	}
	s.known[node] = now
	return nil
}

func (s *sessions) mayFollow(node string, now self) error {
	known, _ := s.of(node)
	return follows(node, known, now)
}

// isLatest reports whether no later process of the node has been heard of.
func (s *sessions) isLatest(node string, of self) bool {
	known, ok := s.of(node)
	return !ok || known.Identity != of.Identity || known.Session == of.Session
}

// follows returns a *CopiedError unless a process may take the place of one before.
func follows(node string, before, now self) error {
	switch {
	case before.Identity != now.Identity, before.Session == now.Session, before.Starts < now.Starts:
		return nil
	case before.Starts == now.Starts:
		return &CopiedError{node, fmt.Sprintf("another process has shown the same directory, opened %d times, before", now.Starts)}
	}
	return &CopiedError{node, fmt.Sprintf("its directory was opened %d times, and one opened %d times was seen before: it is an older copy",
		now.Starts, before.Starts)}
}

// probe returns a *CopiedError if another process answers at the address of a member with
// the same identity, which is told.
func (j *Journal) probe(node string, as self) error {
	for _, server := range j.servers() {
		if string(server.ID) == node && node != j.config.Node {
			return j.probeAt(node, addressOf(&server), as)
		}
	}
	return nil
}

func (j *Journal) probeAt(node, address string, as self) error {
	h := j.helloOf(purposeProbe)
	known, _ := j.sessions.of(node)
	if known != as {
		h.Rival = as.Session
	}
	r, err := j.sayHello(address, h, probeTimeout)
	if err != nil || r.Node != node || r.Identity != as.Identity || r.Session == as.Session {
		return nil // nobody there, or somebody else: no other process has the directory
	}
	if known == as && follows(node, as, r.self) != nil {
		return nil // the one there came later, and is refused: not both are
	}
	return &CopiedError{node, fmt.Sprintf("another process answers at %s with the same directory", address)}
}

// CheckCopy returns a *CopiedError if another process than the one with that session answers
// at the recorded address of a member, with the identity that is recorded.
func (j *Journal) CheckCopy(p Peer) error {
	if p.Identity == "" {
		return nil
	}
	return j.probe(p.Node, self{p.Identity, p.Starts, p.Session})
}

// learned are the identities of others that this node has met.
type learned struct {
	mu    sync.Mutex
	nodes map[string]string
}

func (l *learned) note(node, identity string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nodes == nil {
		l.nodes = map[string]string{}
	}
	l.nodes[node] = identity
}

func (l *learned) of(node string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes[node]
}

// rivals are copies of this node's directory that others have told of.
type rivals struct {
	mu     sync.Mutex
	count  int
	latest time.Time
}

func (r *rivals) add(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count, r.latest = r.count+1, time.Now()
}

// Rivals returns how many times this node was told of a process with a copy of its
// directory, and when that was the last time.
func (j *Journal) Rivals() (count int, latest time.Time) {
	j.rivals.mu.Lock()
	defer j.rivals.mu.Unlock()
	return j.rivals.count, j.rivals.latest
}
