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
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Every node keeps a stream to the leader of each group that it does not lead itself,
// on which it is handed activities and brings their results: see
// actors.Partition.Employ. The stream's header says which group it is about.

const (
	workMethod = "/tenuto.cluster.v1.Node/Work"
	// The pause before a stream that has ended is opened again.
	workAgain = 50 * time.Millisecond
)

// groupHeader is the header with the number of the group; without it, it is the
// first.
const groupHeader = "tenuto-group"

// errAnotherLeads ends a stream to a node that does not lead any more.
var errAnotherLeads = errors.New("another node leads")

var workStream = grpc.StreamDesc{
	StreamName:    "Work",
	ServerStreams: true,
	ClientStreams: true,
	Handler:       func(node any, stream grpc.ServerStream) error { return node.(caller).employ(stream) },
}

// work offers this node to whoever leads the group, until it closes.
func (g *group) work() {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	g.working.Go(func() { <-g.closing; cancel(replay.ErrNodeStopping) })
	for ctx.Err() == nil {
		changed := g.moved.next()
		leader, address := g.journal.Leader()
		if leader == "" || leader == g.config.NodeID {
			_ = g.awaitMove(ctx, changed)
			continue
		}
		err := g.workFor(ctx, leader, address)
		g.config.Logger.Debug("worker's stream ended", "leader", leader, "error", err)
		_ = g.rest(ctx, workAgain)
	}
}

// workFor runs activities for the node that leads, as long as it does. The stream
// outlives the work by a goodbye.
func (g *group) workFor(ctx context.Context, leader, address string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	streaming, end := context.WithCancel(context.WithoutCancel(ctx))
	var using sync.WaitGroup
	defer using.Wait()
	defer end()
	defer cancel(nil)
	node, err := g.peers.to(address)
	if err != nil {
		return err
	}
	using.Go(func() { cancel(g.awaitAnotherLeader(ctx, leader)) })
	if err := node.connect(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, end)
	stream, err := node.NewStream(g.named(streaming), &workStream, workMethod)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	in := receive(g.Node, &using, stream, toWorker)
	out := transmit(g.Node, &using, stream, g.wireFromWorker, cancel)
	return g.system.Work(ctx, g.hello(), in, out)
}

// named has a stream say which group it is about.
func (g *group) named(ctx context.Context) context.Context {
	if g.number == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, groupHeader, strconv.Itoa(g.number))
}

// awaitAnotherLeader returns when another node is known to lead.
func (g *group) awaitAnotherLeader(ctx context.Context, leader string) error {
	for {
		changed := g.moved.next()
		if now, _ := g.journal.Leader(); now != "" && now != leader {
			return errAnotherLeads
		}
		if err := g.awaitMove(ctx, changed); err != nil {
			return err
		}
	}
}

// activities returns the names of those that this node has code for.
func (c Config) activities() []string {
	var names []string
	for _, definition := range c.Definitions {
		if name, ok := definition.Activity(); ok {
			names = append(names, name)
		}
	}
	return names
}

// codeBytesMax bounds the orchestrations that a node tells: a thousand, if names and versions
// are as long as they may be.
const codeBytesMax = 272 << 10

// codeBytes returns how many bytes the names and versions of orchestrations count for.
func codeBytes(all []actors.Code) (bytes int) {
	for _, code := range all {
		bytes += len(code.Name) + len(code.Version) + 16
	}
	return bytes
}

// orchestrations returns those that this node has code for.
func (c Config) orchestrations() (all []actors.Code) {
	for _, definition := range c.Definitions {
		if name, version, ok := definition.Orchestration(); ok {
			all = append(all, actors.Code{Name: name, Version: version})
		}
	}
	return all
}

// hello says what this node can do for the leader of the group, and which code it has.
func (g *group) hello() actors.Hello {
	hello := actors.Hello{Node: g.config.NodeID, Group: g.number, Activities: g.config.activities()}
	if all := g.config.orchestrations(); codeBytes(all) <= codeBytesMax {
		hello.Orchestrations, hello.CodeKnown = all, true
	}
	return hello
}

// isCoveredBy reports whether a node has told that it has all code that this configuration binds.
func (c Config) isCoveredBy(hello *actors.Hello) bool {
	if hello == nil || !hello.CodeKnown {
		return false
	}
	orchestrations, activities := make(map[actors.Code]bool), make(map[string]bool)
	for _, code := range hello.Orchestrations {
		orchestrations[code] = true
	}
	for _, name := range hello.Activities {
		activities[name] = true
	}
	return !slices.ContainsFunc(c.orchestrations(), func(code actors.Code) bool { return !orchestrations[code] }) &&
		!slices.ContainsFunc(c.activities(), func(name string) bool { return !activities[name] })
}

// otherMembers returns how many nodes may run activities for this one.
func (n *Node) otherMembers() int { return len(n.groups[0].journal.Members()) - 1 }

// employ implements caller: it has another node run activities while this one
// leads.
func (g *gate) employ(stream grpc.ServerStream) error {
	return g.node.recoveredStream("work", func() error { return g.employWorker(stream) })
}

func (g *gate) employWorker(stream grpc.ServerStream) error {
	n, worker := g.node, callerOf(stream.Context())
	if worker.Role == RoleNode && !n.isMember(worker.Name) {
		return status.Error(codes.PermissionDenied, ErrNotAuthorized.Error())
	}
	partition := n.workedFor(stream.Context())
	if partition == nil {
		return status.Error(codes.FailedPrecondition, journal.ErrNotLeader.Error())
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	in := receive(n, &n.working, stream, func(wire *clusterpb.FromWorker) (actors.FromWorker, error) {
		if hello := wire.GetHello(); hello != nil {
			if err := n.config.understands(hello.Protocol); err != nil {
				return actors.FromWorker{}, err
			}
		}
		return fromWorker(wire, worker)
	})
	out := transmit(n, &n.working, stream, wireToWorker, cancel)
	err := partition.Employ(ctx, in, out)
	return status.Error(codes.Unavailable, err.Error())
}

// workedFor returns the partition that a worker's stream is about, nil if this node
// does not lead it.
func (n *Node) workedFor(ctx context.Context) *actors.Partition {
	group := 0
	if named := metadata.ValueFromIncomingContext(ctx, groupHeader); len(named) == 1 {
		var err error
		if group, err = strconv.Atoi(named[0]); err != nil || group < 0 || group >= len(n.groups) {
			return nil
		}
	}
	return n.groups[group].partition.Load()
}

// A stream is either side of one.
type stream interface {
	Context() context.Context
	SendMsg(any) error
	RecvMsg(any) error
}

// receive returns what comes in, until the stream ends or something comes that
// cannot be used.
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
		for n.recoveredStream("work", next) == nil {
		}
	})
	return in
}

// transmit sends what is put into the channel until the stream ends; then it
// calls cancel.
func transmit[M any, P proto.Message](n *Node, running *sync.WaitGroup, s stream, write func(M) P, cancel func(error)) chan<- M {
	out := make(chan M)
	running.Go(func() {
		for {
			select {
			case m := <-out:
				if err := n.recoveredStream("work", func() error { return s.SendMsg(write(m)) }); err != nil {
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

func fromWorker(wire *clusterpb.FromWorker, worker Principal) (m actors.FromWorker, err error) {
	switch said := wire.Said.(type) {
	case *clusterpb.FromWorker_Hello:
		m.Hello, err = readHello(said.Hello, worker)
	case *clusterpb.FromWorker_Run:
		m.Run = &actors.Run{Name: said.Run.Name, Age: time.Duration(said.Run.Age)}
		m.Run.AttemptID, err = readAttempt(said.Run.Attempt)
	case *clusterpb.FromWorker_Freed:
		m.Freed = int(said.Freed)
	case *clusterpb.FromWorker_Beat:
		m.Beat = &actors.Beat{Details: said.Beat.Details}
		m.Beat.AttemptID, err = readAttempt(said.Beat.Attempt)
	case *clusterpb.FromWorker_Result:
		r := said.Result
		m.Result = &actors.Result{Output: r.Output, Error: r.Error, Pending: r.Pending, Details: r.Details}
		m.Result.AttemptID, err = readAttempt(r.Attempt)
	case *clusterpb.FromWorker_Goodbye:
		m.Goodbye = said.Goodbye
	}
	return m, err
}

func readHello(wire *clusterpb.Hello, worker Principal) (*actors.Hello, error) {
	if worker.Role == RoleNode && wire.Node != worker.Name {
		return nil, ErrNotAuthorized
	}
	hello := &actors.Hello{
		Node: wire.Node, Activities: wire.Activities, Tags: wire.Tags,
		Limits: make(map[string]int), CodeKnown: wire.Code == clusterpb.CodeList_CODE_LIST_COMPLETE,
	}
	for _, code := range wire.Orchestrations {
		hello.Orchestrations = append(hello.Orchestrations, actors.Code{Name: code.GetName(), Version: code.GetVersion()})
	}
	if bytes := codeBytes(hello.Orchestrations); bytes > codeBytesMax {
		return nil, &InputError{"orchestrations", fmt.Sprintf("count for %d bytes: at most %d are allowed", bytes, codeBytesMax)}
	}
	for name, most := range wire.Limits {
		hello.Limits[name] = int(most)
	}
	return hello, nil
}

func readAttempt(wire *clusterpb.AttemptID) (actors.AttemptID, error) {
	id := actors.AttemptID{Ref: wire.GetRef(), Number: int(wire.GetNumber())}
	if id.Ref == nil || id.Number == 0 {
		return id, &InputError{"attempt", "has no name"}
	}
	return id, nil
}

func wireAttempt(id actors.AttemptID) *clusterpb.AttemptID {
	return &clusterpb.AttemptID{Ref: id.Ref, Number: uint32(id.Number)}
}

// wireFromWorker is what this node says, with the protocol that it speaks.
func (n *Node) wireFromWorker(m actors.FromWorker) *clusterpb.FromWorker {
	wire := wireFromWorker(m)
	if hello := wire.GetHello(); hello != nil {
		hello.Protocol = n.config.protocol
	}
	return wire
}

func wireFromWorker(m actors.FromWorker) *clusterpb.FromWorker {
	switch {
	case m.Hello != nil:
		return &clusterpb.FromWorker{Said: &clusterpb.FromWorker_Hello{Hello: wireHello(m.Hello)}}
	case m.Run != nil:
		return &clusterpb.FromWorker{Said: &clusterpb.FromWorker_Run{Run: &clusterpb.RunningAttempt{
			Attempt: wireAttempt(m.Run.AttemptID), Name: m.Run.Name, Age: int64(m.Run.Age),
		}}}
	case m.Freed > 0:
		return &clusterpb.FromWorker{Said: &clusterpb.FromWorker_Freed{Freed: uint32(m.Freed)}}
	case m.Beat != nil:
		return &clusterpb.FromWorker{Said: &clusterpb.FromWorker_Beat{Beat: &clusterpb.Heartbeat{
			Attempt: wireAttempt(m.Beat.AttemptID), Details: m.Beat.Details,
		}}}
	case m.Result != nil:
		return &clusterpb.FromWorker{Said: &clusterpb.FromWorker_Result{Result: &clusterpb.AttemptResult{
			Attempt: wireAttempt(m.Result.AttemptID), Output: m.Result.Output, Error: m.Result.Error,
			Pending: m.Result.Pending, Details: m.Result.Details,
		}}}
	}
	if m.Goodbye {
		return &clusterpb.FromWorker{Said: &clusterpb.FromWorker_Goodbye{Goodbye: true}}
	}
	return new(clusterpb.FromWorker)
}

func wireHello(hello *actors.Hello) *clusterpb.Hello {
	wire := &clusterpb.Hello{
		Node: hello.Node, Activities: hello.Activities, Tags: hello.Tags,
		Limits: make(map[string]uint32), Code: clusterpb.CodeList_CODE_LIST_TRUNCATED,
	}
	if hello.CodeKnown {
		wire.Code = clusterpb.CodeList_CODE_LIST_COMPLETE
	}
	for _, code := range hello.Orchestrations {
		wire.Orchestrations = append(wire.Orchestrations, &clusterpb.OrchestrationCode{Name: code.Name, Version: code.Version})
	}
	for name, most := range hello.Limits {
		wire.Limits[name] = uint32(most)
	}
	return wire
}

func toWorker(wire *clusterpb.ToWorker) (m actors.ToWorker, err error) {
	switch said := wire.Said.(type) {
	case *clusterpb.ToWorker_Task:
		t := said.Task
		m.Task = &actors.Task{
			Name: t.Name, Input: t.Input, Scheduled: clustertime.FromUnix(t.Scheduled),
			LastError: t.LastError, Details: t.Details, Left: time.Duration(t.Left), Waited: time.Duration(t.Waited), Carried: t.Trace,
		}
		m.Task.AttemptID, err = readAttempt(t.Attempt)
	case *clusterpb.ToWorker_GiveUp:
		m.GiveUp = &actors.GiveUp{Timeout: replay.TimeoutKind(said.GiveUp.Timeout)}
		m.GiveUp.AttemptID, err = readAttempt(said.GiveUp.Attempt)
	case *clusterpb.ToWorker_Ack:
		m.Ack = new(actors.AttemptID)
		*m.Ack, err = readAttempt(said.Ack)
	}
	return m, err
}

func wireToWorker(m actors.ToWorker) *clusterpb.ToWorker {
	switch {
	case m.Task != nil:
		t := m.Task
		return &clusterpb.ToWorker{Said: &clusterpb.ToWorker_Task{Task: &clusterpb.Task{
			Attempt: wireAttempt(t.AttemptID), Name: t.Name, Input: t.Input, Scheduled: t.Scheduled.UnixNano(),
			LastError: t.LastError, Details: t.Details, Left: int64(t.Left), Waited: int64(t.Waited), Trace: t.Carried,
		}}}
	case m.GiveUp != nil:
		return &clusterpb.ToWorker{Said: &clusterpb.ToWorker_GiveUp{GiveUp: &clusterpb.GiveUp{
			Attempt: wireAttempt(m.GiveUp.AttemptID), Timeout: string(m.GiveUp.Timeout),
		}}}
	case m.Ack != nil:
		return &clusterpb.ToWorker{Said: &clusterpb.ToWorker_Ack{Ack: wireAttempt(*m.Ack)}}
	}
	return new(clusterpb.ToWorker)
}
