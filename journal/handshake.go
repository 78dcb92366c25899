package journal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/frame"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
)

// From protocol 3 on a node that opens a connection identifies itself first, and learns who is at
// the other end:
//
//	hello = "\xC8tenuto-hello-1" frame(JSON of handshake)
//	reply = frame(JSON of handshakeReply)
//
// Messages of Raft follow if the purpose is purposeRaft and nothing was refused. No message of the
// Raft library begins with 0xC8. While the cluster has recorded no identities, nodes send no
// handshakes, since some may run a build without them.
const (
	handshakeFirstByte = 0xC8
	handshakeMagic     = "\xC8tenuto-hello-1"
	// probeTimeout bounds the connection that checks whether another process answers at the address
	// of a member.
	probeTimeout = time.Second
)

// The purposes of connections that begin with a handshake.
const (
	purposeRaft      = "raft"  // messages of Raft follow
	purposeBootstrap = "found" // asks for the state of the founding
	purposeProbe     = "probe" // asks for the node's identity
)

// handshake is the first message on a connection.
type handshake struct {
	Purpose string `json:"purpose"`
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node"`
	peer.Process
	// ExpectedIdentity is the identity that the other end must have; "" if none is recorded.
	ExpectedIdentity string `json:"to,omitempty"`
	// CopySession is set only in a probe: the session of another process that has sent the same
	// identity as the probed node.
	CopySession string `json:"rival,omitempty"`
}

// handshakeReply is the answer to a handshake.
type handshakeReply struct {
	Node string `json:"node"`
	peer.Process
	// Refusal is why the connection is refused; "" if it is not.
	Refusal string `json:"refusal,omitempty"`
	// OtherDirectory means that the connection is refused because the sender's identity is not
	// RecordedIdentity.
	OtherDirectory   bool   `json:"other,omitempty"`
	RecordedIdentity string `json:"recorded,omitempty"`
	// Copied means that the connection is refused because another process has the sender's
	// identity.
	Copied bool `json:"copied,omitempty"`
	// Bootstrap is the answer to purposeBootstrap.
	Bootstrap *bootstrapState `json:"founding,omitempty"`
}

// newHandshake returns a handshake of this node.
func (j *Journal) newHandshake(purpose string) *handshake {
	return &handshake{Purpose: purpose, Cluster: j.config.Cluster, Node: j.config.Node, Process: j.self}
}

// performHandshake identifies this node on a connection that it has opened for Raft, and verifies
// that the other end has the recorded identity.
func (j *Journal) performHandshake(conn net.Conn, to string, timeout time.Duration) error {
	h := j.newHandshake(purposeRaft)
	h.ExpectedIdentity = to
	r, err := exchangeHandshake(conn, h, timeout)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if err := j.handleRefusal(r); err != nil {
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
	j.peerIdentities.set(r.Node, r.Identity)
	return j.sessions.update(r.Node, r.Process, func() error { return nil })
}

// handleRefusal handles a refusal that concerns this node's own directory.
func (j *Journal) handleRefusal(r *handshakeReply) error {
	switch {
	case r.Copied:
		err := &DirectoryCopiedError{Node: j.config.Node, Reason: r.Refusal}
		_ = j.failStop.Fail(err)
		return err
	case r.OtherDirectory:
		err := &DirectoryError{Node: j.config.Node, Identity: j.self.Identity, Recorded: r.RecordedIdentity}
		j.recordDirectoryRefusal(r.Node, err)
		return err
	}
	return nil
}

// recordDirectoryRefusal records that another node has refused this one because of its directory.
func (j *Journal) recordDirectoryRefusal(by string, err *DirectoryError) {
	before := j.directoryRefusal.Swap(err)
	if before == nil || *before != *err {
		j.config.Logger.Error("refused by the cluster until this node's directory is adopted or the node is replaced",
			"by", by, "error", err)
	}
}

// DirectoryRefusal returns why other nodes refuse this one: they have recorded another directory
// for it. It returns nil if none has refused it, or if it has been accepted since.
func (j *Journal) DirectoryRefusal() error {
	if err := j.directoryRefusal.Load(); err != nil {
		return err
	}
	return nil
}

// exchangeHandshake sends a handshake and returns the answer. It does not clear the deadline of the
// connection.
func exchangeHandshake(conn net.Conn, h *handshake, timeout time.Duration) (*handshakeReply, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if err := frame.WriteJSON(conn, handshakeMagic, h); err != nil {
		return nil, fmt.Errorf("send handshake: %w", err)
	}
	var r handshakeReply
	if err := frame.ReadJSON(conn, &r); err != nil {
		return nil, fmt.Errorf("read handshake reply: %w", err)
	}
	return &r, nil
}

// dialHandshake sends a handshake to the node at an address over a separate connection. The answer
// counts even if the other end closes the connection at once.
func (j *Journal) dialHandshake(address string, h *handshake, timeout time.Duration) (*handshakeReply, error) {
	conn, err := j.streams.dialPlain(address, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return exchangeHandshake(conn, h, timeout)
}

// readHandshake reads a handshake after its first byte.
func readHandshake(from io.Reader) (*handshake, error) {
	magic := make([]byte, len(handshakeMagic)-1)
	if _, err := io.ReadFull(from, magic); err != nil {
		return nil, err
	}
	if string(magic) != handshakeMagic[1:] {
		return nil, fmt.Errorf("handshake begins with %q", magic)
	}
	h := new(handshake)
	if err := frame.ReadJSON(from, h); err != nil {
		return nil, fmt.Errorf("read handshake: %w", err)
	}
	return h, nil
}

// replyToHandshake answers a handshake. authenticated is the sender that the connection proves, ""
// if unknown. The connection may be used for Raft if the reply has no Refusal.
func (j *Journal) replyToHandshake(h *handshake, authenticated string) *handshakeReply {
	r := &handshakeReply{Node: j.config.Node, Process: j.self}
	err := j.checkHandshake(h, authenticated)
	var other *DirectoryError
	switch {
	case err == nil && h.Purpose == purposeBootstrap:
		r.Bootstrap = j.bootstrapStateFor(h)
	case err == nil && h.Purpose == purposeProbe && h.CopySession != "" && h.CopySession != j.self.Session:
		j.copyReports.add(h.Node)
		j.config.Logger.Error("process with a copy of this node's directory refused: find and stop it; this node continues",
			"told_by", h.Node)
	case errors.As(err, &other):
		r.OtherDirectory, r.RecordedIdentity = true, other.Recorded
	case errors.Is(err, ErrDirectoryCopied):
		r.Copied = true
	}
	if err != nil {
		r.Refusal = err.Error()
		var copied *DirectoryCopiedError
		if errors.As(err, &copied) {
			r.Refusal = copied.Reason
		}
		j.refusals.add(h.Node, err)
	}
	return r
}

// checkHandshake returns an error if the connection must be refused.
func (j *Journal) checkHandshake(h *handshake, authenticated string) error {
	switch {
	case h.Cluster != j.config.Cluster:
		return fmt.Errorf("%w: it belongs to cluster %.100q", errUnknownMember, h.Cluster)
	case authenticated != "" && h.Node != authenticated:
		return fmt.Errorf("%w: %s claims to be %.100q", errForgedSender, authenticated, h.Node)
	case h.Purpose == purposeProbe || h.Purpose == purposeBootstrap:
		return nil
	case h.ExpectedIdentity != "" && h.ExpectedIdentity != j.self.Identity:
		j.recordMisdirected(h)
		// The other end sees our identity in the reply and closes the connection.
		return fmt.Errorf("%w: the message is for directory %s, this node has %s", errForgedSender, h.ExpectedIdentity, j.self.Identity)
	}
	if err := j.authorizeSender(sender{h.Node, authenticated != "", h.Process}); err != nil {
		return err
	}
	if err := j.sessions.update(h.Node, h.Process, func() error { return j.probeDirectory(h.Node, h.Process) }); err != nil {
		return err
	}
	if h.ExpectedIdentity != "" {
		j.directoryRefusal.Store(nil)
	}
	return nil
}

// recordMisdirected records that a member expects another directory of this node, unless that
// member's log lags behind what this node knows.
func (j *Journal) recordMisdirected(h *handshake) {
	recorded, _ := j.recordedIdentity(j.config.Node)
	if _, known := j.recordedIdentity(h.Node); known && recorded == j.self.Identity {
		return
	}
	j.recordDirectoryRefusal(h.Node, &DirectoryError{Node: j.config.Node, Identity: j.self.Identity, Recorded: h.ExpectedIdentity})
}

// sender identifies the other end of a connection.
type sender struct {
	node            string // "" if unknown
	isAuthenticated bool   // by the connection, with TLS
	peer.Process           // from the handshake; zero without one
}

// authorizeSender returns an error if Raft messages of a sender must be refused. It is called for
// each message.
func (j *Journal) authorizeSender(s sender) error {
	recorded, member := j.recordedIdentity(s.node)
	hinted := (s.Identity != "" || !member) && j.config.MemberHint != nil && j.config.MemberHint(s.node, s.Identity)
	switch {
	case member && (recorded == s.Identity || recorded == ""):
		return nil
	case hinted:
		return nil // this node's log may lag
	case member:
		return &DirectoryError{Node: s.node, Identity: s.Identity, Recorded: recorded}
	case len(j.servers()) == 0:
		if s.Identity == "" && !j.config.Join {
			return fmt.Errorf("%w: %s does not name the directory that it expects, and this one is empty", errUnknownMember, s.node)
		}
		return nil // this node's log is empty, so the sender knows more of the members
	case s.isAuthenticated:
		return fmt.Errorf("%w: %s", errUnknownMember, s.node)
	}
	return nil // without TLS Raft itself decides about nodes that are not members
}

// encodePeer returns the address that identifies this node in Raft's messages and votes: with its
// identity, once that is recorded.
func (j *Journal) encodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if string(id) != j.config.Node || !j.isServing() {
		return []byte(address)
	}
	if !j.identityRecorded.Load() {
		identity, _ := j.recordedIdentity(j.config.Node)
		if identity == "" {
			return []byte(address)
		}
		j.identityRecorded.Store(true)
	}
	return []byte(peer.Address(string(address), j.self.Identity))
}
