package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/cluster/internal/server"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// For each partition that it does not lead, a node keeps a stream to the leader. Over the stream it
// receives attempts of activities and returns their results: see actors.Partition.ServeWorker. The
// stream's header names the partition.

const (
	// The pause before an ended stream is opened again.
	workRetryDelay = 50 * time.Millisecond
)

// partitionHeader is the header with the partition's number. Without it, the stream is for the
// first partition.
const partitionHeader = "tenuto-group"

// errLeaderChanged ends a stream to a former leader.
var errLeaderChanged = errors.New("another node leads")

// A workerLoop runs activities for the leader of a partition.
type workerLoop struct {
	partition *partition
	journal   *journal.Journal
}

// work registers this node as a worker with each leader of the partition, until the node closes.
func (w *workerLoop) work() {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	w.partition.node.workerStreams.Go(func() { <-w.partition.node.closing; cancel(replay.ErrNodeStopping) })
	for ctx.Err() == nil {
		changed := w.partition.leaderNotifier.Next()
		leader, address := w.journal.Leader()
		if leader == "" || leader == w.partition.node.config.NodeID {
			_ = w.partition.awaitLeaderChange(ctx, changed)
			continue
		}
		err := w.workForLeader(ctx, leader, address)
		w.partition.node.config.Logger.Debug("worker stream ended", "leader", leader, "error", err)
		_ = w.partition.node.sleep(ctx, workRetryDelay)
	}
}

// workForLeader runs activities for a leader while it leads. The stream outlives ctx so that the
// worker can announce that it drains.
func (w *workerLoop) workForLeader(ctx context.Context, leader, address string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	streaming, end := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	defer cancel(nil)
	node, err := w.partition.node.peers.Node(address)
	if err != nil {
		return err
	}
	wg.Go(func() { cancel(w.awaitNewLeader(ctx, leader)) })
	if err := node.AwaitConnection(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, end)
	stream, err := node.NewStream(w.withPartition(streaming), &server.WorkStream, server.WorkMethod)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	in := receive(w.partition.node, &wg, stream, decodeToWorker)
	out := transmit(w.partition.node, &wg, stream, w.encodeFromWorker, cancel)
	return w.partition.node.system.RunWorker(ctx, w.registration(), in, out)
}

// withPartition adds the partition's header to a stream.
func (w *workerLoop) withPartition(ctx context.Context) context.Context {
	if w.partition.number == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, partitionHeader, strconv.Itoa(w.partition.number))
}

// awaitNewLeader returns when another node is known to lead.
func (w *workerLoop) awaitNewLeader(ctx context.Context, leader string) error {
	for {
		changed := w.partition.leaderNotifier.Next()
		if now, _ := w.journal.Leader(); now != "" && now != leader {
			return errLeaderChanged
		}
		if err := w.partition.awaitLeaderChange(ctx, changed); err != nil {
			return err
		}
	}
}

// activityNames returns the names of the activities that this node has code for.
func (c Config) activityNames() []string {
	var names []string
	for _, definition := range c.Definitions {
		if name, ok := definition.Activity(); ok {
			names = append(names, name)
		}
	}
	return names
}

// codeBytesMax bounds the list of orchestrations that a worker sends, in bytes: enough for a
// thousand with names and versions of maximum length.
const codeBytesMax = 272 << 10

// codeBytes returns the size of a list of orchestrations, as codeBytesMax bounds it: names,
// versions, and 16 bytes for each.
func codeBytes(all []session.Code) (bytes int) {
	for _, code := range all {
		bytes += len(code.Name) + len(code.Version) + 16
	}
	return bytes
}

// orchestrationCode returns the orchestrations that this node has code for.
func (c Config) orchestrationCode() (all []session.Code) {
	for _, definition := range c.Definitions {
		if name, version, ok := definition.Orchestration(); ok {
			all = append(all, session.Code{Name: name, Version: version})
		}
	}
	return all
}

// registration returns what this node registers with the leader of the partition: its activities
// and its code.
func (w *workerLoop) registration() session.RegisterWorker {
	registration := session.RegisterWorker{Node: w.partition.node.config.NodeID, Partition: w.partition.number, Activities: w.partition.node.config.activityNames()}
	if all := w.partition.node.config.orchestrationCode(); codeBytes(all) <= codeBytesMax {
		registration.Orchestrations, registration.CodeKnown = all, true
	}
	return registration
}

// isCoveredBy reports whether a registered worker has all the code of this configuration.
func (c Config) isCoveredBy(registration *session.RegisterWorker) bool {
	if registration == nil || !registration.CodeKnown {
		return false
	}
	orchestrations, activities := make(map[session.Code]bool), make(map[string]bool)
	for _, code := range registration.Orchestrations {
		orchestrations[code] = true
	}
	for _, name := range registration.Activities {
		activities[name] = true
	}
	return !slices.ContainsFunc(c.orchestrationCode(), func(code session.Code) bool { return !orchestrations[code] }) &&
		!slices.ContainsFunc(c.activityNames(), func(name string) bool { return !activities[name] })
}

// otherMemberCount returns how many other nodes may run activities for this one.
func (n *Node) otherMemberCount() int { return len(n.partitions[0].journal.Members()) - 1 }

// ServeWorker implements server.Node: while this node leads, it assigns activities to the calling
// node.
func (s *nodeService) ServeWorker(stream grpc.ServerStream) error {
	return s.node.recoverer.Stream("work", func() error { return s.runWorkerSession(stream) })
}

func (s *nodeService) runWorkerSession(stream grpc.ServerStream) error {
	n, worker := s.node, callerOf(stream.Context())
	if worker.Kind == PrincipalNode && !n.directory.IsMember(worker.Name) {
		return status.Error(codes.PermissionDenied, ErrNotAuthorized.Error())
	}
	p := s.workerPartition(stream.Context())
	if p == nil {
		return status.Error(codes.FailedPrecondition, journal.ErrNotLeader.Error())
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	in := receive(n, &n.workerStreams, stream, func(wire *clusterpb.FromWorker) (session.FromWorker, error) {
		if registration := wire.GetRegister(); registration != nil {
			if err := n.config.checkProtocol(registration.Protocol); err != nil {
				return session.FromWorker{}, err
			}
		}
		return decodeFromWorker(wire, worker)
	})
	out := transmit(n, &n.workerStreams, stream, encodeToWorker, cancel)
	err := p.ServeWorker(ctx, in, out)
	return status.Error(codes.Unavailable, err.Error())
}

// workerPartition returns the partition named by a worker's stream, nil if this node does not lead
// it.
func (s *nodeService) workerPartition(ctx context.Context) *actors.Partition {
	partition := 0
	if named := metadata.ValueFromIncomingContext(ctx, partitionHeader); len(named) == 1 {
		var err error
		if partition, err = strconv.Atoi(named[0]); err != nil || partition < 0 || partition >= len(s.node.partitions) {
			return nil
		}
	}
	return s.node.partitions[partition].actorPartition.Load()
}

// A stream is either side of a worker stream.
type stream interface {
	Context() context.Context
	SendMsg(any) error
	RecvMsg(any) error
}

// receive returns a channel of incoming messages. It is closed when the stream ends or a message is
// invalid.
func receive[W any, M any, P interface {
	*W
	proto.Message
}](n *Node, running *sync.WaitGroup, s stream, read func(P) (M, error)) <-chan M {
	in := make(chan M)
	next := func() error {
		wire := P(new(W))
		if err := s.RecvMsg(wire); err != nil {
			return err
		}
		m, err := read(wire)
		if err != nil {
			return err
		}
		select {
		case in <- m:
			return nil
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	running.Go(func() {
		defer close(in)
		for n.recoverer.Stream("work", next) == nil {
		}
	})
	return in
}

// transmit returns a channel whose messages are sent until the stream ends. It calls cancel when
// sending fails.
func transmit[M any, P proto.Message](n *Node, running *sync.WaitGroup, s stream, write func(M) P, cancel func(error)) chan<- M {
	out := make(chan M)
	running.Go(func() {
		for {
			select {
			case m := <-out:
				if err := n.recoverer.Stream("work", func() error { return s.SendMsg(write(m)) }); err != nil {
					cancel(err)
					return
				}
			case <-s.Context().Done():
				return
			}
		}
	})
	return out
}

func decodeFromWorker(wire *clusterpb.FromWorker, worker Principal) (m session.FromWorker, err error) {
	switch value := wire.Message.(type) {
	case *clusterpb.FromWorker_Register:
		m.Register, err = decodeRegistration(value.Register, worker)
	case *clusterpb.FromWorker_RunningAttempt:
		m.RunningAttempt = &session.RunningAttempt{Name: value.RunningAttempt.Name, Age: time.Duration(value.RunningAttempt.Age)}
		m.RunningAttempt.AttemptID, err = decodeAttemptID(value.RunningAttempt.Attempt)
	case *clusterpb.FromWorker_FreeSlots:
		m.FreeSlots = int(value.FreeSlots)
	case *clusterpb.FromWorker_Heartbeat:
		m.Heartbeat = &session.Heartbeat{Details: value.Heartbeat.Details}
		m.Heartbeat.AttemptID, err = decodeAttemptID(value.Heartbeat.Attempt)
	case *clusterpb.FromWorker_Result:
		r := value.Result
		m.Result = &session.Result{Output: r.Output, Error: r.Error, Pending: r.Pending, Details: r.Details}
		m.Result.AttemptID, err = decodeAttemptID(r.Attempt)
	case *clusterpb.FromWorker_Drain:
		m.Drain = value.Drain
	}
	return m, err
}

func decodeRegistration(wire *clusterpb.RegisterWorker, worker Principal) (*session.RegisterWorker, error) {
	if worker.Kind == PrincipalNode && wire.Node != worker.Name {
		return nil, ErrNotAuthorized
	}
	registration := &session.RegisterWorker{
		Node: wire.Node, Activities: wire.Activities, Tags: wire.Tags,
		Limits: make(map[string]int), CodeKnown: wire.Code == clusterpb.CodeList_CODE_LIST_COMPLETE,
	}
	for _, code := range wire.Orchestrations {
		registration.Orchestrations = append(registration.Orchestrations, session.Code{Name: code.GetName(), Version: code.GetVersion()})
	}
	if bytes := codeBytes(registration.Orchestrations); bytes > codeBytesMax {
		return nil, &InputError{"orchestrations", fmt.Sprintf("count as %d bytes: at most %d are allowed", bytes, codeBytesMax)}
	}
	for name, most := range wire.Limits {
		registration.Limits[name] = int(most)
	}
	return registration, nil
}

func decodeAttemptID(wire *clusterpb.AttemptID) (session.AttemptID, error) {
	id := session.AttemptID{Ref: wire.GetRef(), Number: int(wire.GetNumber())}
	if id.Ref == nil || id.Number == 0 {
		return id, &InputError{"attempt", "has no operation or no number"}
	}
	return id, nil
}

func encodeAttemptID(id session.AttemptID) *clusterpb.AttemptID {
	return &clusterpb.AttemptID{Ref: id.Ref, Number: uint32(id.Number)}
}

// encodeFromWorker encodes a message of this node, adding the protocol that it speaks.
func (w *workerLoop) encodeFromWorker(m session.FromWorker) *clusterpb.FromWorker {
	wire := encodeFromWorker(m)
	if registration := wire.GetRegister(); registration != nil {
		registration.Protocol = w.partition.node.config.protocol
	}
	return wire
}

func encodeFromWorker(m session.FromWorker) *clusterpb.FromWorker {
	switch {
	case m.Register != nil:
		return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_Register{Register: encodeRegistration(m.Register)}}
	case m.RunningAttempt != nil:
		return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_RunningAttempt{RunningAttempt: &clusterpb.RunningAttempt{
			Attempt: encodeAttemptID(m.RunningAttempt.AttemptID), Name: m.RunningAttempt.Name, Age: int64(m.RunningAttempt.Age),
		}}}
	case m.FreeSlots > 0:
		return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_FreeSlots{FreeSlots: uint32(m.FreeSlots)}}
	case m.Heartbeat != nil:
		return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_Heartbeat{Heartbeat: &clusterpb.Heartbeat{
			Attempt: encodeAttemptID(m.Heartbeat.AttemptID), Details: m.Heartbeat.Details,
		}}}
	case m.Result != nil:
		return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_Result{Result: &clusterpb.AttemptResult{
			Attempt: encodeAttemptID(m.Result.AttemptID), Output: m.Result.Output, Error: m.Result.Error,
			Pending: m.Result.Pending, Details: m.Result.Details,
		}}}
	}
	if m.Drain {
		return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_Drain{Drain: true}}
	}
	return new(clusterpb.FromWorker)
}

func encodeRegistration(registration *session.RegisterWorker) *clusterpb.RegisterWorker {
	wire := &clusterpb.RegisterWorker{
		Node: registration.Node, Activities: registration.Activities, Tags: registration.Tags,
		Limits: make(map[string]uint32), Code: clusterpb.CodeList_CODE_LIST_TRUNCATED,
	}
	if registration.CodeKnown {
		wire.Code = clusterpb.CodeList_CODE_LIST_COMPLETE
	}
	for _, code := range registration.Orchestrations {
		wire.Orchestrations = append(wire.Orchestrations, &clusterpb.OrchestrationCode{Name: code.Name, Version: code.Version})
	}
	for name, most := range registration.Limits {
		wire.Limits[name] = uint32(most)
	}
	return wire
}

func decodeToWorker(wire *clusterpb.ToWorker) (m session.ToWorker, err error) {
	switch value := wire.Message.(type) {
	case *clusterpb.ToWorker_AssignAttempt:
		t := value.AssignAttempt
		m.AssignAttempt = &session.AssignAttempt{
			Name: t.Name, Input: t.Input, Scheduled: clustertime.FromUnixNano(t.Scheduled),
			LastError: t.LastError, Details: t.Details, TimeLeft: time.Duration(t.TimeLeft), QueuedFor: time.Duration(t.QueuedFor), TraceContext: t.Trace,
		}
		m.AssignAttempt.AttemptID, err = decodeAttemptID(t.Attempt)
	case *clusterpb.ToWorker_CancelAttempt:
		m.CancelAttempt = &session.CancelAttempt{Timeout: replay.TimeoutKind(value.CancelAttempt.Timeout)}
		m.CancelAttempt.AttemptID, err = decodeAttemptID(value.CancelAttempt.Attempt)
	case *clusterpb.ToWorker_Ack:
		m.Ack = new(session.AttemptID)
		*m.Ack, err = decodeAttemptID(value.Ack)
	}
	return m, err
}

func encodeToWorker(m session.ToWorker) *clusterpb.ToWorker {
	switch {
	case m.AssignAttempt != nil:
		t := m.AssignAttempt
		return &clusterpb.ToWorker{Message: &clusterpb.ToWorker_AssignAttempt{AssignAttempt: &clusterpb.AssignAttempt{
			Attempt: encodeAttemptID(t.AttemptID), Name: t.Name, Input: t.Input, Scheduled: t.Scheduled.UnixNano(),
			LastError: t.LastError, Details: t.Details, TimeLeft: int64(t.TimeLeft), QueuedFor: int64(t.QueuedFor), Trace: t.TraceContext,
		}}}
	case m.CancelAttempt != nil:
		return &clusterpb.ToWorker{Message: &clusterpb.ToWorker_CancelAttempt{CancelAttempt: &clusterpb.CancelAttempt{
			Attempt: encodeAttemptID(m.CancelAttempt.AttemptID), Timeout: string(m.CancelAttempt.Timeout),
		}}}
	case m.Ack != nil:
		return &clusterpb.ToWorker{Message: &clusterpb.ToWorker_Ack{Ack: encodeAttemptID(*m.Ack)}}
	}
	return new(clusterpb.ToWorker)
}
