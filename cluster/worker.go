package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/cluster/internal/server"
	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/cluster/internal/worker"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// For each partition that it does not lead, a node keeps a stream to the leader. Over the stream it
// receives attempts of activities and returns their results: see actors.Partition.ServeWorker. The
// stream's header names the partition.

// workRetryDelay is the pause before a node opens an ended stream again.
const workRetryDelay = 50 * time.Millisecond

// A workerLoop runs activities for the leader of a partition.
type workerLoop struct {
	partition *partition
	journal   *journal.Journal
}

// work registers this node as a worker with each leader of the partition, until the node closes.
func (w *workerLoop) work() {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	n := w.partition.node
	n.workerStreams.Go(func() { <-n.closing; cancel(replay.ErrNodeStopping) })
	loop := &worker.Loop{
		Partition: w.partition.number, Changed: w.partition.leaderNotifier.Next, Nodes: n.peers.Pool,
		Leader: func() (leader, address string) {
			if leader, address = w.journal.Leader(); leader == n.config.NodeID {
				return "", ""
			}
			return leader, address
		},
		Run: func(ctx context.Context, in <-chan *clusterpb.ToWorker, out chan<- *clusterpb.FromWorker) error {
			return n.system.RunWorker(ctx, w.partition.number, w.registration(), in, out)
		},
		Check: checkToWorker, Recoverer: n.recoverer, Logger: n.config.Logger, RetryDelayMax: workRetryDelay,
	}
	loop.Work(ctx)
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

// otherWorkerCount returns how many others may run activities for this node. Workers that are no
// nodes may be connected to any node with a listener.
func (n *Node) otherWorkerCount() int {
	others := len(n.partitions[0].journal.Members()) - 1
	if n.mux != nil {
		others = max(others, 1)
	}
	return others
}

// actionRunActivities is the action of a worker that is no node; exported by package operate.
const actionRunActivities Action = "run activities"

// workersMax bounds the workers that are no nodes and are connected to the leader of a partition.
const workersMax = 1024

// ServeWorker implements server.Node: while this node leads, it assigns activities to the calling
// worker.
func (s *nodeService) ServeWorker(stream grpc.ServerStream) error {
	return s.node.recoverer.Stream("work", func() error { return s.runWorkerSession(stream) })
}

func (s *nodeService) runWorkerSession(stream grpc.ServerStream) error {
	n, caller := s.node, callerOf(stream.Context())
	isNode := len(metadata.ValueFromIncomingContext(stream.Context(), worker.ClientHeader)) == 0
	if err := s.checkWorkerCaller(stream.Context(), caller, isNode); err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	pa := s.workerPartition(stream.Context())
	if pa == nil {
		return status.Error(codes.FailedPrecondition, journal.ErrNotLeader.Error())
	}
	p := pa.actorPartition.Load()
	if p == nil {
		return status.Error(codes.FailedPrecondition, journal.ErrNotLeader.Error())
	}
	check, pings := func(m *clusterpb.FromWorker) error { return checkFromWorker(m, caller) }, session.NodePings
	if !isNode {
		connected := pa.workers.Add(addressOf(stream.Context()), workersMax)
		if connected == nil {
			n.config.Logger.Warn("worker refused", "caller", caller.String(), "partition", pa.number, "connected", workersMax)
			return status.Errorf(codes.ResourceExhausted, "%d workers are connected to this leader, which is its maximum", workersMax)
		}
		defer connected.Remove()
		check, pings = func(m *clusterpb.FromWorker) error { return checkFromClient(m, caller, connected) }, session.WorkerPings
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	var refusal atomic.Pointer[error]
	in := worker.Receive(n.recoverer, &n.workerStreams, stream, func(m *clusterpb.FromWorker) error {
		err := check(m)
		if registration := m.GetRegister(); registration != nil {
			err = firstError(n.config.checkProtocol(registration.Protocol), err, pa.journal.CheckCaller(registration.Lineage))
		}
		if err != nil {
			refusal.Store(&err)
		}
		return err
	}, func(error) {})
	out := worker.Transmit[clusterpb.ToWorker](n.recoverer, &n.workerStreams, stream, cancel)
	err := p.ServeWorker(ctx, pings, in, out)
	if reason := refusal.Load(); reason != nil {
		return status.Error(codes.InvalidArgument, (*reason).Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}

// checkWorkerCaller returns an error if the caller may not run activities as what it says it is.
func (s *nodeService) checkWorkerCaller(ctx context.Context, caller Principal, isNode bool) error {
	switch {
	case caller.Kind == PrincipalLocal, caller.Kind == PrincipalNode && s.node.directory.IsMember(caller.Name):
		return nil
	case isNode || caller.Kind != PrincipalClient:
		return ErrNotAuthorized
	case s.node.config.Authorize == nil:
		return nil
	}
	return s.authorizeAction(ctx, caller, actionRunActivities, "")
}

// addressOf returns the address of the other end of a stream.
func addressOf(stream context.Context) string {
	if other, ok := peer.FromContext(stream); ok && other.Addr != nil {
		return other.Addr.String()
	}
	return ""
}

// checkFromClient rejects a message that a leader cannot handle, of a worker that is no node. It
// notes the worker's registration, in which it states the caller.
func checkFromClient(m *clusterpb.FromWorker, caller Principal, connected *worker.Session) error {
	connected.Contact()
	if m.GetStopAssigning() != nil {
		connected.Drain()
	}
	registration := m.GetRegister()
	if registration == nil {
		return checkFromWorker(m, caller)
	}
	if err := firstError(checkText("worker ID", registration.Worker, 1, workerIDMax), checkTags("tags", registration.Tags)); err != nil {
		return err
	}
	reserved := func(name string) bool { return strings.HasPrefix(name, schedules.ReservedPrefix) }
	switch {
	case registration.Node != "" || slices.ContainsFunc(registration.Activities, reserved):
		return ErrNotAuthorized
	case proto.Size(registration) > registrationBytesMax:
		return invalidArgument("Definitions", fmt.Sprintf("have %d bytes of names: at most %d are allowed", proto.Size(registration), registrationBytesMax))
	}
	registration.Client = caller.String()
	connected.Register(registration)
	return nil
}

// Bounds of what a worker that is no node registers.
const (
	workerNameMax        = 120
	workerIDMax          = workerNameMax + 1 + workerIDSuffix
	workerIDSuffix       = 10 // random characters
	registrationBytesMax = 128 << 10
)

// checkTags returns an error for tags that no activity can have.
func checkTags(field string, tags []string) error {
	for _, tag := range tags {
		if err := checkText(field, tag, 1, nameMax); err != nil {
			return err
		}
	}
	return nil
}

// workerPartition returns the partition named by a worker's stream, nil if there is none.
func (s *nodeService) workerPartition(ctx context.Context) *partition {
	number := 0
	if named := metadata.ValueFromIncomingContext(ctx, worker.PartitionHeader); len(named) == 1 {
		var err error
		if number, err = strconv.Atoi(named[0]); err != nil || number < 0 || number >= len(s.node.partitions) {
			return nil
		}
	}
	return s.node.partitions[number]
}

// listWorkers answers which workers are connected to the leader of a partition and are no nodes.
func listWorkers(_ context.Context, pa *partition, p *actors.Partition, _ *clusterpb.Request) (*clusterpb.Response, error) {
	loads := actors.WorkerLoads(p)
	all := pa.workers.List(func(r *clusterpb.RegisterWorker) int { return loads[r].Used })
	return workersResponse(all), nil
}

func workersResponse(all []*clusterpb.ConnectedWorker) *clusterpb.Response {
	return &clusterpb.Response{Result: &clusterpb.Response_ListWorkers{ListWorkers: &clusterpb.ListWorkersResult{Workers: all}}}
}

// fanOutWorkers lists the workers of the leaders of all partitions. Each worker is connected to
// every leader, which knows how many slots its own attempts use.
func (s *scatterGather) fanOutWorkers(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	parts, err := s.fanOutEach(request, func(pa *partition) (*clusterpb.Response, error) { return pa.callPartition(ctx, request) })
	if err != nil {
		return nil, err
	}
	var merged []*clusterpb.ConnectedWorker
	for _, part := range parts {
		for _, one := range part.GetListWorkers().GetWorkers() {
			at, found := slices.BinarySearchFunc(merged, one, func(a, b *clusterpb.ConnectedWorker) int {
				return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Client, b.Client))
			})
			if !found {
				merged = slices.Insert(merged, at, one)
				continue
			}
			known := merged[at]
			known.Used, known.Since, known.LastContact = known.Used+one.Used, min(known.Since, one.Since), max(known.LastContact, one.LastContact)
			known.Draining = known.Draining || one.Draining
		}
	}
	return workersResponse(merged), nil
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
	case *clusterpb.FromWorker_StopAssigning:
		for _, id := range body.StopAssigning.GetReturned() {
			if err := checkAttemptID(id); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkRegistration(registration *clusterpb.RegisterWorker, worker Principal) error {
	if registration.GetWorker() != "" {
		return ErrNotAuthorized
	}
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

// A remoteWorker runs activities in the process of a client of [Dial], for the leader of every
// partition.
type remoteWorker struct {
	client   *Client
	remote   *remoteTransport
	config   DialConfig
	id       string
	registry *engine.Registry
	system   *actors.System
	metrics  *telemetry.Metrics

	loops    sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelCauseFunc
	stopOnce sync.Once
}

// validateWorker returns an error for a field that is not valid, of a client that runs activities,
// and for a field that has no effect because it runs none.
func (c DialConfig) validateWorker() error {
	node := Config{Definitions: c.Definitions, ActivityLimits: c.ActivityLimits}
	switch {
	case len(c.Definitions) == 0 && (c.ActivitiesMax != 0 || c.ActivityLimits != nil || c.Tags != nil || c.ActivityInterceptors != nil || c.WorkerName != ""):
		return invalidArgument("DialConfig.Definitions", "is empty, but other fields of a worker are set: add the activities to run")
	case len(c.Definitions) > 0 && len(node.activityNames()) == 0:
		return invalidArgument("DialConfig.Definitions", "has no activity: a worker runs activities only")
	case c.ActivitiesMax < 0:
		return invalidArgument("DialConfig.ActivitiesMax", negativeRule)
	case c.ActivitiesMax > activitiesMaxMax:
		return invalidArgument("DialConfig.ActivitiesMax", fmt.Sprintf("is %d: at most %d are allowed", c.ActivitiesMax, activitiesMaxMax))
	case c.StopGrace < 0:
		return invalidArgument("DialConfig.StopGrace", negativeRule)
	case slices.Contains(c.Tags, ""):
		return invalidArgument("DialConfig.Tags", "has an empty tag: activities without a tag run on every worker")
	}
	err := firstError(checkText("DialConfig.WorkerName", c.WorkerName, 0, workerNameMax), checkTags("DialConfig.Tags", c.Tags),
		checkInterceptors("DialConfig.ActivityInterceptors", c.ActivityInterceptors))
	if err != nil {
		return err
	}
	err = firstError(node.validateDefinitions(), node.validateActivities())
	if invalid := new(replay.InvalidError); errors.As(err, &invalid) {
		return invalidArgument("DialConfig."+strings.TrimPrefix(invalid.Field, "Config."), invalid.Reason)
	}
	return err
}

// drainTimeoutDefault is the default of DialConfig.DrainTimeout.
const drainTimeoutDefault = 10 * time.Second

// activitiesMaxMax bounds Config.ActivitiesMax and DialConfig.ActivitiesMax.
const activitiesMaxMax = session.SlotsMax

// runWorker makes a client run activities, until release. It returns an error if the cluster
// refuses that.
func (r *remoteTransport) runWorker(ctx context.Context, client *Client) error {
	registry, err := engine.NewRegistry(r.config.Definitions...)
	if err != nil {
		return invalidArgument("DialConfig.Definitions", wire.TrimPrefix(err.Error()))
	}
	check := &clusterpb.Request{Call: &clusterpb.Request_CheckWorker{CheckWorker: new(clusterpb.CheckWorkerRequest)}}
	checked, err := r.call(ctx, check)
	if err != nil {
		return fmt.Errorf("run activities: %w", err)
	}
	w := &remoteWorker{client: client, remote: r, config: r.config, id: r.config.WorkerName + "-" + strings.ToLower(rand.Text()[:workerIDSuffix])}
	w.registry = registry.WithInterceptors(nil, telemetry.WithBaggage(r.config.BaggageHeaders, r.config.ActivityInterceptors)).
		WithPayloadConverter(client.converter)
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	partitions := r.knownPartitions()
	w.open(len(partitions), checked.GetCheckWorker().GetCompletionUrl())
	for number, known := range partitions {
		w.loops.Go(func() { w.loop(number, known).Work(w.ctx) })
	}
	r.worker = w
	r.config.Logger.Info("worker runs activities", "worker", w.id, "activities", len(w.registry.ActivityNames()), "partitions", len(partitions))
	return nil
}

// open makes the parts that run bodies.
func (w *remoteWorker) open(partitions int, completionURL string) {
	signer := &engine.RemoteSigner{URL: completionURL, Request: w.signToken}
	tracing := telemetry.NewTracing(w.id, w.config.TracerProvider, nil)
	w.metrics = telemetry.NewMetrics(telemetry.Config{Node: w.config.WorkerName, Definitions: w.config.Definitions, Closed: ErrClosed, AttemptsOnly: true}, nil)
	if err := w.metrics.Attach(w.config.MeterProvider); err != nil {
		w.config.Logger.Warn("cannot record metrics", "error", err)
	}
	w.system = actors.NewSystem(actors.Config{
		Registry: w.registry, Logger: w.config.Logger, Partitions: partitions, WorkerOnly: true,
		ActivitiesMax: w.config.ActivitiesMax, ActivityLimits: w.config.ActivityLimits, Tags: w.config.Tags,
		AttemptContext: signer.WithContext(context.WithValue(context.Background(), clientKey{}, w.client)),
		GracePeriod:    w.config.StopGrace,
		Observer:       telemetry.NewObserver(w.metrics, tracing), Tracer: tracing.Tracer(),
	})
}

// signToken asks the leader to sign a token of an attempt that runs here: a worker has no
// completion key.
func (w *remoteWorker) signToken(ctx context.Context, a *replay.Attempt, lifetime time.Duration) (string, error) {
	ref := &journalpb.OperationRef{Instance: a.Instance, Incarnation: a.Incarnation, Execution: a.Execution, EventId: a.EventID}
	request := &clusterpb.SignTokenRequest{Attempt: &clusterpb.AttemptID{Ref: ref, Number: uint32(a.Number)}, Lifetime: int64(lifetime)}
	response, err := w.remote.call(ctx, &clusterpb.Request{Instance: a.Instance, Call: &clusterpb.Request_SignToken{SignToken: request}})
	return response.GetSignToken().GetToken(), err
}

// checkSignToken returns an error for a request that no worker sends.
func checkSignToken(r *clusterpb.Request) error {
	id, lifetime := r.GetSignToken().GetAttempt(), time.Duration(r.GetSignToken().GetLifetime())
	if err := checkAttemptID(id); err != nil {
		return err
	}
	switch ref := id.Ref; {
	case ref.Instance != r.Instance || ref.Execution == 0 || ref.EventId == 0 || id.Number > math.MaxInt32:
		return invalidArgument("attempt", "is not one of the instance")
	case lifetime < engine.SignedTokenLifetimeMin || lifetime > engine.SignedTokenLifetimeMax:
		return invalidArgument("lifetime", fmt.Sprintf("is %v: %v to %v are allowed", lifetime, engine.SignedTokenLifetimeMin, engine.SignedTokenLifetimeMax))
	}
	return nil
}

// signTokenOfWorker signs a token of an attempt that runs on a worker of the caller, so that the
// right to run activities is not one to complete those of others.
func signTokenOfWorker(ctx context.Context, pa *partition, p *actors.Partition, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := checkSignToken(request); err != nil {
		return nil, err
	}
	id := request.GetSignToken().Attempt
	switch runs, known := actors.RunsOnWorker(p, id, request.Principal); {
	case !known:
		return nil, journal.ErrNotLeader // the worker asks again
	case !runs:
		return nil, invalidArgument("attempt", "does not run on a worker of the caller")
	}
	token, err := pa.node.tokens.signer().Sign(ctx, &replay.Attempt{
		Instance: id.Ref.Instance, Incarnation: id.Ref.Incarnation, Execution: id.Ref.Execution, EventID: id.Ref.EventId, Number: int(id.Number),
	}, time.Duration(request.GetSignToken().Lifetime))
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_SignToken{SignToken: &clusterpb.SignTokenResult{Token: token}}}, nil
}

// workerRetryDelayMax bounds the pause after a stream of a worker that is no node has ended.
const workerRetryDelayMax = 2 * time.Second

func (w *remoteWorker) loop(number int, known *remotePartition) *worker.Loop {
	slots, _ := w.system.Slots()
	registration := &clusterpb.RegisterWorker{
		// Builds of the previous protocol reject the next: they would take the worker for a node.
		Protocol: protocolVersion + 1, Worker: w.id, Slots: uint32(slots), Activities: w.registry.ActivityNames(),
	}
	return &worker.Loop{
		Partition: number, Changed: known.leaderNotifier.Next, Nodes: w.remote.pool.Pool, ClientHeader: true, RetryDelayMax: workerRetryDelayMax,
		Leader: func() (leader, address string) {
			address = w.remote.loadAddress(&known.leaderAddress)
			return address, address
		},
		Run: func(ctx context.Context, in <-chan *clusterpb.ToWorker, out chan<- *clusterpb.FromWorker) error {
			registration := proto.CloneOf(registration)
			registration.Lineage = w.remote.seenLineage()
			return w.system.RunWorker(ctx, number, registration, in, out)
		},
		Check: checkToWorker, Recoverer: server.Recoverer{Logger: w.config.Logger, Node: w.id}, Logger: w.config.Logger,
	}
}

// stop lets the attempts that have begun end, for up to DrainTimeout, and cancels the others. Then
// it tells the leaders that the worker drains, and waits up to StopGrace for bodies, which can
// still call the cluster. It may be called twice.
func (w *remoteWorker) stop() {
	if w == nil {
		return
	}
	w.stopOnce.Do(func() {
		w.drain()
		w.system.StopAttempts()
		w.cancel(replay.ErrNodeStopping)
		w.loops.Wait()
		w.system.Close()
		w.metrics.Close()
	})
}

// drain takes no more attempts, and waits up to DrainTimeout for those that have begun and for the
// acknowledgments of their results.
func (w *remoteWorker) drain() {
	idle := w.system.StopAssigning()
	timer := time.NewTimer(w.config.DrainTimeout)
	defer timer.Stop()
	select {
	case <-idle:
		return
	default:
	}
	select {
	case <-idle:
	case <-timer.C:
		w.config.Logger.Info("worker cancels the attempts that still run: they begin on other workers", "worker", w.id, "timeout", w.config.DrainTimeout)
	}
}

// withWorkerDefaults sets the defaults of the fields of a worker.
func (c DialConfig) withWorkerDefaults() DialConfig {
	if len(c.Definitions) == 0 {
		return c
	}
	c.Definitions, c.Tags, c.ActivityInterceptors = slices.Clone(c.Definitions), slices.Clone(c.Tags), slices.Clone(c.ActivityInterceptors)
	c.ActivityLimits = maps.Clone(c.ActivityLimits)
	if c.WorkerName == "" {
		host, _ := os.Hostname()
		c.WorkerName = fmt.Sprintf("%.100s-%d", cmp.Or(host, "worker"), os.Getpid())
	}
	if c.StopGrace == 0 {
		c.StopGrace = stopGraceDefault
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = drainTimeoutDefault
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	return c
}
