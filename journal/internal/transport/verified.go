package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/peer"
)

// Identities verifies the directories and the processes of the nodes.
type Identities interface {
	// AnswerHandshake answers the handshake on an accepted connection, whose first byte has been
	// read. from is the sender as far as the connection proves it. AnswerHandshake returns the
	// Sender that the handshake names, and reports whether messages of Raft follow.
	AnswerHandshake(conn net.Conn, from Sender) (Sender, bool)
	// Authorize returns an error if Raft messages of a sender must be rejected. It is called for
	// each message.
	Authorize(from Sender) error
	// EncodePeer returns the address that identifies this node in Raft's messages.
	EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte
}

// AppliedEntries recognizes what a leader sends although it is applied here.
type AppliedEntries interface {
	// IncludeSnapshot reports whether everything in a snapshot of the current leader is applied.
	IncludeSnapshot(request *raft.InstallSnapshotRequest) bool
	// Trim lets Raft accept a request that begins at an applied entry that Raft cannot compare: it
	// removes the applied entries, and the entry to compare.
	Trim(request *raft.AppendEntriesRequest)
}

// Verified verifies the sender of each message before Raft sees it. The Raft library's
// transport does not reveal on which connection a message came, so each accepted connection gets
// its own transport.
type Verified struct {
	*raft.NetworkTransport // for what this node sends
	streams                *Streams
	isMember               func(node string) bool
	rejections             *Rejections
	logger                 hclog.Logger
	// DelayPreVote, if set, returns when Raft should see a request for a pre-vote, or the transport
	// is closing.
	DelayPreVote func(request *raft.RequestPreVoteRequest, closing <-chan struct{})
	// Applied, if set, recognizes what is applied here.
	Applied AppliedEntries
	// Identities, if set, answers handshakes and authorizes senders, instead of isMember.
	Identities Identities
	// ReportCommit, if set, gets the commit index of each message about entries.
	ReportCommit func(term, commit uint64)

	messages  chan raft.RPC                  // to Raft
	heartbeat atomic.Pointer[func(raft.RPC)] // set before connections are accepted
	closing   chan struct{}
	running   sync.WaitGroup
}

// NewVerified returns a transport on streams, which it closes. isMember reports whether a node is a
// member; rejections counts the rejected messages.
func NewVerified(s *Streams, isMember func(string) bool, rejections *Rejections, logger hclog.Logger) *Verified {
	t := &Verified{
		streams: s, isMember: isMember, rejections: rejections, logger: logger,
		messages: make(chan raft.RPC), closing: make(chan struct{}),
	}
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: &dialLayer{Streams: s, closing: t.closing}, MaxPool: pooledConnsMax, Timeout: IOTimeout, Logger: logger,
	})
	t.running.Go(t.accept)
	return t
}

// Consumer implements raft.Transport.
func (v *Verified) Consumer() <-chan raft.RPC { return v.messages }

// SetHeartbeatHandler implements raft.Transport.
func (v *Verified) SetHeartbeatHandler(handle func(raft.RPC)) { v.heartbeat.Store(&handle) }

// Close implements raft.WithClose.
func (v *Verified) Close() error {
	err := v.NetworkTransport.Close() // also closes the streams
	v.running.Wait()
	return err
}

// acceptRetryInterval is the pause after a failed accept.
const acceptRetryInterval = 100 * time.Millisecond

func (v *Verified) accept() {
	for {
		conn, err := v.streams.Accept()
		if err == nil {
			v.running.Go(func() { v.receive(conn) })
			continue
		}
		select {
		case <-v.closing:
			return
		case <-time.After(acceptRetryInterval):
		}
	}
}

// receive passes on messages of a connection until it ends.
func (v *Verified) receive(conn net.Conn) {
	sender, ok := v.classify(conn)
	if !ok {
		_ = conn.Close()
		return
	}
	ends := &closeNotifyConn{Conn: conn, closedCh: make(chan struct{})}
	in := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: &acceptLayer{conn: ends, acceptSlot: make(chan struct{}, 1), closing: make(chan struct{})}, Timeout: IOTimeout, Logger: v.logger,
	})
	defer in.Close() // also closes the connection
	in.SetHeartbeatHandler(func(message raft.RPC) {
		if v.admit(sender, message) {
			(*v.heartbeat.Load())(message)
		}
	})
	for {
		select {
		case message := <-in.Consumer():
			if !v.admit(sender, message) {
				if message.Reader != nil {
					return // an unread snapshot follows the message
				}
				continue
			}
			if message.Reader != nil {
				message.Reader = &snapshotReader{from: message.Reader, conn: conn}
			}
			if v.skipAppliedSnapshot(message) {
				continue
			}
			if entries, ok := message.Command.(*raft.AppendEntriesRequest); ok {
				v.receiveEntries(entries)
			}
			if preVote, ok := message.Command.(*raft.RequestPreVoteRequest); ok && v.DelayPreVote != nil {
				// Nothing else comes over this connection before it is answered.
				v.DelayPreVote(preVote, v.closing)
			}
			select {
			case v.messages <- message:
			case <-v.closing:
				return
			}
		case <-ends.closedCh:
			return
		case <-v.closing:
			return
		}
	}
}

// receiveEntries handles a request about entries before Raft does. It lets Raft commit only what
// the request has compared: min(leaderCommit, index of last new entry) in Ongaro and Ousterhout, In
// Search of an Understandable Consensus Algorithm, figure 2. The Raft library commits up to the end
// of its log, where entries of an earlier leader may follow.
func (v *Verified) receiveEntries(request *raft.AppendEntriesRequest) {
	if v.ReportCommit != nil {
		v.ReportCommit(request.Term, request.LeaderCommitIndex)
	}
	compared := request.PrevLogEntry + uint64(len(request.Entries))
	request.LeaderCommitIndex = min(request.LeaderCommitIndex, compared)
	if v.Applied != nil {
		v.Applied.Trim(request)
	}
}

// classify determines the purpose of a connection and its sender. It reports whether messages of
// Raft follow.
func (v *Verified) classify(conn net.Conn) (Sender, bool) {
	from := Sender{Node: SenderOf(conn)}
	from.IsAuthenticated = from.Node != ""
	in, ok := conn.(*incomingConn)
	if !ok {
		return from, true
	}
	switch start, forRaft := in.classify(); {
	case !forRaft:
		return from, false
	case start != handshakeFirstByte:
		return from, true
	case v.Identities == nil:
		return from, false
	}
	return v.Identities.AnswerHandshake(in, from)
}

// skipAppliedSnapshot answers for Raft when a leader sends a snapshot of what is already applied
// here. The leader may not have received the answer that it was installed, or another snapshot came
// first. Raft would undo what was applied since. Rejecting the snapshot would not help: the leader
// would send it again and again, and never entries.
func (v *Verified) skipAppliedSnapshot(message raft.RPC) bool {
	request, ok := message.Command.(*raft.InstallSnapshotRequest)
	if !ok || v.Applied == nil || !v.Applied.IncludeSnapshot(request) {
		return false
	}
	_, err := io.Copy(io.Discard, message.Reader)
	message.Respond(&raft.InstallSnapshotResponse{Term: request.Term, Success: err == nil}, err)
	return true
}

// snapshotReader reads a snapshot from a connection, and closes the connection if nothing arrives
// for IOTimeout. Raft does nothing else meanwhile, and the sender may be cut off.
type snapshotReader struct {
	from io.Reader
	conn net.Conn
}

// Read implements io.Reader.
func (r *snapshotReader) Read(b []byte) (int, error) {
	_ = r.conn.SetReadDeadline(time.Now().Add(IOTimeout))
	n, err := r.from.Read(b)
	_ = r.conn.SetReadDeadline(time.Time{})
	if err != nil && err != io.EOF {
		_ = r.conn.Close()
	}
	return n, err
}

// admit reports whether Raft may see a message; otherwise it answers the message with an error.
func (v *Verified) admit(from Sender, message raft.RPC) bool {
	err := v.checkMessage(from, message.Command)
	if err != nil {
		v.rejections.Add(from.Node, err)
		message.Respond(nil, err)
	}
	return err == nil
}

// Reasons to reject a message.
var (
	// ErrForgedSender means that a message has the name of a node other than its sender.
	// ErrUnknownMember means that its sender is not a member.
	ErrForgedSender  = errors.New("sender claims another node's name")
	ErrUnknownMember = errors.New("sender is not a member")
	errMalformed     = errors.New("malformed message")
)

func (v *Verified) checkMessage(from Sender, command any) error {
	message, ok := command.(raft.WithRPCHeader)
	if !ok {
		return fmt.Errorf("%w: type %T", errMalformed, command)
	}
	claimed := string(message.GetRPCHeader().ID)
	if from.Node != "" && claimed != from.Node {
		return fmt.Errorf("%w: %s claims to be %.100q", ErrForgedSender, from.Node, claimed)
	}
	if err := v.checkSender(Sender{claimed, from.IsAuthenticated, from.Process}); err != nil {
		return err
	}
	if entries, ok := command.(*raft.AppendEntriesRequest); ok && !hasConsecutiveEntries(entries) {
		return fmt.Errorf("%w: entries with gaps", errMalformed)
	}
	return nil
}

// checkSender returns an error if messages of a sender must be rejected.
func (v *Verified) checkSender(from Sender) error {
	switch {
	case v.Identities != nil:
		return v.Identities.Authorize(from)
	case from.IsAuthenticated && !v.isMember(from.Node):
		return fmt.Errorf("%w: %s", ErrUnknownMember, from.Node)
	}
	return nil
}

// EncodePeer implements raft.Transport.
func (v *Verified) EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if v.Identities == nil {
		return v.NetworkTransport.EncodePeer(id, address)
	}
	return v.Identities.EncodePeer(id, address)
}

// hasConsecutiveEntries reports whether entries have consecutive indexes after PrevLogEntry. Raft
// does not check that, and panics when it reaches a gap.
func hasConsecutiveEntries(r *raft.AppendEntriesRequest) bool {
	for i, entry := range r.Entries {
		if entry == nil || entry.Index != r.PrevLogEntry+1+uint64(i) {
			return false
		}
	}
	return true
}

// SenderOf returns the node at the other end, "" if unknown.
func SenderOf(conn net.Conn) string {
	if in, ok := conn.(*incomingConn); ok {
		conn = in.stream
	}
	if s, ok := conn.(*stream); ok {
		conn = s.Conn
	}
	if known, ok := conn.(interface{ Sender() string }); ok {
		return known.Sender()
	}
	return ""
}

// Sender identifies the other end of a connection.
type Sender struct {
	Node            string // "" if unknown
	IsAuthenticated bool   // by the connection, with TLS
	peer.Process           // from the handshake; zero without one
}

// handshakeFirstByte begins a handshake. No message of the Raft library begins with it.
const handshakeFirstByte = 0xC8
