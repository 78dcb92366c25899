package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
)

// From protocol 3 on a node that opens a connection identifies itself first, and learns who is at
// the other end:
//
//	hello = "\xC8tenuto-hello-1" frame(JSON of handshake)
//	reply = frame(JSON of handshakeReply)
//
// Messages of Raft follow if the purpose is purposeRaft and nothing was rejected. While the cluster
// has recorded no identities, nodes send no handshakes, since some may run a build without them.
const (
	handshakeMagic = "\xC8tenuto-hello-1"
	// probeTimeout bounds the connection that checks whether another process answers at the address
	// of a member.
	probeTimeout = time.Second
)

// The purposes of connections that begin with a handshake.
const (
	purposeRaft     = "raft"  // messages of Raft follow
	purposeFounding = "found" // asks for the state of the founding
	purposeProbe    = "probe" // asks for the node's identity
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
	// Lineages are the LineageIDs of the sender. Builds without lineages send none, and ignore
	// them.
	Lineages []string `json:"lineages,omitempty"`
}

// handshakeReply is the answer to a handshake.
type handshakeReply struct {
	Node string `json:"node"`
	peer.Process
	// Rejection is why the connection is rejected; "" if it is not.
	Rejection string `json:"refusal,omitempty"` // earlier builds read this key
	// OtherDirectory means that the connection is rejected because the sender's identity is not
	// RecordedIdentity.
	OtherDirectory   bool   `json:"other,omitempty"`
	RecordedIdentity string `json:"recorded,omitempty"`
	// Copied means that the connection is rejected because another process has the sender's
	// identity.
	Copied bool `json:"copied,omitempty"`
	// Lineages are as in handshake; none if the sender names another cluster.
	Lineages []string `json:"lineages,omitempty"`
	// Founding is the answer to purposeFounding.
	Founding *foundingState `json:"founding,omitempty"`
}

// identities records the directory and the process of each node. It identifies this node to the
// others, and decides whose messages are accepted.
type identities struct {
	config *Config
	self   peer.Process
	// servers returns the members by the latest configuration in this node's log.
	servers    func() []raft.Server
	isServing  func() bool
	fail       func(error) error // fails this node
	rejections *transport.Rejections
	// dial opens a connection without a handshake.
	dial     func(address string, timeout time.Duration) (net.Conn, error)
	lineages *lineages
	// foundingStateFor answers a node that wants to found a partition.
	foundingStateFor func(h *handshake) *foundingState

	identityRecorded   atomic.Bool // this node's own identity; never reset
	sessions           *sessions
	peerIdentities     peerIdentities
	copyReports        copyReports
	directoryRejection atomic.Pointer[DirectoryError]
}

// newHandshake returns a handshake of this node.
func (i *identities) newHandshake(purpose string) *handshake {
	return &handshake{Purpose: purpose, Cluster: i.config.Cluster, Node: i.config.Node, Process: i.self, Lineages: i.lineages.LineageIDs()}
}

// performHandshake identifies this node on a connection that it has opened for Raft, and verifies
// that the other end has the recorded identity.
func (i *identities) performHandshake(conn net.Conn, to string, timeout time.Duration) error {
	h := i.newHandshake(purposeRaft)
	h.ExpectedIdentity = to
	r, err := exchangeHandshake(conn, h, timeout)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if err := i.lineages.CheckLineages(r.Node, r.Lineages); err != nil {
		i.rejections.Add(r.Node, err)
		return err
	}
	if err := i.handleRejection(r); err != nil {
		return err
	}
	if to != "" && r.Identity != to {
		err := &DirectoryError{Node: r.Node, Identity: r.Identity, Recorded: to}
		i.rejections.Add(r.Node, err)
		return err
	}
	if r.Rejection != "" {
		return fmt.Errorf("rejected by %s: %s", r.Node, r.Rejection)
	}
	i.peerIdentities.set(r.Node, r.Identity)
	return i.sessions.update(r.Node, r.Process, func() error { return nil })
}

// handleRejection handles a rejection that concerns this node's own directory.
func (i *identities) handleRejection(r *handshakeReply) error {
	switch {
	case r.Copied:
		err := &DirectoryCopiedError{Node: i.config.Node, Reason: r.Rejection}
		_ = i.fail(err)
		return err
	case r.OtherDirectory:
		err := &DirectoryError{Node: i.config.Node, Identity: i.self.Identity, Recorded: r.RecordedIdentity}
		i.recordDirectoryRejection(r.Node, err)
		return err
	}
	return nil
}

// recordDirectoryRejection records that another node has rejected this one because of its
// directory.
func (i *identities) recordDirectoryRejection(by string, err *DirectoryError) {
	before := i.directoryRejection.Swap(err)
	if before == nil || *before != *err {
		i.config.Logger.Error("rejected by the cluster until this node's directory is adopted or the node is replaced",
			"by", by, "error", err)
	}
}

// DirectoryRejection returns why other nodes reject this one: they have recorded another directory
// for it. It returns nil if none has rejected it, or if it has been accepted since.
func (i *identities) DirectoryRejection() error {
	if err := i.directoryRejection.Load(); err != nil {
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

// dialHandshake sends a handshake to the node at an address over a separate connection, which it
// closes. The answer counts even if the other end closes the connection at once. ctx ends it early.
func (i *identities) dialHandshake(ctx context.Context, address string, h *handshake, timeout time.Duration) (*handshakeReply, error) {
	conn, err := i.dial(address, timeout)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
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

// AnswerHandshake implements transport.Identities.
func (i *identities) AnswerHandshake(conn net.Conn, from transport.Sender) (transport.Sender, bool) {
	_ = conn.SetDeadline(time.Now().Add(transport.IOTimeout))
	h, err := readHandshake(conn)
	if err != nil {
		return from, false
	}
	r := i.replyToHandshake(h, from.Node)
	_ = conn.SetDeadline(time.Now().Add(transport.IOTimeout)) // finding the answer may have taken a while
	if err := frame.WriteJSON(conn, "", r); err != nil || r.Rejection != "" || h.Purpose != purposeRaft {
		return from, false
	}
	_ = conn.SetDeadline(time.Time{})
	return transport.Sender{Node: h.Node, IsAuthenticated: from.IsAuthenticated, Process: h.Process}, true
}

// Authorize implements transport.Identities.
func (i *identities) Authorize(from transport.Sender) error {
	if from.Identity != "" && !i.sessions.isLatest(from.Node, from.Process) {
		return fmt.Errorf("%w: a later process of %s is known", transport.ErrUnknownMember, from.Node)
	}
	return i.authorizeSender(from)
}

// replyToHandshake answers a handshake. authenticated is the sender that the connection proves, ""
// if unknown. The connection may be used for Raft if the reply has no Rejection.
func (i *identities) replyToHandshake(h *handshake, authenticated string) *handshakeReply {
	r := &handshakeReply{Node: i.config.Node, Process: i.self}
	if h.Cluster == i.config.Cluster {
		r.Lineages = i.lineages.LineageIDs()
	}
	err := i.checkHandshake(h, authenticated)
	var other *DirectoryError
	switch {
	case err == nil && h.Purpose == purposeFounding:
		r.Founding = i.foundingStateFor(h)
	case err == nil && h.Purpose == purposeProbe && h.CopySession != "" && h.CopySession != i.self.Session:
		i.copyReports.add(h.Node)
		i.config.Logger.Error("process with a copy of this node's directory rejected: find and stop it; this node continues",
			"reported_by", h.Node)
	case errors.As(err, &other):
		r.OtherDirectory, r.RecordedIdentity = true, other.Recorded
	case errors.Is(err, ErrDirectoryCopied):
		r.Copied = true
	}
	if err != nil {
		r.Rejection = err.Error()
		var copied *DirectoryCopiedError
		if errors.As(err, &copied) {
			r.Rejection = copied.Reason
		}
		i.rejections.Add(h.Node, err)
	}
	return r
}

// checkHandshake returns an error if the connection must be rejected.
func (i *identities) checkHandshake(h *handshake, authenticated string) error {
	switch {
	case h.Cluster != i.config.Cluster:
		return fmt.Errorf("%w: it belongs to cluster %.100q", transport.ErrUnknownMember, h.Cluster)
	case authenticated != "" && h.Node != authenticated:
		return fmt.Errorf("%w: %s claims to be %.100q", transport.ErrForgedSender, authenticated, h.Node)
	case h.Purpose == purposeProbe || h.Purpose == purposeFounding:
		return nil
	}
	if err := i.lineages.CheckLineages(h.Node, h.Lineages); err != nil {
		return err
	}
	if h.ExpectedIdentity != "" && h.ExpectedIdentity != i.self.Identity {
		i.recordMisdirected(h)
		// The other end sees our identity in the reply and closes the connection.
		return fmt.Errorf("the message is for a node with directory %s; this one has %s: it was wiped, or has another Config.Dir", h.ExpectedIdentity, i.self.Identity)
	}
	if err := i.authorizeSender(transport.Sender{Node: h.Node, IsAuthenticated: authenticated != "", Process: h.Process}); err != nil {
		return err
	}
	if err := i.sessions.update(h.Node, h.Process, func() error { return i.probeDirectory(h.Node, h.Process) }); err != nil {
		return err
	}
	if h.ExpectedIdentity != "" {
		i.directoryRejection.Store(nil)
	}
	return nil
}

// recordMisdirected records that a member expects another directory of this node, unless that
// member's log is older than this node's.
func (i *identities) recordMisdirected(h *handshake) {
	recorded, _ := i.recordedIdentity(i.config.Node)
	if _, known := i.recordedIdentity(h.Node); known && recorded == i.self.Identity {
		return
	}
	i.recordDirectoryRejection(h.Node, &DirectoryError{Node: i.config.Node, Identity: i.self.Identity, Recorded: h.ExpectedIdentity})
}

// authorizeSender returns an error if Raft messages of a sender must be rejected. It is called for
// each message.
func (i *identities) authorizeSender(s transport.Sender) error {
	recorded, member := i.recordedIdentity(s.Node)
	hinted := (s.Identity != "" || !member) && i.config.MemberHint != nil && i.config.MemberHint(s.Node, s.Identity)
	switch {
	case member && (recorded == s.Identity || recorded == ""):
		return nil
	case hinted:
		return nil // this node's log may lag
	case member:
		return &DirectoryError{Node: s.Node, Identity: s.Identity, Recorded: recorded}
	case len(i.servers()) == 0:
		if s.Identity == "" && !i.config.Join {
			return fmt.Errorf("%w: %s does not name the directory that it expects, and this one is empty", transport.ErrUnknownMember, s.Node)
		}
		return nil // this node's log is empty, so the sender knows more of the members
	case s.IsAuthenticated:
		return fmt.Errorf("%w: %s", transport.ErrUnknownMember, s.Node)
	}
	return nil // without TLS Raft itself decides about nodes that are not members
}

// EncodePeer returns the address that identifies this node in Raft's messages and votes: with its
// identity, once that is recorded.
func (i *identities) EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if string(id) != i.config.Node || !i.isServing() {
		return []byte(address)
	}
	if !i.identityRecorded.Load() {
		identity, _ := i.recordedIdentity(i.config.Node)
		if identity == "" {
			return []byte(address)
		}
		i.identityRecorded.Store(true)
	}
	return []byte(peer.Address(string(address), i.self.Identity))
}
