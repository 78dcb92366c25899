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
	// How long one try waits for an answer, and the one that waits for an end.
	tryLimit  = 4 * time.Second
	waitLimit = 15 * time.Second
	// The pause between tries grows from the first to the longest.
	pauseFirst   = 10 * time.Millisecond
	pauseLongest = 200 * time.Millisecond
)

// A client calls the fleet as an application does whose own node may die: it
// puts the same request to one node after the other, until it has an answer.
type client struct {
	fleet *fleet
	id    int
	home  int // the node that it asks first
	// It asks no other, and once only.
	faithful bool
	// It calls through the remote client.
	remote bool
}

// target returns the process that a try asks.
func (c *client) target(try int) *process {
	if c.remote && c.fleet.remote != nil {
		return c.fleet.remote
	}
	return c.fleet.nodes[(c.home+try)%len(c.fleet.nodes)]
}

// do carries a request out and logs what came of it. ctx bounds all tries.
func (c *client) do(ctx context.Context, request evidence.Request) evidence.Call {
	call := evidence.Call{Request: request, Client: c.id, Begin: c.fleet.log.Now()}
	pause := pauseFirst
	for ctx.Err() == nil {
		node := c.target(call.Tries)
		call.Tries++
		call.Answer = c.try(ctx, node, request)
		call.Node, call.Remote = node.id, node == c.fleet.remote
		_, call.Life = node.door()
		if c.faithful || isFinal(call.Answer) {
			break
		}
		call.Doubtful = call.Doubtful || call.Outcome == evidence.Unknown
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, pauseLongest)
	}
	call.End = c.fleet.log.Now()
	call.Outcome = outcomeOf(call)
	c.fleet.log.Call(call)
	return call
}

// outcomeOf says what is known of a call after its last try.
func outcomeOf(call evidence.Call) evidence.Outcome {
	switch {
	case isFinal(call.Answer) && (!call.Doubtful || believable(call)):
		return call.Outcome
	case call.Doubtful || call.Outcome == evidence.Unknown:
		return evidence.Unknown
	}
	return evidence.NotExecuted
}

// isFinal tells whether an answer ends a call.
func isFinal(a evidence.Answer) bool {
	return a.Outcome == evidence.Acked || a.Outcome == evidence.Refused && a.Code != evidence.Busy
}

// believable tells whether what was answered to a repetition says what came of
// the call: where it has no request ID, a refusal may be due to its own first
// try.
func believable(call evidence.Call) bool {
	switch call.Outcome {
	case evidence.Acked:
		return true
	case evidence.Refused:
		return call.RequestID != "" || call.Kind == evidence.Complete || call.Kind.Looks()
	}
	return false
}

func (c *client) try(ctx context.Context, node *process, request evidence.Request) evidence.Answer {
	limit := tryLimit
	if request.Kind == evidence.Wait {
		limit = waitLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var answer evidence.Answer
	err := c.fleet.post(ctx, node, host.CallPath, request, &answer)
	switch {
	case err == nil:
		return answer
	case errors.Is(err, errNoDoor), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return evidence.Answer{Outcome: evidence.NotExecuted, Message: err.Error()}
	}
	return evidence.Answer{Outcome: evidence.Unknown, Message: err.Error()}
}
