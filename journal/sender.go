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
)

// Sender is a connection of a Network's that knows who is at its other end.
// Messages of Raft's that come over it are taken in the name of that node alone,
// and only while it is a member. Of a connection that is none, or says "", the
// messages' own word is taken.
type Sender interface {
	Sender() string
}

// senderTransport checks of each message who has sent it, before Raft sees it. The
// Raft library's transport does not tell on which connection a message came, so
// each connection that is accepted gets a transport of its own.
type senderTransport struct {
	*raft.NetworkTransport // of what this node sends
	streams                *streams
	isMember               func(node string) bool
	refusals               *refusals
	logger                 hclog.Logger
	// holdBack, if there is one, returns when Raft is to see a request for a pre-vote,
	// or the transport is closing.
	holdBack func(request *raft.RequestPreVoteRequest, closing <-chan struct{})
	// has, if there is one, tells whether this node has come as far as a snapshot goes.
	has func(request *raft.InstallSnapshotRequest) bool
	// journal, if there is one, answers hellos and decides whose messages are taken, instead
	// of isMember.
	journal *Journal
	// told, if there is one, gets the commit index of each message about entries.
	told func(term, commit uint64)

	messages  chan raft.RPC                  // to Raft
	heartbeat atomic.Pointer[func(raft.RPC)] // set before anybody is let in
	closing   chan struct{}
	running   sync.WaitGroup
}

func newSenderTransport(s *streams, isMember func(string) bool, refusals *refusals, logger hclog.Logger) *senderTransport {
	t := &senderTransport{
		streams: s, isMember: isMember, refusals: refusals, logger: logger,
		messages: make(chan raft.RPC), closing: make(chan struct{}),
	}
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: &dialed{streams: s, closing: t.closing}, MaxPool: keptMax, Timeout: ioTimeout, Logger: logger,
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
	err := t.NetworkTransport.Close() // and of the streams
	t.running.Wait()
	return err
}

// acceptAgain is the pause after a connection could not be accepted.
const acceptAgain = 100 * time.Millisecond

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
		case <-time.After(acceptAgain):
		}
	}
}

// receive passes on what comes over a connection until it ends.
func (t *senderTransport) receive(conn net.Conn) {
	sender, ok := t.sort(conn)
	if !ok {
		_ = conn.Close()
		return
	}
	ends := &ending{Conn: conn, ended: make(chan struct{})}
	in := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: &accepted{conn: ends, left: make(chan struct{}, 1), closing: make(chan struct{})}, Timeout: ioTimeout, Logger: t.logger,
	})
	defer in.Close() // and of the connection
	in.SetHeartbeatHandler(func(message raft.RPC) {
		if t.admits(sender, message) {
			(*t.heartbeat.Load())(message)
		}
	})
	for {
		select {
		case message := <-in.Consumer():
			if !t.admits(sender, message) {
				if message.Reader != nil {
					return // a snapshot that nobody reads lies behind it
				}
				continue
			}
			if message.Reader != nil {
				message.Reader = &snapshotReader{from: message.Reader, conn: conn}
			}
			if t.skips(message) {
				continue
			}
			if entries, ok := message.Command.(*raft.AppendEntriesRequest); ok && t.told != nil {
				t.told(entries.Term, entries.LeaderCommitIndex)
			}
			if asks, ok := message.Command.(*raft.RequestPreVoteRequest); ok && t.holdBack != nil {
				t.holdBack(asks, t.closing) // nothing else comes over this connection before it is answered
			}
			select {
			case t.messages <- message:
			case <-t.closing:
				return
			}
		case <-ends.ended:
			return
		case <-t.closing:
			return
		}
	}
}

// sort finds out what a connection is for and who is at its other end. It reports
// whether messages of Raft follow.
func (t *senderTransport) sort(conn net.Conn) (sender, bool) {
	from := sender{node: senderOf(conn)}
	from.proven = from.node != ""
	in, ok := conn.(*incoming)
	if !ok {
		return from, true
	}
	switch opening, forRaft := in.sort(); {
	case !forRaft:
		return from, false
	case opening != helloOpening:
		return from, true
	case t.journal == nil:
		return from, false
	}
	_ = in.SetDeadline(time.Now().Add(ioTimeout))
	h, err := readHello(in)
	if err != nil {
		return from, false
	}
	r := t.journal.answerHello(h, from.node)
	_ = in.SetDeadline(time.Now().Add(ioTimeout)) // to find the answer may have taken a while
	if err := writeAsk(in, "", r); err != nil || r.Refusal != "" || h.Purpose != purposeRaft {
		return from, false
	}
	_ = in.SetDeadline(time.Time{})
	return sender{h.Node, from.proven, h.self}, true
}

// skips answers for Raft when a leader sends a snapshot of what is here already: again,
// because it has not heard that it was installed, or after another. Raft would take back
// what has come since, and so would have to refuse it as often as it is sent, and entries would never
// follow.
func (t *senderTransport) skips(message raft.RPC) bool {
	request, ok := message.Command.(*raft.InstallSnapshotRequest)
	if !ok || t.has == nil || !t.has(request) {
		return false
	}
	_, err := io.Copy(io.Discard, message.Reader)
	message.Respond(&raft.InstallSnapshotResponse{Term: request.Term, Success: err == nil}, err)
	return true
}

// snapshotReader reads a snapshot that comes over a connection, and ends the connection
// when nothing has come for ioTimeout: Raft does nothing else meanwhile, and the sender
// may have been cut off.
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

// admits tells whether Raft is to see a message; otherwise it is answered.
func (t *senderTransport) admits(from sender, message raft.RPC) bool {
	err := t.check(from, message.Command)
	if err != nil {
		t.refusals.add(from.node, err)
		message.Respond(nil, err)
	}
	return err == nil
}

// Why a message is refused.
var (
	errForged    = errors.New("a message in the name of another node")
	errStranger  = errors.New("a message of a node that is no member")
	errMalformed = errors.New("a message that no leader sends")
)

func (t *senderTransport) check(from sender, command any) error {
	message, ok := command.(raft.WithRPCHeader)
	if !ok {
		return fmt.Errorf("%w: a %T", errMalformed, command)
	}
	claimed := string(message.GetRPCHeader().ID)
	if from.node != "" && claimed != from.node {
		return fmt.Errorf("%w: %s claims to be %.100q", errForged, from.node, claimed)
	}
	if err := t.checkSender(sender{claimed, from.proven, from.self}); err != nil {
		return err
	}
	if entries, ok := command.(*raft.AppendEntriesRequest); ok && !follow(entries) {
		return fmt.Errorf("%w: entries with gaps", errMalformed)
	}
	return nil
}

// checkSender returns why nothing is taken of a node.
func (t *senderTransport) checkSender(from sender) error {
	switch {
	case t.journal == nil:
		if from.proven && !t.isMember(from.node) {
			return fmt.Errorf("%w: %s", errStranger, from.node)
		}
		return nil
	case from.Identity != "" && !t.journal.sessions.isLatest(from.node, from.self):
		return fmt.Errorf("%w: a later process of %s has been heard of", errStranger, from.node)
	}
	return t.journal.admitSender(from)
}

// EncodePeer implements raft.Transport.
func (t *senderTransport) EncodePeer(id raft.ServerID, address raft.ServerAddress) []byte {
	if t.journal == nil {
		return t.NetworkTransport.EncodePeer(id, address)
	}
	return t.journal.encodePeer(id, address)
}

// follow tells whether entries follow each other and what they are to follow. Raft
// itself would believe it, and panic when it comes to a gap.
func follow(r *raft.AppendEntriesRequest) bool {
	for i, entry := range r.Entries {
		if entry == nil || entry.Index != r.PrevLogEntry+1+uint64(i) {
			return false
		}
	}
	return true
}

// senderOf returns who is at the other end, "" if that is not known.
func senderOf(conn net.Conn) string {
	if in, ok := conn.(*incoming); ok {
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

// dialed is a stream layer on which nobody comes in. The Raft library closes it
// when it knows that it is closing.
type dialed struct {
	*streams
	closing chan struct{}
	once    sync.Once
}

// Accept implements net.Listener.
func (d *dialed) Accept() (net.Conn, error) {
	<-d.closing
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (d *dialed) Close() error {
	d.once.Do(func() { close(d.closing) })
	return d.streams.Close()
}

// accepted is a stream layer of one connection that has come in.
type accepted struct {
	conn    *ending
	left    chan struct{} // has room until the connection is handed out
	closing chan struct{}
	once    sync.Once
}

// Accept implements net.Listener.
func (a *accepted) Accept() (net.Conn, error) {
	select {
	case a.left <- struct{}{}:
		return a.conn, nil
	case <-a.closing:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (a *accepted) Close() error {
	a.once.Do(func() { close(a.closing) })
	return a.conn.Close()
}

// Addr implements net.Listener.
func (a *accepted) Addr() net.Addr { return a.conn.LocalAddr() }

// Dial implements raft.StreamLayer.
func (*accepted) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// ending is a connection that tells when it was closed.
type ending struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

// Close implements net.Conn.
func (e *ending) Close() error {
	e.once.Do(func() { close(e.ended) })
	return e.Conn.Close()
}

// refusals count messages that were refused, and tell of them once a second at
// most.
type refusals struct {
	logger *slog.Logger
	count  atomic.Uint64

	mu      sync.Mutex
	told    time.Time
	omitted int
}

func (r *refusals) add(sender string, reason error) {
	r.count.Add(1)
	if omitted, due := r.due(); due {
		r.logger.Warn("message refused", "sender", sender, "error", reason, "omitted", omitted)
	}
}

// due reports whether a refusal is to be told of, and how many were not since the last one.
func (r *refusals) due() (omitted int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.told) < time.Second {
		r.omitted++
		return 0, false
	}
	omitted = r.omitted
	r.told, r.omitted = now, 0
	return omitted, true
}
