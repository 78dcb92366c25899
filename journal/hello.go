package journal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// From protocol 3 on a node that opens a connection says first who it is, and learns who is
// at the other end:
//
//	hello = "\xC8tenuto-hello-1" frame(JSON of hello)
//	reply = frame(JSON of helloReply)
//
// Messages of Raft follow when the purpose is purposeRaft and nothing was refused. No message of the
// Raft library begins like that. To a cluster in which no identity is recorded yet nothing
// is said: its nodes may be of a build that does not know the hello.
const (
	helloOpening = 0xC8
	helloMagic   = "\xC8tenuto-hello-1"
	// probeTimeout bounds the connection by which a node finds out whether another process
	// answers at the address of a member.
	probeTimeout = time.Second
)

// The purposes of connections that begin with a hello.
const (
	purposeRaft  = "raft"  // messages of Raft follow
	purposeFound = "found" // asks what the other knows of the founding
	purposeProbe = "probe" // asks who is there
)

// A hello is what a node says when it opens a connection.
type hello struct {
	Purpose string `json:"purpose"`
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node"`
	self
	// To is the identity that the other is to have; "" if none is recorded.
	To string `json:"to,omitempty"`
	// Rival is, in a probe, the session of another process that has shown the identity of
	// the node that is probed.
	Rival string `json:"rival,omitempty"`
}

// A helloReply is the answer.
type helloReply struct {
	Node string `json:"node"`
	self
	// Refusal says why nothing further is read; "" if it is.
	Refusal string `json:"refusal,omitempty"`
	// Other says that the refusal is because the sender has another identity than Recorded.
	Other    bool   `json:"other,omitempty"`
	Recorded string `json:"recorded,omitempty"`
	// Copied says that the refusal is because another process has the sender's identity.
	Copied bool `json:"copied,omitempty"`
	// Founding is the answer to purposeFound.
	Founding *foundingState `json:"founding,omitempty"`
}

// helloOf returns the hello of this node.
func (j *Journal) helloOf(purpose string) *hello {
	return &hello{Purpose: purpose, Cluster: j.config.Cluster, Node: j.config.Node, self: j.self}
}

// greet says hello on a connection that this node has opened for Raft to the member that is
// reached there, and makes sure that it has the recorded identity.
func (j *Journal) greet(conn net.Conn, to string, timeout time.Duration) error {
	h := j.helloOf(purposeRaft)
	h.To = to
	r, err := exchangeHello(conn, h, timeout)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if err := j.heed(r); err != nil {
		return err
	}
	if to != "" && r.Identity != to {
		err := &DirectoryError{Node: r.Node, Identity: r.Identity, Recorded: to}
		j.refusals.add(r.Node, err)
		return err
	}
	if r.Refusal != "" {
		return fmt.Errorf("refused by %s: %s", r.Node, r.Refusal)
	}
	j.learned.note(r.Node, r.Identity)
	return j.sessions.renew(r.Node, r.self, func() error { return nil })
}

// heed draws the consequences of a refusal that concerns this node's own directory.
func (j *Journal) heed(r *helloReply) error {
	switch {
	case r.Copied:
		err := &CopiedError{Node: j.config.Node, Reason: r.Refusal}
		j.fence.draw(err)
		return err
	case r.Other:
		err := &DirectoryError{Node: j.config.Node, Identity: j.self.Identity, Recorded: r.Recorded}
		j.disown(r.Node, err)
		return err
	}
	return nil
}

// disown notes that another node has refused this one because of its directory.
func (j *Journal) disown(by string, err *DirectoryError) {
	before := j.disowned.Swap(err)
	if before == nil || *before != *err {
		j.config.Logger.Error("refused by the cluster: this node takes no part until its directory is adopted or the node is replaced",
			"by", by, "error", err)
	}
}

// Disowned returns why other nodes refuse this one: it has another directory than they have
// recorded. It returns nil if none has, or if this node has been accepted since.
func (j *Journal) Disowned() error {
	if err := j.disowned.Load(); err != nil {
		return err
	}
	return nil
}

// exchangeHello says hello and returns the answer. The connection keeps a deadline.
func exchangeHello(conn net.Conn, h *hello, timeout time.Duration) (*helloReply, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if err := writeAsk(conn, helloMagic, h); err != nil {
		return nil, fmt.Errorf("say hello: %w", err)
	}
	var r helloReply
	if err := readAsk(conn, &r); err != nil {
		return nil, fmt.Errorf("read the answer to a hello: %w", err)
	}
	return &r, nil
}

// sayHello says hello to the node at an address, over a connection of its own. An answer counts
// even if the other end closes the connection at once.
func (j *Journal) sayHello(address string, h *hello, timeout time.Duration) (*helloReply, error) {
	conn, err := j.streams.dialPlain(address, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return exchangeHello(conn, h, timeout)
}

// readHello reads what follows the first byte of a hello.
func readHello(from io.Reader) (*hello, error) {
	magic := make([]byte, len(helloMagic)-1)
	if _, err := io.ReadFull(from, magic); err != nil {
		return nil, err
	}
	if string(magic) != helloMagic[1:] {
		return nil, fmt.Errorf("a hello that begins with %q", magic)
	}
	h := new(hello)
	if err := readAsk(from, h); err != nil {
		return nil, fmt.Errorf("read hello: %w", err)
	}
	return h, nil
}

// answerHello answers a hello. proven is who has sent it by the connection, "" if that is
// not known. The connection is of use for Raft if the reply refuses nothing.
func (j *Journal) answerHello(h *hello, proven string) *helloReply {
	r := &helloReply{Node: j.config.Node, self: j.self}
	err := j.admitHello(h, proven)
	var other *DirectoryError
	switch {
	case err == nil && h.Purpose == purposeFound:
		r.Founding = j.foundingFor(h)
	case err == nil && h.Purpose == purposeProbe && h.Rival != "" && h.Rival != j.self.Session:
		j.rivals.add(h.Node)
		j.config.Logger.Error("a process with a copy of this node's directory was refused: find and stop it; this node goes on",
			"told_by", h.Node)
	case errors.As(err, &other):
		r.Other, r.Recorded = true, other.Recorded
	case errors.Is(err, ErrCopied):
		r.Copied = true
	}
	if err != nil {
		r.Refusal = err.Error()
		var copied *CopiedError
		if errors.As(err, &copied) {
			r.Refusal = copied.Reason
		}
		j.refusals.add(h.Node, err)
	}
	return r
}

// admitHello returns why a connection is refused.
func (j *Journal) admitHello(h *hello, proven string) error {
	switch {
	case h.Cluster != j.config.Cluster:
		return fmt.Errorf("%w: it is of the cluster %.100q", errStranger, h.Cluster)
	case proven != "" && h.Node != proven:
		return fmt.Errorf("%w: %s claims to be %.100q", errForged, proven, h.Node)
	case h.Purpose == purposeProbe || h.Purpose == purposeFound:
		return nil
	case h.To != "" && h.To != j.self.Identity:
		j.misdirected(h)
		// The other end sees that in the reply, and closes the connection.
		return fmt.Errorf("%w: the message is for the directory %s, this is %s", errForged, h.To, j.self.Identity)
	}
	if err := j.admitSender(sender{h.Node, proven != "", h.self}); err != nil {
		return err
	}
	if err := j.sessions.renew(h.Node, h.self, func() error { return j.probe(h.Node, h.self) }); err != nil {
		return err
	}
	if h.To != "" {
		j.disowned.Store(nil)
	}
	return nil
}

// misdirected notes that a member has recorded another directory of this node than it has,
// unless that member's log is behind what this node knows.
func (j *Journal) misdirected(h *hello) {
	recorded, _ := j.recorded(j.config.Node)
	if _, known := j.recorded(h.Node); known && recorded == j.self.Identity {
		return
	}
	j.disown(h.Node, &DirectoryError{Node: j.config.Node, Identity: j.self.Identity, Recorded: h.To})
}

// A sender is who is at the other end of a connection.
type sender struct {
	node   string // "" if that is not known
	proven bool   // by the connection: with TLS
	self          // as the hello has said; zero without one
}

// admitSender returns why messages of Raft of a node are not taken. It is asked about each.
func (j *Journal) admitSender(s sender) error {
	recorded, member := j.recorded(s.node)
	vouched := (s.Identity != "" || !member) && j.config.Vouched != nil && j.config.Vouched(s.node, s.Identity)
	switch {
	case member && (recorded == s.Identity || recorded == ""):
		return nil
	case vouched:
		return nil // this node's log may be behind
	case member:
		return &DirectoryError{Node: s.node, Identity: s.Identity, Recorded: recorded}
	case len(j.servers()) == 0:
		if s.Identity == "" && !j.config.Join {
			return fmt.Errorf("%w: %s does not say for which directory it takes this one, which is empty", errStranger, s.node)
		}
		return nil // who has named this node's identity knows more than this node
	case s.proven:
		return fmt.Errorf("%w: %s", errStranger, s.node)
	}
	return nil // without TLS Raft itself decides about a node that is no member
}

// encodePeer returns the address by which Raft tells this node from others in its messages
// and in votes: with its identity, from when on that is recorded.
func (j *Journal) encodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if string(id) != j.config.Node || !j.isServing() {
		return []byte(address)
	}
	if !j.selfRecorded.Load() {
		identity, _ := j.recorded(j.config.Node)
		if identity == "" {
			return []byte(address)
		}
		j.selfRecorded.Store(true)
	}
	return []byte(withIdentity(string(address), j.self.Identity))
}
