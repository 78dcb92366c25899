package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/membership"
	"github.com/tenuto-dev/tenuto/cluster/internal/routing"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/internal/logqueue"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// DialConfig is the configuration of a remote client. [Dial] copies it. Zero values mean defaults.
type DialConfig struct {
	// Addresses are addresses of nodes of the cluster, host:port. One is enough: the client learns
	// the others. Required without Discover.
	Addresses []string
	// Discover returns further addresses; see Config.Discover. It is called until a node has
	// answered, and again while no node that the client knows answers. Defaults to none.
	Discover func(ctx context.Context) ([]string, error)
	// ClusterID is the name of the cluster; see Config.ClusterID. Defaults to "tenuto".
	ClusterID string
	// TLS provides the keys of the client and the authorities that it trusts; see [KeyFiles]. Its
	// certificate names a client or a node of the cluster. Defaults to none: plaintext, to loopback
	// only.
	TLS KeySource
	// CallTimeout bounds how long a call without a deadline is retried while no leader answers.
	// Defaults to 30 s.
	CallTimeout time.Duration
	// PayloadConverter must have the same codec as on the nodes of the cluster. The size of values
	// is bounded by the cluster's Settings.PayloadMax, which the client learns from the nodes.
	PayloadConverter replay.PayloadConverter
	// ClientInterceptors run around the calls of the client, the first outermost.
	ClientInterceptors []replay.ClientInterceptor
	// BaggageHeaders are headers that a call takes from the OpenTelemetry baggage of its context;
	// see Config.BaggageHeaders.
	BaggageHeaders []string
	// Logger receives the log. Defaults to slog.Default().
	Logger *slog.Logger

	// Definitions make the client a worker: it also runs the activities among them for the cluster,
	// until [Client.Close]. Orchestrations among them do not run here, so an application can pass
	// the list that it passes to its nodes. Defaults to none.
	Definitions []replay.Definition
	// WorkerName is the beginning of the worker's ID, which lists of workers show. It has at most
	// 120 bytes, and need not be unique. Defaults to the host's name and the process ID.
	WorkerName string
	// ActivitiesMax, ActivityLimits, Tags, ActivityInterceptors and StopGrace are those of
	// [Config], for the activities that run here.
	ActivitiesMax        int
	ActivityLimits       map[string]int
	Tags                 []string
	ActivityInterceptors []replay.ActivityInterceptor
	StopGrace            time.Duration
	// DrainTimeout is how long [Client.Close] lets attempts that run here end, before it cancels
	// them and they begin on other workers. Attempts that have not begun begin there at once, and
	// no more are taken. Defaults to 10 s; negative: cancel at once. Up to StopGrace is added, for
	// bodies that ignore the cancellation.
	DrainTimeout time.Duration
	// MeterProvider and TracerProvider receive the metrics and spans of the attempts that run here;
	// see METRICS.md. They default to the global ones of OpenTelemetry.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	membersRefreshInterval time.Duration // for tests; 0: the constant; negative: never
}

func (c DialConfig) withDefaults() DialConfig {
	c.Addresses, c.Discover = slices.Clone(c.Addresses), membership.Bounded(c.Discover)
	c.ClientInterceptors, c.BaggageHeaders = slices.Clone(c.ClientInterceptors), slices.Clone(c.BaggageHeaders)
	if c.ClusterID == "" {
		c.ClusterID = clusterIDDefault
	}
	if c.CallTimeout <= 0 {
		c.CallTimeout = callTimeoutDefault
	}
	if c.membersRefreshInterval == 0 {
		c.membersRefreshInterval = membersRefreshInterval
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = logqueue.New(c.Logger)
	return c.withWorkerDefaults()
}

func (c DialConfig) validate() error {
	if len(c.Addresses) == 0 && c.Discover == nil {
		return invalidArgument("DialConfig.Addresses", "is empty: add the address of a node, or set Discover")
	}
	for _, address := range c.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return invalidArgument("DialConfig.Addresses", "has an address that is not host:port: "+err.Error())
		}
		if c.TLS == nil && isRemoteAddress(address) {
			return invalidArgument("DialConfig.Addresses", fmt.Sprintf("has %q: %s", address, transport.LoopbackRule))
		}
	}
	if !transport.IsName(c.ClusterID) {
		return invalidArgument("DialConfig.ClusterID", fmt.Sprintf("is %.100q: %s", c.ClusterID, transport.NameRule))
	}
	return firstError(checkInterceptors("DialConfig.ClientInterceptors", c.ClientInterceptors), checkBaggageHeaders("DialConfig", c.BaggageHeaders), c.validateWorker())
}

// Dial connects to a cluster over the network and returns a client after a node has answered. The
// client has the features of a node's client. The caller must close it ([Client.Close]). It finds
// the leader and survives the loss of any node: a wait or a watch continues at another node from
// the same position.
//
// To learn of new members, the client keeps a request open at one node. The node answers when the
// members change, or after 2 s. The client learns of each change within about 0.1 s, or up to 4 s
// if that node hangs or is cut off. All nodes may be replaced one by one, if each new node is a
// voter before an old one is removed and stopped. If all known nodes are replaced while the client
// reaches none, it finds them with Discover; without it, call Dial again.
//
// With DialConfig.Definitions the client is also a worker. It connects to the leader of every
// partition and follows changes of leaders. It keeps results until a leader has acknowledged them.
// What ClientFrom returns to the bodies is this client. The cluster must permit the action
// operate.ActionRunActivities; at most 1,024 workers can be connected.
//
// ctx bounds Dial; without a deadline, CallTimeout does. Errors: [*replay.InvalidError] for a field
// that is not valid; [*UnavailableError] if no node answers, with the reason of the last;
// [ErrNotAuthorized]; [ErrProtocol] if nodes of an earlier build do not know such workers; the
// error of ctx.
func Dial(ctx context.Context, config DialConfig) (*Client, error) {
	if ctx == nil {
		return nil, fmt.Errorf("dial: %w", invalidArgument("context", "is nil"))
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	if len(config.Addresses) == 0 {
		found, err := discoverFirst(ctx, config)
		if err != nil {
			return nil, fmt.Errorf("dial: %w", err)
		}
		config.Addresses = found
	}
	r := &remoteTransport{
		config: config, addresses: config.Addresses, anyNodeAddress: config.Addresses[0], closing: make(chan struct{}), refreshNow: make(chan struct{}, 1),
		partitions: []*remotePartition{newRemotePartition(config.Addresses[0])},
	}
	r.unanswered.Store(true)
	dialer := &transport.Dialer{Links: transport.NewLinks(func(string) bool { return true }, 1), NodeAt: r.nodeAt}
	if config.TLS != nil {
		tlsSource, err := newTLSSource(config.TLS, config.ClusterID, func(Principal) error { return nil }, config.Logger)
		if err != nil {
			return nil, fmt.Errorf("dial: %w", invalidArgument("DialConfig.TLS", "has no usable keys: "+err.Error()))
		}
		dialer.TLSSource = tlsSource
		r.running.Go(func() { <-r.closing; tlsSource.Close() }) // the pool waits for handshakes
	}
	r.pool = newCallPool(dialer)
	r.callNode = r.pool.ask
	r.running.Go(func() { dialer.Links.SweepUntil(r.closing) })
	r.running.Go(func() { r.pool.CloseUnusedUntil(r.closing) })
	r.running.Go(r.runProber)
	if config.Discover != nil {
		r.running.Go(func() { discoverWhileUnanswered(r) })
	}
	if err := r.fetchMembers(ctx); err != nil {
		_ = r.release()
		return nil, fmt.Errorf("dial: %w", err)
	}
	if config.membersRefreshInterval > 0 {
		r.running.Go(r.followMembers)
	}
	client := &Client{
		transport: r, converter: withPayloadWarnings(config.PayloadConverter, config.Logger, r.payloadMax),
		options: callOptions{config.ClientInterceptors, config.BaggageHeaders},
	}
	if len(config.Definitions) > 0 {
		if err := r.runWorker(ctx, client); err != nil {
			_ = r.release()
			return nil, fmt.Errorf("dial: %w", err)
		}
	}
	return client, nil
}

// discoverFirst returns the addresses with which a client begins. It waits until there are some.
func discoverFirst(ctx context.Context, config DialConfig) ([]string, error) {
	ctx, cancel := withDefaultTimeout(ctx, config.CallTimeout)
	defer cancel()
	for delay := admission.BackoffMin; ; delay = min(2*delay, admission.BackoffMax) {
		found, err := membership.Discover(config.Discover).Addresses(ctx)
		if len(found) > 0 {
			return found, nil
		}
		if ended := admission.Sleep(ctx, nil, delay); ended != nil {
			err = cmp.Or(err, errors.New("discover: no addresses were found"))
			return nil, &UnavailableError{NotExecuted: true, Err: errors.Join(err, ended)}
		}
	}
}

// discoverWhileUnanswered finds addresses until the client closes, while no node answers.
func discoverWhileUnanswered(r *remoteTransport) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.running.Go(func() { <-r.closing; cancel() })
	discoverer := membership.Discoverer{
		Discover: r.config.Discover,
		Needed:   r.unanswered.Load,
		Failed:   func(err error) { r.config.Logger.Warn("cannot discover nodes; trying again", "error", err) },
	}
	discoverer.Introduce = func(ctx context.Context, address string) {
		if response := r.send(ctx, address, membersRequest()); response.GetMembers() != nil {
			r.setReachable(address)
			r.applyMembers(response)
		}
	}
	discoverer.Run(ctx)
}

// setReachable makes the client use a node that has answered, if no other does.
func (r *remoteTransport) setReachable(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.unanswered.Swap(false) {
		return
	}
	if !slices.Contains(r.addresses, address) && len(r.addresses) < addressesMax {
		r.addresses = append(slices.Clone(r.addresses), address)
	}
	r.anyNodeAddress, r.membersStale = address, true
	for _, g := range r.partitions {
		g.leaderAddress = address
		g.leaderNotifier.Notify()
	}
}

// A remoteTransport reaches the cluster over the network.
type remoteTransport struct {
	config DialConfig
	pool   callPool
	// callNode sends a request to the node at an address, once. Tests replace it.
	callNode    func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response
	retryBudget admission.RetryBudget
	polls       routing.InFlight // at any node
	// valueBytesMax is the cluster's Settings.PayloadMax, as last reported; 0: unknown.
	valueBytesMax atomic.Int64
	// unanswered: no known node has answered a request for the members, or none does any more.
	unanswered atomic.Bool

	worker     *remoteWorker // set by Dial; nil: the client runs no activities
	closing    chan struct{}
	refreshNow chan struct{} // has capacity 1: the prober must refresh the members at once
	closeOnce  sync.Once
	running    sync.WaitGroup

	mu                   sync.Mutex
	nodes                map[string]string  // IDs by address, as last reported by a node
	addresses            []string           // of members and of the configuration
	partitions           []*remotePartition // one until a node has reported the number
	membersIndex         uint64             // highest last log index in a report of the members
	configurationIndexes []uint64           // by partition: index of the newest reported configuration
	anyNodeAddress       string             // address for requests that any node can answer
	membersStale         bool               // the client switched away from a node
	probeTimeout         time.Duration      // of the next probe; 0: probeTimeoutMin
	lineage              routing.Lineage    // the one that the client has seen
}

// A remotePartition is the state that a remote client keeps for a partition.
type remotePartition struct {
	leaderAddress  string             // address of the leader, if known; guarded by remoteTransport.mu
	leaderNotifier admission.Notifier // notifies when the address changes
	attempts       routing.InFlight   // at the leader
	startLimiter   admission.StartLimiter
	callLimiter    admission.CallLimiter
	seenIndex      routing.MaxIndex
	reportedIndex  routing.MaxIndex // applied index of a node that reported the members
}

func newRemotePartition(leader string) *remotePartition {
	return &remotePartition{leaderAddress: leader, callLimiter: admission.NewCallLimiter()}
}

func (r *remoteTransport) partitionFor(request *clusterpb.Request) *remotePartition {
	partitions := r.knownPartitions()
	if request.Instance == "" {
		return partitions[0]
	}
	return partitions[slots.Partition(request.Instance, len(partitions))]
}

func (r *remoteTransport) knownPartitions() []*remotePartition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.partitions
}

func (r *remoteTransport) release() error {
	r.worker.stop()
	r.closeOnce.Do(func() {
		close(r.closing)
		r.pool.Close()
	})
	r.running.Wait()
	return nil
}

func (r *remoteTransport) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	g := r.partitionFor(request)
	response, err := r.callWithRetry(ctx, request, admission.Retrier{StartLimiter: &g.startLimiter, CallLimiter: g.callLimiter, SeenIndex: max(g.seenIndex.Load(), g.reportedIndex.Load())}, r.ask)
	if members := response.GetMembers(); err == nil && members != nil && !namesLeader(members) {
		if _, better := r.askAllNodes(ctx, request); better != nil {
			return better, nil
		}
	}
	return response, err
}

func namesLeader(result *clusterpb.MembersResult) bool {
	return slices.ContainsFunc(result.GetMembers(), (*clusterpb.Member).GetLeader)
}

// askAllNodes asks all nodes for the members, for at most membersWait. It returns the first answer
// that names a leader, and its sender; nil if there is none. It is called after a node named no
// leader: the cluster may reject that node, or the node may be cut off.
func (r *remoteTransport) askAllNodes(ctx context.Context, request *clusterpb.Request) (from string, answer *clusterpb.Response) {
	r.mu.Lock()
	addresses := r.addresses[:min(len(r.addresses), addressesMax)]
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, membersWait)
	defer cancel()
	type received struct {
		from   string
		answer *clusterpb.Response
	}
	answers := make(chan received, len(addresses))
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, address := range addresses {
		asking.Go(func() { answers <- received{address, r.send(ctx, address, request)} })
	}
	for range addresses {
		t := <-answers
		r.recordMembers(t.answer) // an answer without a leader removes nothing
		if namesLeader(t.answer.GetMembers()) {
			cancel()
			return t.from, t.answer
		}
	}
	return "", nil
}

func (r *remoteTransport) readStale(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	request.Stale = true
	r.setSeenIndex(request)
	return r.callWithRetry(ctx, request, admission.Retrier{}, r.askAnyNode)
}

func (r *remoteTransport) setSeenIndex(request *clusterpb.Request) {
	if partitions := r.knownPartitions(); request.Instance == "" && len(partitions) > 1 {
		request.SeenIndexes = nil
		for _, g := range partitions {
			request.SeenIndexes = append(request.SeenIndexes, g.seenIndex.Load())
		}
		return
	}
	request.SeenIndex = r.partitionFor(request).seenIndex.Load()
}

// callWithRetry sends a request until a node answers it or its timeout passes.
func (r *remoteTransport) callWithRetry(ctx context.Context, request *clusterpb.Request, call admission.Retrier, ask admission.Asker) (*clusterpb.Response, error) {
	ctx, cancel := withDefaultTimeout(ctx, r.config.CallTimeout)
	defer cancel()
	request.Protocol = requestProtocol(protocolVersion, request)
	call.Closing, call.LeaderNotifier, call.RetryBudget = r.closing, &r.partitionFor(request).leaderNotifier, &r.retryBudget
	response, err := call.Do(ctx, request, ask)
	if err == nil {
		r.recordMembers(response)
	}
	return response, callError(err)
}

// ask sends a request to the known leader, once.
func (r *remoteTransport) ask(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	g := r.partitionFor(request)
	address := r.loadAddress(&g.leaderAddress)
	ctx, end := g.attempts.Begin(ctx, address)
	defer end()
	response := r.send(ctx, address, request)
	r.handleResponse(g, request, response, &g.leaderAddress, address, response.GetFailure().GetLeader())
	return response
}

// askAnyNode sends a request that any node can answer to one node. It waits for handshakeTimeout
// longer than a node may take.
func (r *remoteTransport) askAnyNode(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout+transport.HandshakeTimeout)
	defer cancel()
	address := r.loadAddress(&r.anyNodeAddress)
	ctx, end := r.polls.Begin(ctx, address)
	defer end()
	response := r.send(ctx, address, request)
	if response.GetFailure() == nil {
		r.setProbeTimeout(0)
	}
	r.handleResponse(r.partitionFor(request), request, response, &r.anyNodeAddress, address, "")
	return response
}

// send sends a request to the node at an address, once, and states the lineage that the client has
// seen. It does not change the caller's request. It rejects the members of another lineage, unless
// the cluster has continued as that one.
func (r *remoteTransport) send(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
	if request.GetMembers() == nil {
		request = request.ShallowCopy()
		request.Lineage = r.seenLineage()
		request.Protocol = requestProtocol(protocolVersion, request)
	}
	response := r.callNode(ctx, address, request)
	if members := response.GetMembers(); members != nil {
		if err := r.followLineages(lineage.IDs(members.Lineages)); err != nil {
			return &clusterpb.Response{Failure: toFailure(err)}
		}
	} else if response.GetFailure().GetCode() == wire.CodeOtherLineage {
		_ = r.followLineages(slices.DeleteFunc(response.Lineages, func(id string) bool { return id == "" })) // the call is retried
	}
	return response
}

// seenLineage returns the lineage that the client has seen, "" for none.
func (r *remoteTransport) seenLineage() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lineage.Latest()
}

// followLineages follows the cluster to a later lineage. It returns an error if the client must not
// use a node with these lineages.
func (r *remoteTransport) followLineages(ids []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.lineage.Latest()
	changed, err := r.lineage.Follow(ids)
	if !changed {
		return err
	}
	// What the client has seen of the journals may be lost, and their indexes used again.
	for _, g := range r.partitions {
		g.seenIndex.Store(0)
		g.reportedIndex.Store(0)
	}
	r.membersIndex, r.configurationIndexes = 0, nil
	if before != "" || !r.unanswered.Load() {
		r.config.Logger.Warn("the cluster was restored or recovered; this client follows it", "lineage", r.lineage.Latest(), "before", before)
	}
	return nil
}

func (r *remoteTransport) setProbeTimeout(waitTime time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.probeTimeout = waitTime
}

// handleResponse records the journal indexes of a response. If the node could not answer, the
// client switches to a better address if known, otherwise to the next.
func (r *remoteTransport) handleResponse(g *remotePartition, request *clusterpb.Request, response *clusterpb.Response, target *string, from, better string) {
	if failure := response.GetFailure(); failure != nil && wire.IsRetryable(failure) && r.switchAddress(target, from, better) {
		g.leaderNotifier.Notify()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if request.Lineage != r.lineage.Latest() && request.GetMembers() == nil {
		return // the indexes are of an earlier lineage
	}
	if indexes := response.GetAppliedIndexes(); len(indexes) > 0 {
		for i, all := range r.partitions {
			if i < len(indexes) {
				all.seenIndex.Advance(indexes[i])
			}
		}
		return
	}
	g.seenIndex.Advance(response.GetAppliedIndex())
}

func (r *remoteTransport) loadAddress(target *string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *target
}

// switchAddress replaces the address of a target: by the suggested one, or by the next if to is "".
// It does nothing if another call has replaced it already. It reports whether the suggested one is
// in use.
func (r *remoteTransport) switchAddress(target *string, from, to string) (better bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *target != from {
		return false
	}
	better = to != ""
	if !better {
		to = r.nextAddress(from)
		delete(r.nodes, from) // another node may use the address now
	}
	*target, r.membersStale = to, true
	select {
	case r.refreshNow <- struct{}{}:
	default: // a refresh is pending
	}
	return better
}

func (r *remoteTransport) nextAddress(address string) string {
	return r.addresses[(slices.Index(r.addresses, address)+1)%len(r.addresses)]
}

func (r *remoteTransport) fetchMembers(ctx context.Context) error {
	_, err := r.callWithRetry(ctx, membersRequest(), admission.Retrier{}, r.askAnyNode)
	return err
}

func membersRequest() *clusterpb.Request {
	return &clusterpb.Request{Protocol: protocolVersion, Stale: true, Call: &clusterpb.Request_Members{Members: new(clusterpb.MembersRequest)}}
}

// payloadMax returns the size limit of a value, in bytes of JSON before the codec, as a node has
// reported it. Nodes check it, too. An earlier build reports none.
func (r *remoteTransport) payloadMax() int {
	return cmp.Or(int(r.valueBytesMax.Load()), transport.RequestBytesMax)
}

// recordMembers records the members in a response. It returns the address of the leader of each
// partition, "" where it is unknown.
func (r *remoteTransport) recordMembers(response *clusterpb.Response) (leaders []string) {
	result := response.GetMembers()
	members := result.GetMembers()
	if len(members) == 0 {
		return nil
	}
	r.valueBytesMax.Store(int64(result.PayloadMax))
	r.unanswered.Store(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.partitions) < min(int(result.Partitions), partitionsMax) {
		r.partitions = append(slices.Clone(r.partitions), newRemotePartition(members[0].Address))
	}
	for i, index := range result.AppliedIndexes {
		if i < len(r.partitions) {
			r.partitions[i].reportedIndex.Advance(index)
		}
	}
	leaders = make([]string, len(r.partitions))
	nodes := make(map[string]string)
	var addresses []string
	for _, member := range members {
		nodes[member.Address] = member.Node
		addresses = append(addresses, member.Address)
		if member.Leader {
			leaders[0] = member.Address
		}
		for _, partition := range member.LeadsPartitions {
			if int(partition) < len(leaders) {
				leaders[partition] = member.Address
			}
		}
	}
	r.setMembers(nodes, addresses, leaders[0] != "" && r.isNewest(result))
	r.membersStale = false
	for i, leader := range leaders {
		if g := r.partitions[i]; leader != "" && g.leaderAddress != leader {
			g.leaderAddress = leader
			g.leaderNotifier.Notify()
		}
	}
	return leaders
}

// isNewest records how recent a report of the members is, and returns whether it is at least as
// recent as all before. The caller holds mu.
func (r *remoteTransport) isNewest(result *clusterpb.MembersResult) bool {
	newest := result.LastIndex >= r.membersIndex
	if received := result.ConfigurationIndexes; len(received) == len(r.partitions) {
		newest = true
		seen := make([]uint64, len(received))
		copy(seen, r.configurationIndexes)
		for i, index := range received {
			newest = newest && index >= seen[i]
			seen[i] = max(seen[i], index)
		}
		r.configurationIndexes = seen
	}
	r.membersIndex = max(r.membersIndex, result.LastIndex)
	return newest
}

// addressesMax bounds the addresses that a remote client keeps.
const addressesMax = 256

// setMembers records reported members. The caller holds mu. If the report is current, the client
// keeps only these and the configured addresses, and switches away from a node that is no longer a
// member. Otherwise it keeps all known addresses: members may be there.
func (r *remoteTransport) setMembers(nodes map[string]string, addresses []string, current bool) {
	if current && r.nodes[r.anyNodeAddress] != "" && nodes[r.anyNodeAddress] == "" {
		r.anyNodeAddress = addresses[0]
	}
	known := r.config.Addresses
	if !current {
		known = slices.Concat(r.addresses, known)
		for address, node := range r.nodes {
			if nodes[address] == "" {
				nodes[address] = node
			}
		}
	}
	for _, address := range known {
		if !slices.Contains(addresses, address) && len(addresses) < addressesMax {
			addresses = append(addresses, address)
		}
	}
	r.nodes, r.addresses = nodes, addresses
}

// nodeAt returns the ID of the node expected at an address, "" if unknown.
func (r *remoteTransport) nodeAt(address string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[address]
}

// Timing of the prober.
const (
	proberTick = 250 * time.Millisecond
	// Minimum time between requests for the members if they did not change.
	membersRefreshInterval = time.Second
	// How long an answer may take before the prober suspects the node.
	suspectAfter    = 500 * time.Millisecond
	probeTimeoutMin = 500 * time.Millisecond
	probeInterval   = 500 * time.Millisecond
)

// runProber refreshes the members after the client has switched away from a node. If a call takes
// longer than suspectAfter, it asks another node for the leader, because a hanging node cannot
// report a change. If a node holds a wait for longer, it checks that the node still answers.
func (r *remoteTransport) runProber() {
	ticker := time.NewTicker(proberTick)
	defer ticker.Stop()
	var lastProbe time.Time
	var asked time.Time
	for {
		select {
		case <-r.closing:
			return
		case <-r.refreshNow:
			if time.Since(asked) < proberTick {
				continue // the next tick refreshes
			}
		case <-ticker.C:
		}
		now := time.Now()
		if address, shouldProbe := r.nodeToAskForMembers(now); shouldProbe {
			r.refreshMembers(address)
			asked = now
		}
		if address := r.polls.SlowAddress(now.Add(-suspectAfter)); address != "" && now.Sub(lastProbe) >= probeInterval {
			r.probe(address)
			lastProbe = now
		}
	}
}

// nodeToAskForMembers returns the node to ask for the members, and whether to ask it.
func (r *remoteTransport) nodeToAskForMembers(now time.Time) (address string, shouldProbe bool) {
	slow := ""
	for _, g := range r.knownPartitions() {
		slow = cmp.Or(slow, g.attempts.SlowAddress(now.Add(-suspectAfter)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if slow != "" {
		return r.nextAddress(slow), true
	}
	return r.anyNodeAddress, r.membersStale
}

// probe asks a node that holds waits for the members. If the node does not answer, probe cancels
// the waits, and the client switches away. Each failure doubles the next timeout, up to
// pollTimeout, so that waits complete even if all nodes are slow.
func (r *remoteTransport) probe(address string) {
	r.mu.Lock()
	waitTime := max(r.probeTimeout, probeTimeoutMin)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	if r.send(ctx, address, membersRequest()).GetMembers() != nil {
		r.setProbeTimeout(0)
		return
	}
	r.setProbeTimeout(min(2*waitTime, pollTimeout))
	r.switchAddress(&r.anyNodeAddress, address, "")
	r.polls.CancelIf(func(to string) bool { return to == address })
}

// refreshMembers asks a node for the members, and all nodes if it does not answer.
func (r *remoteTransport) refreshMembers(address string) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeoutMin)
	defer cancel()
	response := r.send(ctx, address, membersRequest())
	if response.GetMembers() == nil {
		r.refreshFromOthers(address)
	}
	r.applyMembers(response)
}

// refreshFromOthers asks all nodes for the members, and switches away from one that could not
// answer. It reports whether a node has named a leader.
func (r *remoteTransport) refreshFromOthers(address string) bool {
	from, response := r.askAllNodes(context.Background(), membersRequest())
	r.switchAddress(&r.anyNodeAddress, address, from)
	r.applyMembers(response)
	if response == nil {
		r.unanswered.Store(true) // or no node names a leader, and one at another address may
	}
	return response != nil
}

// applyMembers records the members, and cancels calls in flight to nodes that do not lead.
func (r *remoteTransport) applyMembers(response *clusterpb.Response) {
	partitions := r.knownPartitions()
	for i, leader := range r.recordMembers(response) {
		if leader != "" && i < len(partitions) {
			partitions[i].attempts.CancelExcept(leader)
		}
	}
}

// followMembers keeps a request for the members open at a node. The node answers when they change,
// so all members may be replaced without a failed call.
func (r *remoteTransport) followMembers() {
	for admission.Sleep(context.Background(), r.closing, r.pollMembersOnce()) == nil {
	}
}

// pollMembersOnce asks once, and returns how long to wait before the next request.
func (r *remoteTransport) pollMembersOnce() time.Duration {
	began := time.Now()
	r.mu.Lock()
	address, known := r.anyNodeAddress, r.configurationIndexes
	r.mu.Unlock()
	request := membersRequest()
	request.GetMembers().KnownIndexes = known
	ctx, cancel := context.WithTimeout(context.Background(), membersPollTimeout+probeTimeoutMin)
	defer cancel()
	response := r.send(ctx, address, request)
	r.applyMembers(response)
	if !namesLeader(response.GetMembers()) {
		if r.refreshFromOthers(address) {
			return admission.BackoffMin // the next node may fail at once, too
		}
		return proberTick
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(known, r.configurationIndexes) {
		return 0
	}
	return r.config.membersRefreshInterval - time.Since(began)
}

func (r *remoteTransport) await(ctx context.Context, id string, run runRef) (*clusterpb.Status, error) {
	for {
		response, err := r.poll(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Wait{
			Wait: &clusterpb.WaitRequest{FirstExecution: run.first, Incarnation: run.incarnation},
		}})
		if status := response.GetWait().GetStatus(); err != nil || status != nil {
			return status, err
		}
	}
}

func (r *remoteTransport) follow(ctx context.Context, id string, from history.Position, pass func(recordedEvent) bool) error {
	asked := &clusterpb.WatchRequest{Execution: from.Execution, EventId: from.EventID}
	for {
		response, err := r.poll(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Watch{Watch: asked}})
		if err != nil {
			return err
		}
		result := response.GetWatch()
		for _, watched := range result.GetEvents() {
			event := new(journalpb.Event)
			if err := proto.Unmarshal(watched.Event, event); err != nil {
				return fmt.Errorf("decode event: %w", err)
			}
			if !pass(recordedEvent{watched.Execution, event}) {
				return errReaderStopped
			}
		}
		if result.GetEnded() {
			return nil
		}
		asked = &clusterpb.WatchRequest{Execution: result.GetExecution(), EventId: result.GetEventId(), Run: result.GetRun()}
	}
}

// poll sends one request of a long wait. ctx bounds the whole wait. The wait also ends if no node
// answers within pollTimeout plus CallTimeout.
func (r *remoteTransport) poll(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	r.setSeenIndex(request)
	limited, cancel := context.WithTimeout(ctx, pollTimeout+r.config.CallTimeout)
	defer cancel()
	response, err := r.callWithRetry(limited, request, admission.Retrier{}, r.askAnyNode)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return response, err
}
