package cluster

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/crosspartition"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/routing"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A dispatcher passes a request to the part of the node that answers it.
type dispatcher struct{ node *Node }

// serve answers a request. If this node does not lead, the failure names the leader, if known. A
// panic becomes the call's failure.
func (d *dispatcher) serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	var response *clusterpb.Response
	err := d.node.recoverer.Call(request, func() (err error) {
		response, err = d.handle(ctx, request)
		return err
	})
	if err != nil {
		return d.failureResponse(request, err)
	}
	response.Protocol = d.node.config.protocol
	return response
}

// failureResponse returns the response to a request that failed with an error.
func (d *dispatcher) failureResponse(request *clusterpb.Request, err error) *clusterpb.Response {
	response := &clusterpb.Response{Protocol: d.node.config.protocol, Failure: toFailure(err)}
	leader, address := d.node.partitionFor(request).journal.Leader()
	if response.Failure.Code == wire.CodeNotLeader && leader != d.node.config.NodeID {
		response.Failure.Leader = address
	}
	if request.RejectIfStalled { // of a message of an instance, which records what follows from the failure
		response.Cut = d.node.partitionFor(request).journal.Cut()
	}
	return response
}

func (d *dispatcher) handle(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := d.node.config.checkProtocol(request.Protocol); err != nil {
		return nil, err
	}
	if err := checkLineage(d.node, request); err != nil {
		return nil, err
	}
	request.Lineage = "" // other nodes need not check it again
	if response, err := d.node.replicaCalls.answerLocally(ctx, request); response != nil || err != nil {
		return response, err
	}
	if d.node.scatter.concernsAllPartitions(request) {
		return d.node.scatter.fanOut(ctx, request)
	}
	return d.node.partitionFor(request).handle(ctx, request)
}

// handle answers a request for the partition, if this node leads it. The response holds the index
// that a replica must have applied to show the call's effects.
func (pa *partition) handle(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if request.Cut > 0 {
		if err := crosspartition.FollowCut(ctx, pa.journal, request.Cut); err != nil {
			return nil, err
		}
	}
	response, err := pa.execute(ctx, request)
	if err == nil && response.AppliedIndex == 0 {
		response.AppliedIndex = pa.journal.AppliedIndex()
	}
	if err == nil && request.RejectIfStalled { // a message of an instance
		response.Cut = pa.journal.Cut() // after the message was recorded
	}
	return response, instances.WrapForgotten(request, err)
}

func (pa *partition) execute(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	kind := kindOf(request)
	if kind.anyRole {
		return kind.serve(ctx, pa, nil, request)
	}
	pa.awaitLeader(ctx)
	p := pa.servingPartition()
	if p == nil || request.Instance != "" && isQuarantined(pa, request.Instance) {
		return nil, journal.ErrNotLeader
	}
	if kind.serve != nil {
		return kind.serve(ctx, pa, p, request)
	}
	if err := pa.barrier(ctx); err != nil {
		return nil, err
	}
	return pa.read(ctx, p, request)
}

// read answers a read from this node's replica of the partition. p is nil if it need not lead.
func (pa *partition) read(ctx context.Context, p *actors.Partition, request *clusterpb.Request) (*clusterpb.Response, error) {
	read := kindOf(request).read
	if read == nil {
		return nil, fmt.Errorf("%w: this node does not know that kind of read", journal.ErrProtocol)
	}
	index := pa.journal.AppliedIndex() // taken first: the read shows at least this index
	response, err := read(ctx, pa, p, request)
	switch {
	case instances.IsNotFound(err): // purged meanwhile
		return nil, actors.ErrNotFound
	case err != nil:
		return nil, err
	}
	response.AppliedIndex = index
	return response, nil
}

// ServeStartBatch implements server.Node.
func (s *nodeService) ServeStartBatch(stream grpc.ServerStream) error {
	return s.node.recoverer.Stream("start_batch", func() error { return s.answerStartBatch(stream) })
}

func (s *nodeService) answerStartBatch(stream grpc.ServerStream) error {
	ctx, request := stream.Context(), new(clusterpb.Request)
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	if err := s.check(ctx, request); err != nil {
		return stream.SendMsg(&clusterpb.Response{Protocol: s.node.config.protocol, Failure: toFailure(err)})
	}
	err := s.node.dispatcher.startBatch(ctx, request, func(response *clusterpb.Response) error { return stream.SendMsg(response) })
	if err != nil {
		return stream.SendMsg(s.node.dispatcher.failureResponse(request, err))
	}
	return nil
}

// startBatch answers a batch of starts, if this node leads their partition. It returns an error if
// it could answer none of them, or the error of answer.
func (d *dispatcher) startBatch(ctx context.Context, request *clusterpb.Request, answer func(*clusterpb.Response) error) error {
	g := d.node.partitionFor(request)
	if err := firstError(d.node.config.checkProtocol(request.Protocol), g.checkStartBatch(request.GetStartBatch())); err != nil {
		return err
	}
	g.awaitLeader(ctx)
	p := g.servingPartition()
	if p == nil {
		return journal.ErrNotLeader
	}
	return g.startEach(ctx, p, request.GetStartBatch().GetStarts(), func(value *clusterpb.StartBatchResult) error {
		return answer(&clusterpb.Response{Protocol: d.node.config.protocol, Result: &clusterpb.Response_StartBatch{StartBatch: value}})
	})
}

// startEach answers each start as soon as possible: a rejected start does not wait for those that
// must be committed.
func (pa *partition) startEach(ctx context.Context, p *actors.Partition, starts []*clusterpb.InstanceStart, answer func(*clusterpb.StartBatchResult) error) error {
	answers := make(chan *clusterpb.StartBatchItem, len(starts))
	var starting sync.WaitGroup
	defer starting.Wait()
	for i, one := range starts {
		starting.Go(func() {
			request := &clusterpb.Request{Instance: one.Instance, Retried: one.Retried, FirstIndex: one.FirstIndex, Principal: one.Principal, Call: &clusterpb.Request_Start{Start: one.Start}}
			var response *clusterpb.Response
			err := pa.node.recoverer.Call(request, func() (err error) {
				response, err = pa.inputs.Start(ctx, p, request, one.Start)
				return pa.inputs.ConfirmRejection(ctx, p, err)
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
func (pa *partition) checkStartBatch(r *clusterpb.StartBatchRequest) error {
	if len(r.GetStarts()) == 0 || len(r.Starts) > routing.StartBatchMax {
		return invalidArgument("starts", fmt.Sprintf("are %d: 1 to %d are allowed", len(r.GetStarts()), routing.StartBatchMax))
	}
	for _, one := range r.Starts {
		if one.GetStart() == nil {
			return invalidArgument("start", "is empty")
		}
		if err := firstError(checkID(one.Instance), checkStart(one.Start), checkText("principal", one.Principal, 0, 2*userMax)); err != nil {
			return err
		}
		if pa.node.partitionOf(one.Instance) != pa {
			return invalidArgument("start", "is for another partition")
		}
	}
	return nil
}
