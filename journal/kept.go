package journal

import (
	"errors"
	"io"
	"net"
	"slices"

	"github.com/hashicorp/raft"
)

// Raft's transport keeps connections to a node between two messages. Those to a node
// that was restarted since are dead, and nobody hears of it before a message is sent
// over one, which fails. Appends come again after a pause. But a vote is asked for
// once in an election, and leadership is offered once in a transfer: lost, it costs
// the group an election timeout. So a message that meets the end of its connection is
// sent again over the next. To send one twice does no harm.

// keptMax is how many connections to a node are kept.
const keptMax = 3

// persist sends a message until it has met no dead connection.
func persist(send func() error) error {
	for range keptMax {
		if err := send(); !isDead(err) {
			return err
		}
	}
	return send()
}

// isDead tells whether a connection has ended before the answer to a message. One
// that could not be made is another matter.
func isDead(err error) bool {
	var undialed *dialError
	if err == nil || errors.As(err, &undialed) || errors.Is(err, errSilent) {
		return false
	}
	ends := append(brokenConnection(), io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed)
	return slices.ContainsFunc(ends, func(end error) bool { return errors.Is(err, end) })
}

// A dialError says why a connection could not be made.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// RequestVote implements raft.Transport.
func (t *senderTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return persist(func() error { return t.NetworkTransport.RequestVote(id, target, args, resp) })
}

// RequestPreVote implements raft.WithPreVote.
func (t *senderTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return persist(func() error { return t.NetworkTransport.RequestPreVote(id, target, args, resp) })
}

// TimeoutNow implements raft.Transport.
func (t *senderTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return persist(func() error { return t.NetworkTransport.TimeoutNow(id, target, args, resp) })
}

// AppendEntries implements raft.Transport.
func (t *senderTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return persist(func() error { return t.NetworkTransport.AppendEntries(id, target, args, resp) })
}
