package cluster

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A call that found no leader is tried again after a pause that grows from the
// first to the longest.
const (
	pauseFirst   = 5 * time.Millisecond
	pauseLongest = 250 * time.Millisecond
)

var dialBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

func dialCalls(ctx context.Context, address string) (net.Conn, error) {
	timeout := dialTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	return dial(address, preambleCalls, timeout)
}

// call brings a request to the leader and its answer back, again and again
// until a leader has answered, ctx ends, or the node is closed. Requests carry
// request IDs, so that trying again is safe.
func (n *Node) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, n.config.CallTimeout)
		defer cancel()
	}
	request.Protocol, request.Node = protocolVersion, n.config.NodeID
	notExecuted := true
	pause := pauseFirst
	for {
		response := n.ask(ctx, request)
		failure := response.GetFailure()
		if failure == nil {
			return response, nil
		}
		if !repeatable(failure) {
			return nil, failed(failure)
		}
		notExecuted = notExecuted && failure.NotExecuted
		request.Again = request.Again || !failure.NotExecuted
		if err := n.rest(ctx, pause); err != nil {
			return nil, &UnavailableError{NotExecuted: notExecuted, Err: errors.Join(err, errors.New(failure.Message))}
		}
		pause = min(2*pause, pauseLongest)
	}
}

// rest waits for a pause, unless ctx or the node ends first.
func (n *Node) rest(ctx context.Context, pause time.Duration) error {
	select {
	case <-n.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-n.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// poll waits until a condition holds.
func (n *Node) poll(ctx context.Context, holds func() bool) error {
	pause := time.Millisecond
	for !holds() {
		if err := n.rest(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
	return nil
}

// attempt asks the leader once: this node, or the one that it knows of.
func (n *Node) attempt(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	if n.Leading() {
		return n.serve(ctx, request)
	}
	leader, address := n.journal.Leader()
	if leader == "" || leader == n.config.NodeID {
		return notLeader("there is no leader now")
	}
	response, err := n.peers.call(ctx, address, request)
	switch {
	case err == nil:
		return response
	case status.Code(err) == codes.Unimplemented || status.Code(err) == codes.ResourceExhausted:
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeInternal, Message: err.Error(), NotExecuted: true}}
	}
	// It may have arrived or not.
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: err.Error()}}
}

func notLeader(message string) *clusterpb.Response {
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeNotLeader, Message: message, NotExecuted: true}}
}
