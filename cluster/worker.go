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
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
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
	in := receive(w.partition.node, &wg, stream, checkToWorker)
	out := transmit[clusterpb.FromWorker](w.partition.node, &wg, stream, cancel)
	return w.partition.node.system.RunWorker(ctx, w.partition.number, w.registration(), in, out)
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
func codeBytes(all []*clusterpb.OrchestrationCode) (bytes int) {
	for _, code := range all {
		bytes += len(code.GetName()) + len(code.GetVersion()) + 16
	}
	return bytes
}

// orchestrationCode returns the orchestrations that this node has code for.
func (c Config) orchestrationCode() (all []*clusterpb.OrchestrationCode) {
	for _, definition := range c.Definitions {
		if name, version, ok := definition.Orchestration(); ok {
			all = append(all, &clusterpb.OrchestrationCode{Name: name, Version: version})
		}
	}
	return all
}

// registration returns what this node registers with the leader of the partition: the protocol that
// it speaks, its activities and its code, with what every node of this build has.
func (w *workerLoop) registration() *clusterpb.RegisterWorker {
	config := w.partition.node.config
	config.Definitions = slices.Concat(ownDefinitions(), config.Definitions)
	registration := &clusterpb.RegisterWorker{
		Protocol: config.protocol, Node: config.NodeID, Activities: config.activityNames(), Code: clusterpb.CodeList_CODE_LIST_TRUNCATED, Zone: config.Zone,
	}
	if all := config.orchestrationCode(); codeBytes(all) <= codeBytesMax {
		registration.Orchestrations, registration.Code = all, clusterpb.CodeList_CODE_LIST_COMPLETE
	}
	return registration
}

// isCoveredBy reports whether a registered worker has all the code of this configuration. It does
// not need what only nodes of this build have: leadership can move to earlier builds, and back when
// a schedule waits for code.
func (c Config) isCoveredBy(registration *clusterpb.RegisterWorker) bool {
	if !session.KnowsCode(registration) {
		return false
	}
	orchestrations, activities := make(map[session.Code]bool), make(map[string]bool)
	for _, code := range registration.Orchestrations {
		orchestrations[session.CodeOf(code)] = true
	}
	for _, name := range registration.Activities {
		activities[name] = true
	}
	return !slices.ContainsFunc(c.orchestrationCode(), func(code *clusterpb.OrchestrationCode) bool { return !orchestrations[session.CodeOf(code)] }) &&
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
	in := receive(n, &n.workerStreams, stream, func(m *clusterpb.FromWorker) error {
		if registration := m.GetRegister(); registration != nil {
			if err := n.config.checkProtocol(registration.Protocol); err != nil {
				return err
			}
		}
		return checkFromWorker(m, worker)
	})
	out := transmit[clusterpb.ToWorker](n, &n.workerStreams, stream, cancel)
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

// receive returns a channel of incoming messages. It is closed when the stream ends or check rejects
// a message.
func receive[M any, P interface {
	*M
	proto.Message
}](n *Node, running *sync.WaitGroup, s stream, check func(P) error) <-chan P {
	in := make(chan P)
	next := func() error {
		m := P(new(M))
		if err := s.RecvMsg(m); err != nil {
			return err
		}
		if err := check(m); err != nil {
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
func transmit[M any](n *Node, running *sync.WaitGroup, s stream, cancel func(error)) chan<- *M {
	out := make(chan *M)
	running.Go(func() {
		for {
			select {
			case m := <-out:
				if err := n.recoverer.Stream("work", func() error { return s.SendMsg(m) }); err != nil {
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

// checkFromWorker rejects a message that a leader cannot handle, and the registration of another
// node than the caller.
func checkFromWorker(m *clusterpb.FromWorker, worker Principal) error {
	switch body := m.Message.(type) {
	case *clusterpb.FromWorker_Register:
		return checkRegistration(body.Register, worker)
	case *clusterpb.FromWorker_RunningAttempt:
		return checkAttemptID(body.RunningAttempt.GetAttempt())
	case *clusterpb.FromWorker_Heartbeat:
		return checkAttemptID(body.Heartbeat.GetAttempt())
	case *clusterpb.FromWorker_Result:
		return checkAttemptID(body.Result.GetAttempt())
	}
	return nil
}

func checkRegistration(registration *clusterpb.RegisterWorker, worker Principal) error {
	if worker.Kind == PrincipalNode && registration.GetNode() != worker.Name {
		return ErrNotAuthorized
	}
	if zone := registration.GetZone(); zone != "" && !transport.IsName(zone) {
		return invalidArgument("zone", fmt.Sprintf("is %.100q: %s", zone, transport.NameRule))
	}
	if bytes := codeBytes(registration.GetOrchestrations()); bytes > codeBytesMax {
		return invalidArgument("orchestrations", fmt.Sprintf("count as %d bytes: at most %d are allowed", bytes, codeBytesMax))
	}
	return nil
}

// checkToWorker rejects a message that a worker cannot handle.
func checkToWorker(m *clusterpb.ToWorker) error {
	switch body := m.Message.(type) {
	case *clusterpb.ToWorker_AssignAttempt:
		return checkAttemptID(body.AssignAttempt.GetAttempt())
	case *clusterpb.ToWorker_CancelAttempt:
		return checkAttemptID(body.CancelAttempt.GetAttempt())
	case *clusterpb.ToWorker_Ack:
		return checkAttemptID(body.Ack)
	}
	return nil
}

func checkAttemptID(id *clusterpb.AttemptID) error {
	if id.GetRef() == nil || id.GetNumber() == 0 {
		return invalidArgument("attempt", "has no operation or no number")
	}
	return nil
}
