package routing

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Bounds of a batch of starts.
const (
	// StartBatchMax bounds the starts of a request.
	StartBatchMax = 256
	// A request takes no further start after this many bytes; a payload has at most 4 MiB.
	startBatchBytesMax = 2 << 20
	// While this many requests from one node to one partition are in flight, the next waits
	// forwardPause after the last.
	forwardsUnpacedMax = 4
	forwardPause       = 4 * time.Millisecond
)

// startBatchProtocol is the first protocol version with batches of starts.
const startBatchProtocol = 2

// Config gives a Forwarder access to its partition.
type Config struct {
	Protocol    func() uint32 // of the cluster
	CallTimeout time.Duration
	// OtherLeader returns the address of the leader, "" if it is unknown or this node.
	OtherLeader func() string
	// LeaderContext returns a context that ends when a node at another address leads.
	LeaderContext func(ctx context.Context, address string) (limited context.Context, end func())
	// OpenStream sends a batch to the node at an address.
	OpenStream func(ctx context.Context, address string, request *clusterpb.Request) (grpc.ClientStream, error)
}

// A Forwarder sends the starts that this node has received to the leader of a partition, in
// batches. A call for each start would cost more than the rest of its path to the leader. The call
// limiter bounds how many wait.
type Forwarder struct {
	config            Config
	outbox            *admission.BatchQueue[*forwardedStart]
	isBatchingAllowed atomic.Bool // true once the protocol allows it; the protocol never decreases
}

// A forwardedStart is a start in flight to the leader.
type forwardedStart struct {
	ctx    context.Context // of the caller
	start  *clusterpb.InstanceStart
	answer chan *clusterpb.Response // has capacity 1
}

// NewForwarder returns a forwarder. Run must be called.
func NewForwarder(config Config) *Forwarder {
	return &Forwarder{config: config, outbox: admission.NewBatchQueue(StartBatchMax, startBatchBytesMax, func(f *forwardedStart) int { return proto.Size(f.start) })}
}

// CanBatch reports whether a request may be sent in a batch.
func (f *Forwarder) CanBatch(request *clusterpb.Request) bool {
	if request.GetStart() == nil || request.Reason != "" { // a batch carries no reasons
		return false
	}
	if !f.isBatchingAllowed.Load() {
		f.isBatchingAllowed.Store(f.config.Protocol() >= startBatchProtocol)
	}
	return f.isBatchingAllowed.Load()
}

// Ask sends a start in a batch, once, and returns the answer.
func (f *Forwarder) Ask(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	one := &forwardedStart{
		ctx: ctx,
		// A copy: a retry by the caller changes the request, maybe while it is being sent.
		start:  &clusterpb.InstanceStart{Instance: request.Instance, Retried: request.Retried, FirstIndex: request.FirstIndex, Start: request.GetStart(), Principal: request.Principal},
		answer: make(chan *clusterpb.Response, 1),
	}
	if !f.outbox.Put(one) {
		return wire.NotLeader("the node is closing")
	}
	select {
	case response := <-one.answer:
		return response
	case <-ctx.Done():
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeUnknown, Message: ctx.Err().Error()}}
	}
}

// Run sends batches until ctx ends: at once while few are in flight, otherwise after a pause.
func (f *Forwarder) Run(ctx context.Context) { f.run(ctx, f.sendBatch) }

// run sends batches until ctx ends: at once while few are in flight, otherwise after a pause, with
// all starts that have arrived meanwhile. Then it answers the remaining starts with an error.
func (f *Forwarder) run(ctx context.Context, sendBatch func(ctx context.Context, batch []*forwardedStart)) {
	var sending sync.WaitGroup
	var inFlight atomic.Int64
	for open := true; open; {
		select {
		case <-f.outbox.Ready():
			batch := f.outbox.Take()
			if len(batch) == 0 {
				continue
			}
			inFlight.Add(1)
			sending.Go(func() {
				defer inFlight.Add(-1)
				sendBatch(ctx, batch)
			})
			if inFlight.Load() >= forwardsUnpacedMax {
				_ = admission.Sleep(ctx, nil, forwardPause)
			}
		case <-ctx.Done():
			open = false
		}
	}
	sending.Wait()
	for _, left := range f.outbox.Close() {
		left.answer <- wire.NotLeader("the node is closing")
	}
}

// sendBatch sends a batch to the leader, once, without the starts whose callers no longer wait.
func (f *Forwarder) sendBatch(ctx context.Context, batch []*forwardedStart) {
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
func (f *Forwarder) exchange(ctx context.Context, batch []*forwardedStart) (others *clusterpb.Response) {
	address := f.config.OtherLeader()
	if address == "" {
		return wire.NotLeader("no other leader is known")
	}
	ctx, cancel := context.WithTimeout(ctx, f.config.CallTimeout)
	defer cancel()
	ctx, end := f.config.LeaderContext(ctx, address)
	defer end()
	starts := make([]*clusterpb.InstanceStart, len(batch))
	for i, one := range batch {
		starts[i] = one.start
	}
	request := &clusterpb.Request{Call: &clusterpb.Request_StartBatch{StartBatch: &clusterpb.StartBatchRequest{Starts: starts}}}
	stream, err := f.config.OpenStream(ctx, address, request)
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
	return ErrorResponse(err) // io.EOF if the leader ended the stream without answering the others
}
