package cluster

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/crosspartition"
	"github.com/tenuto-dev/tenuto/cluster/internal/routing"
	"github.com/tenuto-dev/tenuto/cluster/internal/server"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// withDefaultTimeout adds a timeout to a context without a deadline.
func withDefaultTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// prepareRequest sets the fields that a request to the partition's leader on another node needs.
func (pa *partition) prepareRequest(r *clusterpb.Request) *clusterpb.Request {
	r.Protocol, r.Node, r.Partition = requestProtocol(pa.node.config.protocol, r), pa.node.config.NodeID, uint32(pa.number+1)
	return r
}

// A router sends the calls of this node's clients to the leader, or answers them from the replicas.
// It implements caller.
type router struct{ node *Node }

// call sends a request to the leader and returns its response.
func (r *router) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	ctx, cancel := withDefaultTimeout(ctx, r.node.config.CallTimeout)
	defer cancel()
	if request.User != "" {
		request.Principal = Principal{PrincipalNode, r.node.config.NodeID}.String()
		onBehalfOfUser(request)
	}
	request.Protocol, request.Node = requestProtocol(r.node.config.protocol, request), r.node.config.NodeID
	var response *clusterpb.Response
	if err := checkLineage(r.node, request); err != nil {
		return nil, err
	}
	err := r.node.recoverer.Call(request, func() (err error) {
		response, err = r.callBounded(ctx, request)
		return err
	})
	return response, err
}

// callBounded is call with a context that has a deadline.
func (r *router) callBounded(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if r.node.scatter.concernsAllPartitions(request) {
		return r.node.scatter.fanOut(ctx, request)
	}
	g := r.node.partitionFor(request)
	if request.GetMembers() != nil && request.Partition == 0 {
		return g.currentMembers(ctx, request)
	}
	call := admission.Retrier{
		Closing: r.node.closing, LeaderNotifier: &g.leaderNotifier, RetryBudget: &r.node.retryBudget, StartLimiter: &g.startLimiter, CallLimiter: g.callLimiter,
		SeenIndex: max(g.seenIndex.Load(), g.journal.AppliedIndex()),
	}
	response, err := call.Do(ctx, request, r.node.ask)
	g.seenIndex.Advance(response.GetAppliedIndex())
	return response, callError(err)
}

// WithoutBusyRetries returns a context whose calls fail with a [BusyError] under overload at once,
// instead of being retried until the context ends. It is for callers that can shed work themselves
// or have an alternative to waiting.
func WithoutBusyRetries(ctx context.Context) context.Context {
	return admission.WithoutBusyRetries(ctx)
}

// sleep waits for delay, unless ctx ends or the node closes first.
func (n *Node) sleep(ctx context.Context, delay time.Duration) error {
	return admission.Sleep(ctx, n.closing, delay)
}

// poll waits until a condition holds.
func (n *Node) poll(ctx context.Context, holds func() bool) error {
	delay := time.Millisecond
	for !holds() {
		if err := n.sleep(ctx, delay); err != nil {
			return err
		}
		delay = min(2*delay, 20*time.Millisecond)
	}
	return nil
}

// callLeader sends one attempt of a call to the leader of the request's partition: this node, or
// the known leader on another node.
func (r *router) callLeader(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	if removed := r.node.removedFailure(); removed != nil {
		return removed
	}
	g := r.node.partitionFor(request)
	g.awaitLeader(ctx)
	if g.servingPartition() != nil {
		return r.node.dispatcher.serve(ctx, request)
	}
	address := g.otherLeader()
	if address == "" {
		return wire.NotLeader("no leader")
	}
	if g.forwarder.CanBatch(request) && requiredProtocol(request) <= g.journal.Protocol() {
		return g.forwarder.Ask(ctx, request)
	}
	ctx, end := g.leaderContext(ctx, address)
	defer end()
	return r.node.peers.ask(ctx, address, request)
}

// leaderContext returns a context that is canceled when a node at another address leads. end must
// be called.
func (pa *partition) leaderContext(ctx context.Context, address string) (limited context.Context, end func()) {
	limited, end = pa.leaderCalls.Begin(ctx, address)
	pa.cancelStaleCalls() // the leader may have changed since the address was read
	return limited, end
}

// cancelStaleCalls cancels calls in flight to a former leader.
func (pa *partition) cancelStaleCalls() {
	if _, leader := pa.journal.Leader(); leader != "" {
		pa.leaderCalls.CancelExcept(leader)
	}
}

func (r *router) readStale(ctx context.Context, request *clusterpb.Request) (response *clusterpb.Response, err error) {
	select {
	case <-r.node.closing:
		return nil, ErrClosed
	default:
	}
	if err := checkLineage(r.node, request); err != nil {
		return nil, err
	}
	if refusesRead(r.node, request) {
		return r.call(ctx, request)
	}
	err = r.node.recoverer.Call(request, func() (err error) {
		if r.node.scatter.concernsAllPartitions(request) {
			response, err = r.node.scatter.listLocally(ctx, request)
			return err
		}
		pa := r.node.partitionFor(request)
		response, err = pa.read(ctx, pa.actorPartition.Load(), request)
		return err
	})
	return response, err
}

// A callPool calls other nodes. A failure to do so is a response like any other.
type callPool struct{ *transport.Pool }

func newCallPool(dialer *transport.Dialer) callPool {
	return callPool{transport.NewPool(dialer, ErrClosed)}
}

func (p callPool) ask(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
	response, err := p.Call(ctx, address, request)
	if err != nil {
		return routing.ErrorResponse(err)
	}
	return response
}

func (pa *partition) runForwarder() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pa.node.running.Go(func() { <-pa.node.closing; cancel() })
	pa.forwarder.Run(ctx)
}

func (pa *partition) forwarderConfig() routing.Config {
	return routing.Config{
		Protocol:      func() uint32 { return pa.journal.Protocol() },
		CallTimeout:   pa.node.config.CallTimeout,
		OtherLeader:   pa.otherLeader,
		LeaderContext: pa.leaderContext,
		OpenStream: func(ctx context.Context, address string, request *clusterpb.Request) (grpc.ClientStream, error) {
			return pa.node.peers.OpenStream(ctx, address, &server.StartBatchStream, pa.prepareRequest(request))
		},
	}
}

// sendMessage sends a message of an instance to another one; see actors.PartitionConfig.
func (r *router) sendMessage(ctx context.Context, m *actors.OutgoingMessage) error {
	request := &clusterpb.Request{Instance: m.Instance, Retried: m.Retried, RejectIfStalled: true}
	if m.Retried {
		request.FirstIndex = &m.FirstIndex
	}
	if m.Event != nil {
		request.Call = &clusterpb.Request_Send{Send: &clusterpb.SendRequest{
			Name: m.Event.Name, Data: m.Event.Data, RequestId: m.RequestID, Headers: m.Event.Headers,
		}}
	} else {
		request.Call = &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{
			Kind: clusterpb.ControlRequest_KIND_CANCEL, Reason: m.Cancel.GetReason(), RequestId: m.RequestID,
		}}
	}
	own := r.node.partitionOf(m.From.Instance).journal
	request.Cut = own.Cut()
	response, err := r.call(admission.WithoutBusyRetries(ctx), request)
	if err == nil {
		m.Retried = true // if the cut cannot be recorded, the message is sent again
	}
	if followErr := crosspartition.FollowCut(ctx, own, response.GetCut()); followErr != nil {
		return followErr
	}
	var unavailable *UnavailableError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, actors.ErrForgotten):
		return r.checkForgotten(ctx, m, err)
	case errors.As(err, &unavailable) && !unavailable.NotExecuted:
		m.Retried = true
	}
	return err
}

// checkForgotten decides what follows if the receiver's partition does not know whether it has
// recorded a message. The latest run of the receiver has not recorded it, so it is sent as a new
// one.
func (r *router) checkForgotten(ctx context.Context, m *actors.OutgoingMessage, forgotten error) error {
	request := &clusterpb.Request{Instance: m.Instance, RejectIfStalled: true, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
	response, err := r.call(ctx, request)
	if followErr := crosspartition.FollowCut(ctx, r.node.partitionOf(m.From.Instance).journal, response.GetCut()); followErr != nil {
		return followErr
	}
	if err != nil {
		return err
	}
	m.Retried = false
	return forgotten
}

// appliedIndexOf returns the journal index up to which this node knows the partition of an
// instance.
func (r *router) appliedIndexOf(instance string) uint64 {
	pa := r.node.partitionOf(instance)
	return max(pa.seenIndex.Load(), pa.journal.AppliedIndex())
}
