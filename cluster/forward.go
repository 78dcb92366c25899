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

// Bounds of what is forwarded together.
const (
	forwardedMax = 256 // in one request
	// After so many bytes a request takes no further one; a payload is at most 4 MiB.
	forwardedBytesMax = 2 << 20
	// While so many requests of one node to one group are on their way, the next goes so
	// long after the last.
	forwardsFree = 4
	forwardPause = 4 * time.Millisecond
)

// startsProtocol is the protocol since which starts may come together.
const startsProtocol = 2

// A forwarder brings the starts that this node was asked for to the leader of a group, in
// batches: a call of its own for each costs more than all else that is done for a start on
// its way. How many can wait is bounded by the gate of calls.
type forwarder struct {
	to       *group
	outbox   *outbox[*forwarded]
	together atomic.Bool // the protocol allows it; it never decreases
}

// A forwarded start is on its way.
type forwarded struct {
	ctx    context.Context // of who waits for the answer
	start  *clusterpb.InstanceStart
	answer chan *clusterpb.Response // has room for one
}

func newForwarder(to *group) *forwarder {
	return &forwarder{to: to, outbox: newOutbox(forwardedMax, forwardedBytesMax, func(f *forwarded) int { return proto.Size(f.start) })}
}

// takes tells whether a request is to be forwarded in a batch.
func (f *forwarder) takes(request *clusterpb.Request) bool {
	if request.GetStart() == nil {
		return false
	}
	if !f.together.Load() {
		f.together.Store(f.to.journal.Protocol() >= startsProtocol)
	}
	return f.together.Load()
}

// ask has the leader answer a start, once.
func (f *forwarder) ask(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	one := &forwarded{
		ctx: ctx,
		// A copy: the caller may repeat the request, which changes it, while it is being sent.
		start:  &clusterpb.InstanceStart{Instance: request.Instance, Again: request.Again, FirstIndex: request.FirstIndex, Start: request.GetStart()},
		answer: make(chan *clusterpb.Response, 1),
	}
	if !f.outbox.put(one) {
		return notLeader("the node is being closed")
	}
	select {
	case response := <-one.answer:
		return response
	case <-ctx.Done():
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: ctx.Err().Error()}}
	}
}

// forward brings starts to the leader until the node closes.
func (g *group) forward() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g.running.Go(func() { <-g.closing; cancel() })
	g.forwarder.carry(ctx, g.forwarder.bring)
}

// carry has batches brought until ctx ends: at once while few are on their way, and else
// after a moment, with what has come meanwhile. What is left is answered.
func (f *forwarder) carry(ctx context.Context, bring func(ctx context.Context, batch []*forwarded)) {
	var bringing sync.WaitGroup
	var under atomic.Int64
	for open := true; open; {
		select {
		case <-f.outbox.filled:
			batch := f.outbox.take()
			if len(batch) == 0 {
				continue
			}
			under.Add(1)
			bringing.Go(func() {
				defer under.Add(-1)
				bring(ctx, batch)
			})
			if under.Load() >= forwardsFree {
				_ = rest(ctx, nil, forwardPause)
			}
		case <-ctx.Done():
			open = false
		}
	}
	bringing.Wait()
	for _, left := range f.outbox.end() {
		left.answer <- notLeader("the node is being closed")
	}
}

// bring has the leader answer a batch, once, but for those who do not wait any more.
func (f *forwarder) bring(ctx context.Context, batch []*forwarded) {
	batch = slices.DeleteFunc(batch, func(one *forwarded) bool { return one.ctx.Err() != nil })
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

// exchange passes the leader's answers on, each as soon as it comes, and takes those
// starts out of the batch. It returns what is to be said of the others.
func (f *forwarder) exchange(ctx context.Context, batch []*forwarded) (others *clusterpb.Response) {
	address := f.to.otherLeader()
	if address == "" {
		return notLeader("there is no other leader now")
	}
	ctx, cancel := context.WithTimeout(ctx, f.to.config.CallTimeout)
	defer cancel()
	ctx, end := f.to.toLeader(ctx, address)
	defer end()
	starts := make([]*clusterpb.InstanceStart, len(batch))
	for i, one := range batch {
		starts[i] = one.start
	}
	request := f.to.request(&clusterpb.Request{Call: &clusterpb.Request_Starts{Starts: &clusterpb.StartsRequest{Starts: starts}}})
	stream, err := f.to.peers.callFor(ctx, address, &startsStream, request)
	for err == nil {
		response := new(clusterpb.Response)
		if err = stream.RecvMsg(response); err == nil && response.Failure != nil {
			return &clusterpb.Response{Failure: response.Failure}
		}
		for _, answer := range response.GetStarts().GetAnswers() {
			if i := int(answer.Index); i < len(batch) && batch[i] != nil && answer.Response != nil {
				batch[i].answer <- answer.Response
				batch[i] = nil
			}
		}
	}
	return unanswered(err) // io.EOF, if there are none
}

// startsStream is the method for starts that come together.
var startsStream = grpc.StreamDesc{
	StreamName:    "Starts",
	ServerStreams: true,
	Handler:       func(node any, stream grpc.ServerStream) error { return node.(caller).startAll(stream) },
}

// startAll implements caller.
func (g *gate) startAll(stream grpc.ServerStream) error {
	return g.node.recoveredStream("starts", func() error { return g.answerStarts(stream) })
}

func (g *gate) answerStarts(stream grpc.ServerStream) error {
	ctx, request := stream.Context(), new(clusterpb.Request)
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	if err := g.check(ctx, request); err != nil {
		return stream.SendMsg(&clusterpb.Response{Protocol: g.node.config.protocol, Failure: failure(err)})
	}
	err := g.node.startAll(ctx, request, func(response *clusterpb.Response) error { return stream.SendMsg(response) })
	if err != nil {
		return stream.SendMsg(g.node.refusal(request, err))
	}
	return nil
}

// startAll answers starts that come together, if this node leads their group, as serve
// does one. The error is why none of them was answered, or answer's.
func (n *Node) startAll(ctx context.Context, request *clusterpb.Request, answer func(*clusterpb.Response) error) error {
	g := n.groupFor(request)
	if err := firstError(n.config.understands(request.Protocol), g.checkStarts(request.GetStarts())); err != nil {
		return err
	}
	g.hold(ctx)
	partition := g.serving()
	if partition == nil {
		return journal.ErrNotLeader
	}
	return g.startEach(ctx, partition, request.GetStarts().GetStarts(), func(said *clusterpb.StartsResult) error {
		return answer(&clusterpb.Response{Protocol: n.config.protocol, Result: &clusterpb.Response_Starts{Starts: said}})
	})
}

// startEach answers each start as if it had come alone, as soon as it can: what is refused
// does not wait for what is to be committed.
func (g *group) startEach(ctx context.Context, p *actors.Partition, starts []*clusterpb.InstanceStart, answer func(*clusterpb.StartsResult) error) error {
	answers := make(chan *clusterpb.StartAnswer, len(starts))
	var starting sync.WaitGroup
	defer starting.Wait()
	for i, one := range starts {
		starting.Go(func() {
			request := &clusterpb.Request{Instance: one.Instance, Again: one.Again, FirstIndex: one.FirstIndex, Call: &clusterpb.Request_Start{Start: one.Start}}
			var response *clusterpb.Response
			err := g.recovered(request, func() (err error) {
				response, err = g.start(ctx, p, request, one.Start)
				return g.confirm(ctx, p, err)
			})
			if err != nil {
				response = &clusterpb.Response{Failure: failure(err)}
			}
			answers <- &clusterpb.StartAnswer{Index: uint32(i), Response: response}
		})
	}
	for left := len(starts); left > 0; {
		said := &clusterpb.StartsResult{Answers: []*clusterpb.StartAnswer{<-answers}}
		for len(answers) > 0 {
			said.Answers = append(said.Answers, <-answers)
		}
		if err := answer(said); err != nil {
			return err
		}
		left -= len(said.Answers)
	}
	return nil
}

// checkStarts refuses what no node sends: the first bad one, as each was looked at before
// it was forwarded.
func (g *group) checkStarts(r *clusterpb.StartsRequest) error {
	if len(r.GetStarts()) == 0 || len(r.Starts) > forwardedMax {
		return &InputError{"starts", fmt.Sprintf("are %d: 1 to %d are allowed", len(r.GetStarts()), forwardedMax)}
	}
	for _, one := range r.Starts {
		if one.GetStart() == nil {
			return &InputError{"start", "is empty"}
		}
		if err := firstError(checkID(one.Instance), checkStart(one.Start)); err != nil {
			return err
		}
		if g.of(one.Instance) != g {
			return &InputError{"start", "is for another group"}
		}
	}
	return nil
}
