package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Bounds of a batch of starts.
const (
	startBatchMax = 256 // per request
	// A request takes no further start after this many bytes; a payload has at most 4 MiB.
	startBatchBytesMax = 2 << 20
	// While this many requests from one node to one partition are in flight, the next waits
	// forwardPause after the last.
	forwardsUnpacedMax = 4
	forwardPause       = 4 * time.Millisecond
)

// startBatchProtocol is the first protocol version with batches of starts.
const startBatchProtocol = 2

// A forwarder sends the starts that this node has received to the leader of a partition, in
// batches. A call for each start would cost more than the rest of its path to the leader. The call
// limiter bounds how many wait.
type forwarder struct {
	partition         *partition
	outbox            *batchQueue[*forwardedStart]
	isBatchingAllowed atomic.Bool // true once the protocol allows it; the protocol never decreases
}

// A forwardedStart is a start in flight to the leader.
type forwardedStart struct {
	ctx    context.Context // of the caller
	start  *clusterpb.InstanceStart
	answer chan *clusterpb.Response // has capacity 1
}

func newForwarder(to *partition) *forwarder {
	return &forwarder{partition: to, outbox: newBatchQueue(startBatchMax, startBatchBytesMax, func(f *forwardedStart) int { return proto.Size(f.start) })}
}

// canBatch reports whether a request may be sent in a batch.
func (f *forwarder) canBatch(request *clusterpb.Request) bool {
	if request.GetStart() == nil {
		return false
	}
	if !f.isBatchingAllowed.Load() {
		f.isBatchingAllowed.Store(f.partition.journal.Protocol() >= startBatchProtocol)
	}
	return f.isBatchingAllowed.Load()
}

func (f *forwarder) ask(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	one := &forwardedStart{
		ctx: ctx,
		// A copy: a retry by the caller changes the request, maybe while it is being sent.
		start:  &clusterpb.InstanceStart{Instance: request.Instance, Retried: request.Retried, FirstIndex: request.FirstIndex, Start: request.GetStart()},
		answer: make(chan *clusterpb.Response, 1),
	}
	if !f.outbox.put(one) {
		return notLeaderResponse("the node is closing")
	}
	select {
	case response := <-one.answer:
		return response
	case <-ctx.Done():
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: ctx.Err().Error()}}
	}
}

func (g *partition) runForwarder() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g.running.Go(func() { <-g.closing; cancel() })
	g.forwarder.run(ctx, g.forwarder.sendBatch)
}

// run sends batches until ctx ends: at once while few are in flight, otherwise after a pause, with
// all starts that have arrived meanwhile. Then it answers the remaining starts with an error.
func (f *forwarder) run(ctx context.Context, sendBatch func(ctx context.Context, batch []*forwardedStart)) {
	var sending sync.WaitGroup
	var inFlight atomic.Int64
	for open := true; open; {
		select {
		case <-f.outbox.ready:
			batch := f.outbox.take()
			if len(batch) == 0 {
				continue
			}
			inFlight.Add(1)
			sending.Go(func() {
				defer inFlight.Add(-1)
				sendBatch(ctx, batch)
			})
			if inFlight.Load() >= forwardsUnpacedMax {
				_ = sleep(ctx, nil, forwardPause)
			}
		case <-ctx.Done():
			open = false
		}
	}
	sending.Wait()
	for _, left := range f.outbox.close() {
		left.answer <- notLeaderResponse("the node is closing")
	}
}

// sendBatch sends a batch to the leader, once, without the starts whose callers no longer wait.
func (f *forwarder) sendBatch(ctx context.Context, batch []*forwardedStart) {
	batch = slices.DeleteFunc(batch, func(one *forwardedStart) bool { return one.ctx.Err() != nil })
	if len(batch) == 0 {
		return
	}
	others := f.exchange(ctx, batch)
	for _, one := range batch {
		if one != nil {
			one.answer <- others
		}
	}
}

// exchange sends a batch and passes on the leader's answers as they arrive. It sets answered starts
// in the batch to nil, and returns the answer for the others.
func (f *forwarder) exchange(ctx context.Context, batch []*forwardedStart) (others *clusterpb.Response) {
	address := f.partition.otherLeader()
	if address == "" {
		return notLeaderResponse("no other leader is known")
	}
	ctx, cancel := context.WithTimeout(ctx, f.partition.config.CallTimeout)
	defer cancel()
	ctx, end := f.partition.leaderContext(ctx, address)
	defer end()
	starts := make([]*clusterpb.InstanceStart, len(batch))
	for i, one := range batch {
		starts[i] = one.start
	}
	request := f.partition.prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_StartBatch{StartBatch: &clusterpb.StartBatchRequest{Starts: starts}}})
	stream, err := f.partition.peers.openStream(ctx, address, &startBatchStream, request)
	for err == nil {
		response := new(clusterpb.Response)
		if err = stream.RecvMsg(response); err == nil && response.Failure != nil {
			return &clusterpb.Response{Failure: response.Failure}
		}
		for _, answer := range response.GetStartBatch().GetItems() {
			if i := int(answer.Index); i < len(batch) && batch[i] != nil && answer.Response != nil {
				batch[i].answer <- answer.Response
				batch[i] = nil
			}
		}
	}
	return errorResponse(err) // io.EOF if the leader ended the stream without answering the others
}

var startBatchStream = grpc.StreamDesc{
	StreamName:    "Starts",
	ServerStreams: true,
	Handler:       func(node any, stream grpc.ServerStream) error { return node.(nodeServer).serveStartBatch(stream) },
}

func (g *nodeService) serveStartBatch(stream grpc.ServerStream) error {
	return g.node.recoverStream("start_batch", func() error { return g.answerStartBatch(stream) })
}

func (g *nodeService) answerStartBatch(stream grpc.ServerStream) error {
	ctx, request := stream.Context(), new(clusterpb.Request)
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	if err := g.check(ctx, request); err != nil {
		return stream.SendMsg(&clusterpb.Response{Protocol: g.node.config.protocol, Failure: toFailure(err)})
	}
	err := g.node.startBatch(ctx, request, func(response *clusterpb.Response) error { return stream.SendMsg(response) })
	if err != nil {
		return stream.SendMsg(g.node.failureResponse(request, err))
	}
	return nil
}

// startBatch answers a batch of starts, if this node leads their partition. It returns an error if
// it could answer none of them, or the error of answer.
func (n *Node) startBatch(ctx context.Context, request *clusterpb.Request, answer func(*clusterpb.Response) error) error {
	g := n.partitionFor(request)
	if err := firstError(n.config.checkProtocol(request.Protocol), g.checkStartBatch(request.GetStartBatch())); err != nil {
		return err
	}
	g.awaitLeader(ctx)
	p := g.servingPartition()
	if p == nil {
		return journal.ErrNotLeader
	}
	return g.startEach(ctx, p, request.GetStartBatch().GetStarts(), func(value *clusterpb.StartBatchResult) error {
		return answer(&clusterpb.Response{Protocol: n.config.protocol, Result: &clusterpb.Response_StartBatch{StartBatch: value}})
	})
}

// startEach answers each start as soon as possible: a refused start does not wait for those that
// must be committed.
func (g *partition) startEach(ctx context.Context, p *actors.Partition, starts []*clusterpb.InstanceStart, answer func(*clusterpb.StartBatchResult) error) error {
	answers := make(chan *clusterpb.StartBatchItem, len(starts))
	var starting sync.WaitGroup
	defer starting.Wait()
	for i, one := range starts {
		starting.Go(func() {
			request := &clusterpb.Request{Instance: one.Instance, Retried: one.Retried, FirstIndex: one.FirstIndex, Call: &clusterpb.Request_Start{Start: one.Start}}
			var response *clusterpb.Response
			err := g.recoverCall(request, func() (err error) {
				response, err = g.start(ctx, p, request, one.Start)
				return g.confirmRejection(ctx, p, err)
			})
			if err != nil {
				response = &clusterpb.Response{Failure: toFailure(err)}
			}
			answers <- &clusterpb.StartBatchItem{Index: uint32(i), Response: response}
		})
	}
	for left := len(starts); left > 0; {
		value := &clusterpb.StartBatchResult{Items: []*clusterpb.StartBatchItem{<-answers}}
		for len(answers) > 0 {
			value.Items = append(value.Items, <-answers)
		}
		if err := answer(value); err != nil {
			return err
		}
		left -= len(value.Items)
	}
	return nil
}

// checkStartBatch returns an error for a batch that no correct node sends. The sender has checked
// each start.
func (g *partition) checkStartBatch(r *clusterpb.StartBatchRequest) error {
	if len(r.GetStarts()) == 0 || len(r.Starts) > startBatchMax {
		return &InputError{"starts", fmt.Sprintf("are %d: 1 to %d are allowed", len(r.GetStarts()), startBatchMax)}
	}
	for _, one := range r.Starts {
		if one.GetStart() == nil {
			return &InputError{"start", "is empty"}
		}
		if err := firstError(checkID(one.Instance), checkStart(one.Start)); err != nil {
			return err
		}
		if g.partitionOf(one.Instance) != g {
			return &InputError{"start", "is for another partition"}
		}
	}
	return nil
}
