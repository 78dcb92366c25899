package transport

import (
	"errors"
	"io"
	"net"
	"slices"

	"github.com/hashicorp/raft"
)

// Raft's transport pools connections to a node. After that node has restarted, the pooled
// connections are dead. Raft notices that only when it sends a message over one. Appends are
// repeated after a pause. But a candidate requests a vote once per election, and a transfer offers
// leadership once; losing that message costs an election timeout. So a message that fails on a dead
// connection is sent again over the next one. Sending a message twice is harmless.

// pooledConnsMax is how many connections to a node are pooled.
const pooledConnsMax = 3

// retryDeadConn repeats a message until it does not fail because of a dead connection.
func retryDeadConn(send func() error) error {
	for range pooledConnsMax {
		if err := send(); !isDeadConn(err) {
			return err
		}
	}
	return send()
}

// isDeadConn reports whether a connection ended before the answer to a message. A connection that
// could not be opened does not count.
func isDeadConn(err error) bool {
	var dialFailed *dialError
	if err == nil || errors.As(err, &dialFailed) || errors.Is(err, errMuted) {
		return false
	}
	ends := append(brokenConnectionErrors(), io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed)
	return slices.ContainsFunc(ends, func(end error) bool { return errors.Is(err, end) })
}

// dialError is the reason why a connection could not be opened.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// RequestVote implements raft.Transport.
func (v *Verified) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return retryDeadConn(func() error { return v.NetworkTransport.RequestVote(id, target, args, resp) })
}

// RequestPreVote implements raft.WithPreVote.
func (v *Verified) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return retryDeadConn(func() error { return v.NetworkTransport.RequestPreVote(id, target, args, resp) })
}

// TimeoutNow implements raft.Transport.
func (v *Verified) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return retryDeadConn(func() error { return v.NetworkTransport.TimeoutNow(id, target, args, resp) })
}

// AppendEntries implements raft.Transport.
func (v *Verified) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return retryDeadConn(func() error { return v.NetworkTransport.AppendEntries(id, target, args, resp) })
}
