package comparison

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

const (
	// lease is how long a view is kept after its last use.
	lease = 2 * time.Minute
	// readMax is the most bytes of one answer, hashesMax the most hashes.
	readMax   = 1 << 20
	hashesMax = 100_000
)

// errNoView means that a node has no such view, for example because it was missed or has expired.
var errNoView = errors.New("the node has no such view")

// ErrNotStopped means that the instance of a call is not stopped.
var ErrNotStopped = errors.New("the instance is not stopped: its replicas agree, or a majority of them does")

// Ask sends a request for the partition to a node once.
type Ask func(ctx context.Context, node, address string, request *clusterpb.Request) (*clusterpb.Response, error)

// A Server takes views of this node's replica of a partition, one at a time, and answers what the
// leader asks. Its methods may be called concurrently.
type Server struct {
	Journal *journal.Journal
	Ask     Ask
	Step    func(step string) // as in Config

	mu     sync.Mutex
	served *servedView
	closed bool
}

type servedView struct {
	number   uint64
	pending  *state.PendingView
	expiry   *time.Timer
	exported string // the ID of the latest instance that was read
	encoded  []byte // that instance
}

// View takes a view at a comparison, instead of the one before.
func (s *Server) View(ctx context.Context, r *clusterpb.ViewRequest) (*clusterpb.Viewed, error) {
	s.end(0)
	pending, err := s.Journal.PrepareView(ctx, r.Number, r.Pause)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.served != nil {
		pending.Close()
		return nil, errNoView
	}
	s.served = &servedView{number: r.Number, pending: pending, expiry: time.AfterFunc(lease, func() { s.end(r.Number) })}
	return new(clusterpb.Viewed), nil
}

// End ends the view of a comparison, if it exists.
func (s *Server) End(r *clusterpb.EndViewRequest) *clusterpb.ViewEnded {
	s.end(r.Number)
	return new(clusterpb.ViewEnded)
}

// Close ends the view that exists, and refuses later ones.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end(0)
}

// end ends the view of a comparison, or any for 0.
func (s *Server) end(number uint64) {
	s.mu.Lock()
	served := s.served
	if served == nil || number != 0 && served.number != number {
		s.mu.Unlock()
		return
	}
	s.served = nil
	s.mu.Unlock()
	served.expiry.Stop()
	served.pending.Close()
}

// find returns a view and renews its lease.
func (s *Server) find(number uint64) (*servedView, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.served == nil || s.served.number != number {
		return nil, errNoView
	}
	s.served.expiry.Reset(lease)
	return s.served, nil
}

func (s *Server) await(ctx context.Context, number uint64) (*state.View, error) {
	served, err := s.find(number)
	if err != nil {
		return nil, err
	}
	return served.pending.Wait(ctx)
}

// Compare returns the digest of a range.
func (s *Server) Compare(ctx context.Context, r *clusterpb.CompareRequest) (*clusterpb.RangeDigest, error) {
	view, err := s.await(ctx, r.Number)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	d, err := view.Compare(r.From, r.To, int(r.InstancesMax), r.BytesMax, r.Each)
	if err != nil {
		return nil, err
	}
	answer := &clusterpb.RangeDigest{
		To: d.To, Instances: d.Instances, Events: d.Events, Bytes: d.Bytes, Digest: d.Digest[:], Index: view.Index, Took: int64(time.Since(began)),
	}
	for i := range d.Each {
		one := &clusterpb.InstanceDigest{
			Instance: d.Each[i].ID, Digest: d.Each[i].Digest[:], History: d.Each[i].History[:],
			LastExecution: d.Each[i].Execution, LastEventId: d.Each[i].LastEventID,
		}
		if damage := d.Each[i].Damage; damage != nil {
			one.Damage, one.Execution, one.EventId = damage.Reason, damage.Execution, damage.EventID
		}
		answer.Each = append(answer.Each, one)
	}
	return answer, nil
}

// CompareEvents returns the executions of an instance, and the hashes of the events of one.
func (s *Server) CompareEvents(ctx context.Context, r *clusterpb.CompareEventsRequest) (*clusterpb.EventHashes, error) {
	view, err := s.await(ctx, r.Number)
	if err != nil {
		return nil, err
	}
	executions, _, err := view.Executions(r.Instance)
	if err != nil {
		return nil, err
	}
	answer := new(clusterpb.EventHashes)
	for i := range executions {
		x := &executions[i]
		answer.Executions = append(answer.Executions, &clusterpb.ExecutionDigest{Number: x.Number, LastEventId: x.LastEventID, Digest: x.Digest[:]})
	}
	if r.Execution == 0 {
		return answer, nil
	}
	hashes, err := view.EventHashes(r.Instance, r.Execution, max(r.From, 1), hashesMax)
	for _, h := range hashes {
		answer.Hashes = binary.BigEndian.AppendUint64(answer.Hashes, h)
	}
	return answer, err
}

// Read returns a part of an encoded instance.
func (s *Server) Read(ctx context.Context, r *clusterpb.ReadViewRequest) (*clusterpb.ViewBytes, error) {
	view, err := s.await(ctx, r.Number)
	if err != nil {
		return nil, err
	}
	served, err := s.find(r.Number)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	encoded, known := served.encoded, served.exported == r.Instance
	s.mu.Unlock()
	if !known || r.Offset == 0 {
		if encoded, err = view.Export(r.Instance); err != nil {
			return nil, err
		}
		s.mu.Lock()
		served.exported, served.encoded = r.Instance, encoded
		s.mu.Unlock()
	}
	size := uint64(len(encoded))
	from := min(r.Offset, size)
	return &clusterpb.ViewBytes{Data: encoded[from:min(from+readMax, size)], Size: size}, nil
}

// Repair replaces this node's replica of an instance by that of the source, while nothing is
// applied.
func (s *Server) Repair(ctx context.Context, r *clusterpb.RepairRequest) (*clusterpb.Repaired, error) {
	served, err := s.find(r.Number)
	if err != nil {
		return nil, err
	}
	defer served.pending.Resume()
	s.step(StepAsked)
	if _, err := served.pending.Wait(ctx); err != nil {
		return nil, err
	}
	var encoded []byte
	for {
		response, err := s.Ask(ctx, r.Source, r.SourceAddress, &clusterpb.Request{Call: &clusterpb.Request_ReadView{ReadView: &clusterpb.ReadViewRequest{
			Node: r.Source, Number: r.Number, Instance: r.Instance, Offset: uint64(len(encoded)),
		}}})
		if err != nil {
			return nil, fmt.Errorf("read the replica of %s: %w", r.Source, err)
		}
		part := response.GetReadView()
		encoded = append(encoded, part.GetData()...)
		if uint64(len(encoded)) >= part.GetSize() {
			break
		}
		if len(part.GetData()) == 0 {
			return nil, fmt.Errorf("the replica of %s ends early", r.Source)
		}
	}
	s.step(StepRead)
	if err := served.pending.ReplaceInstance(r.Instance, encoded); err != nil {
		return nil, err
	}
	s.step(StepReplaced)
	return new(clusterpb.Repaired), nil
}

func (s *Server) step(name string) {
	if s.Step != nil {
		s.Step(name)
	}
}
