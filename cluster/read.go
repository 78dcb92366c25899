package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A ReadOption changes how something is read.
type ReadOption func(*reading)

type reading struct{ stale bool }

// Stale has a read answered by this node alone, or by any one that a remote client
// reaches, without the leader, also while there is none: as of what the node has
// applied of the journal so far, which may be old. The AppliedIndex that Get, History and
// List return tells how far that is; for one client it never goes back while the
// node runs, or over the network at all. Unless that node leads, an instance that waits for
// code shows as running or suspended.
//
// Without it, reads are linearizable: they show all that was acknowledged
// anywhere before the call.
func Stale() ReadOption { return func(r *reading) { r.stale = true } }

// read has a request for reading answered, by the leader or by this node.
func (c *Client) read(ctx context.Context, request *clusterpb.Request, options []ReadOption) (*clusterpb.Response, error) {
	var r reading
	if err := firstError(c.check(ctx), apply(&r, options)); err != nil {
		return nil, err
	}
	if r.stale {
		return c.access.near(ctx, request)
	}
	return c.call(ctx, request)
}

func (n *Node) near(ctx context.Context, request *clusterpb.Request) (response *clusterpb.Response, err error) {
	select {
	case <-n.closing:
		return nil, ErrClosed
	default:
	}
	err = n.recovered(request, func() (err error) {
		if n.concernsAll(request) {
			response, err = n.gatherNear(ctx, request)
			return err
		}
		g := n.groupFor(request)
		response, err = g.read(ctx, g.partition.Load(), request)
		return err
	})
	return response, err
}

// read answers from this node's replica. p is nil where this node does not lead.
func (g *group) read(ctx context.Context, p *actors.Partition, request *clusterpb.Request) (*clusterpb.Response, error) {
	index := g.journal.AppliedIndex() // before the reads, which show at least that
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

func (g *group) lookUp(ctx context.Context, p *actors.Partition, request *clusterpb.Request) (*clusterpb.Response, error) {
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
	case *clusterpb.Request_Members: // of a node that has begun to lead while it was asked
		return g.membersKnown(), nil
	case *clusterpb.Request_Index:
		return &clusterpb.Response{Result: &clusterpb.Response_Index{Index: new(clusterpb.IndexResult)}}, nil
	}
	return nil, fmt.Errorf("%w: a read that this node does not know", ErrProtocol)
}

// isNotFound tells whether the journal does not have what was asked for.
func isNotFound(err error) bool { return errors.Is(err, state.ErrNotFound) }
