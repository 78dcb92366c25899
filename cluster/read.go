package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A ReadOption changes how a read is done.
type ReadOption func(*readOptions)

type readOptions struct{ stale bool }

// Stale makes a read return what one node has applied so far, which may be old. That is the
// client's own node, or any node that a remote client reaches. The read needs no leader. Get,
// History and List return the index up to which that node has applied, AppliedIndex. For a node's
// client it never decreases while the node runs; for a remote client it never decreases. If the
// node does not lead, an instance that waits for code shows as running or suspended.
//
// Without Stale, reads are linearizable: they show everything that was acknowledged anywhere before
// the call.
func Stale() ReadOption { return func(r *readOptions) { r.stale = true } }

// read sends a read request to the leader or, if the answer may be stale, to one node.
func (c *Client) read(ctx context.Context, request *clusterpb.Request, options []ReadOption) (*clusterpb.Response, error) {
	var r readOptions
	if err := firstError(c.check(ctx), applyOptions(&r, options)); err != nil {
		return nil, err
	}
	if r.stale {
		return c.transport.readStale(ctx, request)
	}
	return c.call(ctx, request)
}

func (n *Node) readStale(ctx context.Context, request *clusterpb.Request) (response *clusterpb.Response, err error) {
	select {
	case <-n.closing:
		return nil, ErrClosed
	default:
	}
	err = n.recoverCall(request, func() (err error) {
		if n.concernsAllPartitions(request) {
			response, err = n.listLocally(ctx, request)
			return err
		}
		g := n.partitionFor(request)
		response, err = g.read(ctx, g.actorPartition.Load(), request)
		return err
	})
	return response, err
}

// read answers from this node's replica. p is nil where this node does not lead.
func (g *partition) read(ctx context.Context, p *actors.Partition, request *clusterpb.Request) (*clusterpb.Response, error) {
	index := g.journal.AppliedIndex() // taken first: the reads show at least this index
	response, err := g.lookUp(ctx, p, request)
	switch {
	case isNotFound(err): // purged meanwhile
		return nil, ErrNotFound
	case err != nil:
		return nil, err
	}
	response.AppliedIndex = index
	return response, nil
}

func (g *partition) lookUp(ctx context.Context, p *actors.Partition, request *clusterpb.Request) (*clusterpb.Response, error) {
	switch call := request.Call.(type) {
	case *clusterpb.Request_Get:
		return g.get(p, request.Instance)
	case *clusterpb.Request_History:
		return g.history(ctx, request.Instance, call.History)
	case *clusterpb.Request_List:
		return g.list(ctx, p, call.List)
	case *clusterpb.Request_Executions:
		return g.executions(p, request.Instance)
	case *clusterpb.Request_ListTokens:
		return &clusterpb.Response{Result: &clusterpb.Response_ListTokens{ListTokens: &clusterpb.ListTokensResult{Tokens: g.journal.Tokens()}}}, nil
	case *clusterpb.Request_Members: // this node became leader during the call
		return g.membersResponse(), nil
	case *clusterpb.Request_CommitIndex:
		return &clusterpb.Response{Result: &clusterpb.Response_CommitIndex{CommitIndex: new(clusterpb.CommitIndexResult)}}, nil
	}
	return nil, fmt.Errorf("%w: this node does not know that kind of read", ErrProtocol)
}

// isNotFound reports whether the journal does not have what was asked for.
func isNotFound(err error) bool { return errors.Is(err, state.ErrNotFound) }
