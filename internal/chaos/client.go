package main

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// How long one try waits for an answer, and a try that waits for the end of an instance.
	tryTimeout  = 4 * time.Second
	waitTimeout = 15 * time.Second
	// The first and the longest pause between tries.
	backoffMin = 10 * time.Millisecond
	backoffMax = 200 * time.Millisecond
)

// A client calls the fleet like an application whose own node may fail: it sends the same request
// to one node after the other until one answers.
type client struct {
	fleet     *fleet
	id        int
	firstNode int // the node of the first try
	// Make one try only.
	noFailover bool
	// Call through the remote client.
	remote bool
}

// processFor returns the process that a try calls.
func (c *client) processFor(try int) *process {
	if c.remote && c.fleet.remote != nil {
		return c.fleet.remote
	}
	return c.fleet.nodes[(c.firstNode+try)%len(c.fleet.nodes)]
}

// do executes a request and records the call. ctx bounds all tries together.
func (c *client) do(ctx context.Context, request evidence.Request) evidence.Call {
	call := evidence.Call{Request: request, Client: c.id, Begin: c.fleet.log.Now()}
	backoff := backoffMin
	for ctx.Err() == nil {
		node := c.processFor(call.Tries)
		call.Tries++
		call.Answer = c.try(ctx, node, request)
		call.Node, call.Remote = node.id, node == c.fleet.remote
		_, call.Generation = node.socket()
		if c.noFailover || isFinal(call.Answer) {
			break
		}
		call.MaybeExecuted = call.MaybeExecuted || call.Outcome == evidence.Unknown
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, backoffMax)
	}
	call.End = c.fleet.log.Now()
	call.Outcome = outcomeOf(call)
	c.fleet.log.Call(call)
	return call
}

// outcomeOf returns what is known of a call after its last try.
func outcomeOf(call evidence.Call) evidence.Outcome {
	switch {
	case isFinal(call.Answer) && (!call.MaybeExecuted || isConclusive(call)):
		return call.Outcome
	case call.MaybeExecuted || call.Outcome == evidence.Unknown:
		return evidence.Unknown
	}
	return evidence.NotExecuted
}

// isFinal reports whether an answer ends a call.
func isFinal(a evidence.Answer) bool {
	return a.Outcome == evidence.Acked || a.Outcome == evidence.Rejected && a.Code != evidence.Busy
}

// isConclusive reports whether the answer to the last try determines the outcome of the call.
// Without a request ID, a rejection may be caused by an earlier try of the same call.
func isConclusive(call evidence.Call) bool {
	switch call.Outcome {
	case evidence.Acked:
		return true
	case evidence.Rejected:
		return call.RequestID != "" || call.Kind == evidence.Complete || call.Kind.IsReadOnly()
	}
	return false
}

func (c *client) try(ctx context.Context, node *process, request evidence.Request) evidence.Answer {
	limit := tryTimeout
	if request.Kind == evidence.Wait {
		limit = waitTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var answer evidence.Answer
	err := c.fleet.post(ctx, node, host.CallPath, request, &answer)
	switch {
	case err == nil:
		return answer
	case errors.Is(err, errNotRunning), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return evidence.Answer{Outcome: evidence.NotExecuted, Message: err.Error()}
	}
	return evidence.Answer{Outcome: evidence.Unknown, Message: err.Error()}
}
