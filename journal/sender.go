package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/frame"
)

// Sender is a connection of a Network that knows the node at its other end. Raft messages on it are
// accepted in the name of that node only, and only while it is a member. For a connection that does
// not implement Sender, or returns "", the name in the message is trusted.
type Sender interface {
	Sender() string
}

// senderTransport verifies the sender of each message before Raft sees it. The Raft library's
// transport does not reveal on which connection a message came, so each accepted connection gets
// its own transport.
type senderTransport struct {
	*raft.NetworkTransport // for what this node sends
	streams                *streams
	isMember               func(node string) bool
	refusals               *refusals
	logger                 hclog.Logger
	// delayPreVote, if set, returns when Raft should see a request for a pre-vote, or the transport
	// is closing.
	delayPreVote func(request *raft.RequestPreVoteRequest, closing <-chan struct{})
	// hasAppliedSnapshot, if set, reports whether this node has applied everything in a snapshot.
	hasAppliedSnapshot func(request *raft.InstallSnapshotRequest) bool
	// journal, if set, answers handshakes and authorizes senders, instead of isMember.
	journal *Journal
	// reportCommit, if set, gets the commit index of each message about entries.
	reportCommit func(term, commit uint64)

	messages  chan raft.RPC                  // to Raft
	heartbeat atomic.Pointer[func(raft.RPC)] // set before connections are accepted
	closing   chan struct{}
	running   sync.WaitGroup
}

func newSenderTransport(s *streams, isMember func(string) bool, refusals *refusals, logger hclog.Logger) *senderTransport {
	t := &senderTransport{
		streams: s, isMember: isMember, refusals: refusals, logger: logger,
		messages: make(chan raft.RPC), closing: make(chan struct{}),
	}
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: &dialLayer{streams: s, closing: t.closing}, MaxPool: pooledConnsMax, Timeout: ioTimeout, Logger: logger,
	})
	t.running.Go(t.accept)
	return t
}

// Consumer implements raft.Transport.
func (t *senderTransport) Consumer() <-chan raft.RPC { return t.messages }

// SetHeartbeatHandler implements raft.Transport.
func (t *senderTransport) SetHeartbeatHandler(handle func(raft.RPC)) { t.heartbeat.Store(&handle) }

// Close implements raft.WithClose.
func (t *senderTransport) Close() error {
	err := t.NetworkTransport.Close() // also closes the streams
	t.running.Wait()
	return err
}

// acceptRetryInterval is the pause after a failed accept.
const acceptRetryInterval = 100 * time.Millisecond

func (t *senderTransport) accept() {
	for {
		conn, err := t.streams.Accept()
		if err == nil {
			t.running.Go(func() { t.receive(conn) })
			continue
		}
		select {
		case <-t.closing:
			return
		case <-time.After(acceptRetryInterval):
		}
	}
}

// receive passes on messages of a connection until it ends.
func (t *senderTransport) receive(conn net.Conn) {
	sender, ok := t.classify(conn)
	if !ok {
		_ = conn.Close()
		return
	}
	ends := &closeNotifyConn{Conn: conn, closedCh: make(chan struct{})}
	in := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: &acceptLayer{conn: ends, acceptSlot: make(chan struct{}, 1), closing: make(chan struct{})}, Timeout: ioTimeout, Logger: t.logger,
	})
	defer in.Close() // also closes the connection
	in.SetHeartbeatHandler(func(message raft.RPC) {
		if t.admit(sender, message) {
			(*t.heartbeat.Load())(message)
		}
	})
	for {
		select {
		case message := <-in.Consumer():
			if !t.admit(sender, message) {
				if message.Reader != nil {
					return // an unread snapshot follows the message
				}
				continue
			}
			if message.Reader != nil {
				message.Reader = &snapshotReader{from: message.Reader, conn: conn}
			}
			if t.skipAppliedSnapshot(message) {
				continue
			}
			if entries, ok := message.Command.(*raft.AppendEntriesRequest); ok && t.reportCommit != nil {
				t.reportCommit(entries.Term, entries.LeaderCommitIndex)
			}
			if preVote, ok := message.Command.(*raft.RequestPreVoteRequest); ok && t.delayPreVote != nil {
				// Nothing else comes over this connection before it is answered.
				t.delayPreVote(preVote, t.closing)
			}
			select {
			case t.messages <- message:
			case <-t.closing:
				return
			}
		case <-ends.closedCh:
			return
		case <-t.closing:
			return
		}
	}
}

// classify determines the purpose of a connection and its sender. It reports whether messages of
// Raft follow.
func (t *senderTransport) classify(conn net.Conn) (sender, bool) {
	from := sender{node: senderOf(conn)}
	from.isAuthenticated = from.node != ""
	in, ok := conn.(*incomingConn)
	if !ok {
		return from, true
	}
	switch start, forRaft := in.classify(); {
	case !forRaft:
		return from, false
	case start != handshakeFirstByte:
		return from, true
	case t.journal == nil:
		return from, false
	}
	_ = in.SetDeadline(time.Now().Add(ioTimeout))
	h, err := readHandshake(in)
	if err != nil {
		return from, false
	}
	r := t.journal.replyToHandshake(h, from.node)
	_ = in.SetDeadline(time.Now().Add(ioTimeout)) // finding the answer may have taken a while
	if err := frame.WriteJSON(in, "", r); err != nil || r.Refusal != "" || h.Purpose != purposeRaft {
		return from, false
	}
	_ = in.SetDeadline(time.Time{})
	return sender{h.Node, from.isAuthenticated, h.Process}, true
}

// skipAppliedSnapshot answers for Raft when a leader sends a snapshot of what is already applied
// here. The leader may not know that it was installed, or another snapshot came first. Raft would
// undo what was applied since. Refusing the snapshot would not help: the leader would send it again
// and again, and never entries.
func (t *senderTransport) skipAppliedSnapshot(message raft.RPC) bool {
	request, ok := message.Command.(*raft.InstallSnapshotRequest)
	if !ok || t.hasAppliedSnapshot == nil || !t.hasAppliedSnapshot(request) {
		return false
	}
	_, err := io.Copy(io.Discard, message.Reader)
	message.Respond(&raft.InstallSnapshotResponse{Term: request.Term, Success: err == nil}, err)
	return true
}

// snapshotReader reads a snapshot from a connection, and closes the connection if nothing arrives
// for ioTimeout. Raft does nothing else meanwhile, and the sender may be cut off.
type snapshotReader struct {
	from io.Reader
	conn net.Conn
}

// Read implements io.Reader.
func (r *snapshotReader) Read(b []byte) (int, error) {
	_ = r.conn.SetReadDeadline(time.Now().Add(ioTimeout))
	n, err := r.from.Read(b)
	_ = r.conn.SetReadDeadline(time.Time{})
	if err != nil && err != io.EOF {
		_ = r.conn.Close()
	}
	return n, err
}

// admit reports whether Raft may see a message; otherwise it answers the message with an error.
func (t *senderTransport) admit(from sender, message raft.RPC) bool {
	err := t.checkMessage(from, message.Command)
	if err != nil {
		t.refusals.add(from.node, err)
		message.Respond(nil, err)
	}
	return err == nil
}

// Reasons to refuse a message.
var (
	errForgedSender  = errors.New("sender claims another node's name")
	errUnknownMember = errors.New("sender is not a member")
	errMalformed     = errors.New("malformed message")
)

func (t *senderTransport) checkMessage(from sender, command any) error {
	message, ok := command.(raft.WithRPCHeader)
	if !ok {
		return fmt.Errorf("%w: type %T", errMalformed, command)
	}
	claimed := string(message.GetRPCHeader().ID)
	if from.node != "" && claimed != from.node {
		return fmt.Errorf("%w: %s claims to be %.100q", errForgedSender, from.node, claimed)
	}
	if err := t.checkSender(sender{claimed, from.isAuthenticated, from.Process}); err != nil {
		return err
	}
	if entries, ok := command.(*raft.AppendEntriesRequest); ok && !hasConsecutiveEntries(entries) {
		return fmt.Errorf("%w: entries with gaps", errMalformed)
	}
	return nil
}

// checkSender returns an error if messages of a sender must be refused.
func (t *senderTransport) checkSender(from sender) error {
	switch {
	case t.journal == nil:
		if from.isAuthenticated && !t.isMember(from.node) {
			return fmt.Errorf("%w: %s", errUnknownMember, from.node)
		}
		return nil
	case from.Identity != "" && !t.journal.sessions.isLatest(from.node, from.Process):
		return fmt.Errorf("%w: a later process of %s is known", errUnknownMember, from.node)
	}
	return t.journal.authorizeSender(from)
}

// EncodePeer implements raft.Transport.
func (t *senderTransport) EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if t.journal == nil {
		return t.NetworkTransport.EncodePeer(id, address)
	}
	return t.journal.encodePeer(id, address)
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

// senderOf returns the node at the other end, "" if unknown.
func senderOf(conn net.Conn) string {
	if in, ok := conn.(*incomingConn); ok {
		conn = in.stream
	}
	if s, ok := conn.(*stream); ok {
		conn = s.Conn
	}
	if known, ok := conn.(Sender); ok {
		return known.Sender()
	}
	return ""
}

// dialLayer is a stream layer that accepts no connections. The Raft library closes it first when it
// closes a transport.
type dialLayer struct {
	*streams
	closing chan struct{}
	once    sync.Once
}

// Accept implements net.Listener.
func (d *dialLayer) Accept() (net.Conn, error) {
	<-d.closing
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (d *dialLayer) Close() error {
	d.once.Do(func() { close(d.closing) })
	return d.streams.Close()
}

// acceptLayer is a stream layer with a single accepted connection.
type acceptLayer struct {
	conn       *closeNotifyConn
	acceptSlot chan struct{} // has room until the connection is returned
	closing    chan struct{}
	once       sync.Once
}

// Accept implements net.Listener.
func (a *acceptLayer) Accept() (net.Conn, error) {
	select {
	case a.acceptSlot <- struct{}{}:
		return a.conn, nil
	case <-a.closing:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (a *acceptLayer) Close() error {
	a.once.Do(func() { close(a.closing) })
	return a.conn.Close()
}

// Addr implements net.Listener.
func (a *acceptLayer) Addr() net.Addr { return a.conn.LocalAddr() }

// Dial implements raft.StreamLayer.
func (*acceptLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// closeNotifyConn is a connection that signals when it was closed.
type closeNotifyConn struct {
	net.Conn
	once     sync.Once
	closedCh chan struct{}
}

// Close implements net.Conn.
func (e *closeNotifyConn) Close() error {
	e.once.Do(func() { close(e.closedCh) })
	return e.Conn.Close()
}

// refusals counts refused messages and logs them at most once a second.
type refusals struct {
	logger *slog.Logger
	count  atomic.Uint64

	mu         sync.Mutex
	lastLogged time.Time
	omitted    int
}

func (r *refusals) add(sender string, reason error) {
	r.count.Add(1)
	if omitted, due := r.shouldLog(); due {
		r.logger.Warn("message refused", "sender", sender, "error", reason, "omitted", omitted)
	}
}

// shouldLog reports whether to log a refusal, and how many were omitted since the last one.
func (r *refusals) shouldLog() (omitted int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.lastLogged) < time.Second {
		r.omitted++
		return 0, false
	}
	omitted = r.omitted
	r.lastLogged, r.omitted = now, 0
	return omitted, true
}
