package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/logqueue"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// DialConfig is the configuration of a remote client. It is copied by [Dial].
// Zero values mean defaults.
type DialConfig struct {
	// Of nodes of the cluster, host:port: any of them, the client learns the
	// others. Required.
	Addresses []string
	// The name of the cluster; see Config.ClusterID. Defaults to "tenuto".
	ClusterID string
	// What the client shows to nodes and whom it believes; see [KeyFiles]. Its
	// certificate names a client of the cluster, or a node. Defaults to none:
	// plaintext, to loopback only.
	TLS KeySource
	// How long a call without a deadline of its own is repeated while no leader
	// answers. Defaults to 30 s.
	CallTimeout time.Duration
	// How values become payloads: as the nodes of the cluster have it.
	Payloads replay.Payloads
	// Defaults to slog.Default().
	Logger *slog.Logger

	refreshEvery time.Duration // of tests; 0: the constant, less: never
}

func (c DialConfig) withDefaults() DialConfig {
	c.Addresses = slices.Clone(c.Addresses)
	if c.ClusterID == "" {
		c.ClusterID = clusterIDDefault
	}
	if c.CallTimeout <= 0 {
		c.CallTimeout = callTimeoutDefault
	}
	if c.refreshEvery == 0 {
		c.refreshEvery = refreshEvery
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = logqueue.New(c.Logger)
	return c
}

func (c DialConfig) validate() error {
	if len(c.Addresses) == 0 {
		return &InputError{"DialConfig.Addresses", "is empty: name a node or more"}
	}
	for _, address := range c.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return &InputError{"DialConfig.Addresses", "has one that is not host:port: " + err.Error()}
		}
		if c.TLS == nil && isElsewhere(address) {
			return &InputError{"DialConfig.Addresses", fmt.Sprintf("has %q: %s", address, loopbackRule)}
		}
	}
	if !namePattern.MatchString(c.ClusterID) {
		return &InputError{"DialConfig.ClusterID", fmt.Sprintf("is %.100q: %s", c.ClusterID, nameRule)}
	}
	return nil
}

// Dial returns a client that calls a cluster over the network, when a node of it
// has answered. It does what the client of a node does, and is to be closed
// ([Client.Close]). It finds the leader by itself, learns of new members, and goes
// on through the loss of any node; a wait or a watch goes on at another node where
// it was.
//
// A client that makes no call hears of new members too: it keeps a question open at one node,
// which answers when the members change, or after 2 s. All nodes may be replaced, one after the
// other, if each new one has its vote before an old one is removed and stopped: the client hears
// of it within about 0.1 s. While the node that the client asks hangs, or is cut off from it, the
// client needs up to 4 s to turn to another. A client that reaches none of the nodes that it
// knows, while all of them are replaced, is to be dialed anew.
//
// ctx bounds the first contact; without a deadline, CallTimeout does. Errors:
// [*InputError] for a field that cannot be used; [*UnavailableError] when no node
// answers, with the reason why the last one did not; [ErrNotAuthorized]; ctx's.
func Dial(ctx context.Context, config DialConfig) (*Client, error) {
	if ctx == nil {
		return nil, fmt.Errorf("dial: %w", &InputError{"context", "is nil"})
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	r := &remote{
		config: config, addresses: config.Addresses, nearest: config.Addresses[0], closing: make(chan struct{}), look: make(chan struct{}, 1),
		groups: []*aimedGroup{newAimedGroup(config.Addresses[0])},
	}
	dialer := &dialer{links: newLinks(func(string) bool { return true }), nodeAt: r.nodeAt}
	if config.TLS != nil {
		ring, err := newKeyring(config.TLS, config.ClusterID, func(Principal) error { return nil }, config.Logger)
		if err != nil {
			return nil, fmt.Errorf("dial: %w", &InputError{"DialConfig.TLS", "has no keys that can be used: " + err.Error()})
		}
		dialer.ring = ring
	}
	r.pool = newCallPool(dialer)
	r.reach = r.pool.ask
	r.running.Go(func() { dialer.links.sweepUntil(r.closing) })
	r.running.Go(func() { r.pool.forgetUntil(r.closing) })
	r.running.Go(r.scout)
	if err := r.meet(ctx); err != nil {
		_ = r.release()
		return nil, fmt.Errorf("dial: %w", err)
	}
	if config.refreshEvery > 0 {
		r.running.Go(r.followMembers)
	}
	return &Client{access: r, payloads: warnedIn(config.Payloads, config.Logger)}, nil
}

// A remote is the access of a client over the network.
type remote struct {
	config DialConfig
	pool   *callPool
	// Asks the node at an address once; tests put themselves in between.
	reach  func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response
	budget budget
	polls  attempts // at any node

	closing chan struct{}
	look    chan struct{} // has room for one: the scout is to look around at once
	closed  sync.Once
	running sync.WaitGroup

	mu        sync.Mutex
	nodes     map[string]string // IDs by address, as a node has told last
	addresses []string          // of the members and of the configuration
	groups    []*aimedGroup     // one until a node has told how many there are
	learned   uint64            // how long the log was of the node that has told the members
	newest    []uint64          // of each group: the newest configuration that was told of
	nearest   string            // whom to ask for what any node can answer
	turned    bool              // away from a node, so that the members may be others
	patience  time.Duration     // with a node that was probed; 0: scoutTimeout
}

// An aimedGroup is what a remote client knows of a group.
type aimedGroup struct {
	leading  string   // whom to call: the leader, as far as is known; guarded by the remote's lock
	moved    bell     // rings when another node is called
	attempts attempts // at the leader
	throttle throttle
	gate     callGate
	seen     horizon
	told     horizon // what a node that told the members had applied
}

func newAimedGroup(leading string) *aimedGroup {
	return &aimedGroup{leading: leading, gate: newCallGate()}
}

// groupFor returns the group that a request concerns; the first, if it concerns all.
func (r *remote) groupFor(request *clusterpb.Request) *aimedGroup {
	groups := r.known()
	if request.Instance == "" {
		return groups[0]
	}
	return groups[slots.Group(request.Instance, len(groups))]
}

// known returns all groups, as far as is known.
func (r *remote) known() []*aimedGroup {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups
}

// release implements access.
func (r *remote) release() error {
	r.closed.Do(func() {
		close(r.closing)
		r.pool.close()
	})
	r.running.Wait()
	return nil
}

// call implements access.
func (r *remote) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	g := r.groupFor(request)
	response, err := r.persist(ctx, request, route{throttle: &g.throttle, gate: g.gate, seen: max(g.seen.Load(), g.told.Load())}, r.ask)
	if members := response.GetMembers(); err == nil && members != nil && !namesLeader(members) {
		if _, better := r.askOthers(ctx, request); better != nil {
			return better, nil
		}
	}
	return response, err
}

func namesLeader(result *clusterpb.MembersResult) bool {
	return slices.ContainsFunc(result.GetMembers(), (*clusterpb.Member).GetLeader)
}

// askOthers asks all nodes at once for the members, for membersWait at most, and returns the
// first answer that names a leader and who gave it, nil if there is none: one node has named no
// leader, but that may be a node which the cluster refuses or which is cut off from it.
func (r *remote) askOthers(ctx context.Context, request *clusterpb.Request) (from string, answer *clusterpb.Response) {
	r.mu.Lock()
	addresses := r.addresses[:min(len(r.addresses), addressesMax)]
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, membersWait)
	defer cancel()
	type told struct {
		from   string
		answer *clusterpb.Response
	}
	answers := make(chan told, len(addresses))
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, address := range addresses {
		asking.Go(func() { answers <- told{address, r.reach(ctx, address, proto.CloneOf(request))} })
	}
	for range addresses {
		t := <-answers
		r.learn(t.answer) // of any: a node that knows of no leader takes nothing away
		if namesLeader(t.answer.GetMembers()) {
			cancel()
			return t.from, t.answer
		}
	}
	return "", nil
}

// near implements access.
func (r *remote) near(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	request.Stale = true
	r.tellSeen(request)
	return r.persist(ctx, request, route{}, r.askNear)
}

// tellSeen has a request say what answers before have shown.
func (r *remote) tellSeen(request *clusterpb.Request) {
	if groups := r.known(); request.Instance == "" && len(groups) > 1 {
		request.SeenIndexes = nil
		for _, g := range groups {
			request.SeenIndexes = append(request.SeenIndexes, g.seen.Load())
		}
		return
	}
	request.SeenIndex = r.groupFor(request).seen.Load()
}

// persist has a request answered, in the time that a call has.
func (r *remote) persist(ctx context.Context, request *clusterpb.Request, way route, ask asker) (*clusterpb.Response, error) {
	ctx, cancel := bounded(ctx, r.config.CallTimeout)
	defer cancel()
	request.Protocol = protocolVersion
	way.closing, way.moved, way.budget = r.closing, &r.groupFor(request).moved, &r.budget
	response, err := way.persist(ctx, request, ask)
	if err == nil {
		r.learn(response)
	}
	return response, err
}

// ask asks the node that leads, as far as is known, once.
func (r *remote) ask(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	g := r.groupFor(request)
	address := r.aimed(&g.leading)
	ctx, end := g.attempts.begin(ctx, address)
	defer end()
	response := r.reach(ctx, address, request)
	r.judge(g, response, &g.leading, address, response.GetFailure().GetLeader())
	return response
}

// askNear asks a node for what any node can answer. It does not wait much longer
// than a node takes.
func (r *remote) askNear(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	ctx, cancel := context.WithTimeout(ctx, pollTime+handshakeTimeout)
	defer cancel()
	address := r.aimed(&r.nearest)
	ctx, end := r.polls.begin(ctx, address)
	defer end()
	response := r.reach(ctx, address, request)
	if response.GetFailure() == nil {
		r.setPatience(0)
	}
	r.judge(r.groupFor(request), response, &r.nearest, address, "")
	return response
}

func (r *remote) setPatience(patience time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.patience = patience
}

// judge turns away from a node that was of no use: to a better one, or else to the
// next.
func (r *remote) judge(g *aimedGroup, response *clusterpb.Response, aim *string, from, better string) {
	if failure := response.GetFailure(); failure != nil && repeatable(failure) && r.turn(aim, from, better) {
		g.moved.ring()
	}
	if indexes := response.GetAppliedIndexes(); len(indexes) > 0 {
		for i, all := range r.known() {
			if i < len(indexes) {
				all.seen.see(indexes[i])
			}
		}
		return
	}
	g.seen.see(response.GetAppliedIndex())
}

// A horizon is the highest index of a journal that an answer has shown.
type horizon struct{ atomic.Uint64 }

// see takes note of an index.
func (h *horizon) see(index uint64) {
	for seen := h.Load(); index > seen; seen = h.Load() {
		h.CompareAndSwap(seen, index)
	}
}

// aimed returns where an aim is now.
func (r *remote) aimed(aim *string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *aim
}

// turn changes an aim, unless another call has done so already, and tells whether it
// did, to a node that is known to be better.
func (r *remote) turn(aim *string, from, to string) (better bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *aim != from {
		return false
	}
	better = to != ""
	if !better {
		to = r.after(from)
		delete(r.nodes, from) // another node may have taken its place
	}
	*aim, r.turned = to, true
	select {
	case r.look <- struct{}{}:
	default: // it will
	}
	return better
}

// after returns the address after another one, with mu held.
func (r *remote) after(address string) string {
	return r.addresses[(slices.Index(r.addresses, address)+1)%len(r.addresses)]
}

// meet learns who the members are from the first node that answers.
func (r *remote) meet(ctx context.Context) error {
	_, err := r.persist(ctx, membersRequest(), route{}, r.askNear)
	return err
}

func membersRequest() *clusterpb.Request {
	return &clusterpb.Request{Protocol: protocolVersion, Stale: true, Call: &clusterpb.Request_Members{Members: new(clusterpb.MembersRequest)}}
}

// learn takes over what a node says of the members, and returns where the leader of
// each group is, "" of those that the node does not know.
func (r *remote) learn(response *clusterpb.Response) (leaders []string) {
	result := response.GetMembers()
	members := result.GetMembers()
	if len(members) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.groups) < min(int(result.Groups), groupsMax) {
		r.groups = append(slices.Clone(r.groups), newAimedGroup(members[0].Address))
	}
	for i, index := range result.AppliedIndexes {
		if i < len(r.groups) {
			r.groups[i].told.see(index)
		}
	}
	leaders = make([]string, len(r.groups))
	nodes := make(map[string]string)
	var addresses []string
	for _, member := range members {
		nodes[member.Address] = member.Node
		addresses = append(addresses, member.Address)
		if member.Leader {
			leaders[0] = member.Address
		}
		for _, group := range member.Leads {
			if int(group) < len(leaders) {
				leaders[group] = member.Address
			}
		}
	}
	r.takeOver(nodes, addresses, leaders[0] != "" && r.isNewest(result))
	r.turned = false
	for i, leader := range leaders {
		if g := r.groups[i]; leader != "" && g.leading != leader {
			g.leading = leader
			g.moved.ring()
		}
	}
	return leaders
}

// isNewest reports, with mu held, whether a node that has told of the members is not behind
// another that did. It takes note of how far the node is.
func (r *remote) isNewest(result *clusterpb.MembersResult) bool {
	newest := result.LastIndex >= r.learned
	if told := result.ConfigurationIndexes; len(told) == len(r.groups) {
		newest = true
		seen := make([]uint64, len(told))
		copy(seen, r.newest)
		for i, index := range told {
			newest = newest && index >= seen[i]
			seen[i] = max(seen[i], index)
		}
		r.newest = seen
	}
	r.learned = max(r.learned, result.LastIndex)
	return newest
}

// addressesMax bounds how many addresses a remote client knows.
const addressesMax = 256

// takeOver takes over what a node has told of the members, with mu held. If the node may be
// behind, or knows of no leader, then other addresses stay known: the members may be there.
// The client turns away from one that is no member any more.
func (r *remote) takeOver(nodes map[string]string, addresses []string, current bool) {
	if current && r.nodes[r.nearest] != "" && nodes[r.nearest] == "" {
		r.nearest = addresses[0]
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

// nodeAt returns who is to answer at an address, "" if that is not known.
func (r *remote) nodeAt(address string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[address]
}

// Of the scout.
const (
	scoutEvery = 250 * time.Millisecond
	// How often the members are asked for of a node that answers at once without news.
	refreshEvery = time.Second
	// How long a node may take before the scout becomes suspicious.
	suspectAfter = 500 * time.Millisecond
	scoutTimeout = 500 * time.Millisecond
	probeEvery   = 500 * time.Millisecond
)

// scout asks for the members when the client has turned away from a node, and
// whether another leads when a call takes long: a node that hangs does not tell.
// While a node holds a wait it is asked whether it is still there.
func (r *remote) scout() {
	ticker := time.NewTicker(scoutEvery)
	defer ticker.Stop()
	var probed time.Time
	var asked time.Time
	for {
		select {
		case <-r.closing:
			return
		case <-r.look:
			if time.Since(asked) < scoutEvery {
				continue // the next tick will do
			}
		case <-ticker.C:
		}
		now := time.Now()
		if address, suspect := r.suspect(now); suspect {
			r.lookAround(address)
			asked = now
		}
		if address := r.polls.slow(now.Add(-suspectAfter)); address != "" && now.Sub(probed) >= probeEvery {
			r.probe(address)
			probed = now
		}
	}
}

// suspect returns whom to ask for the members, if they are to be asked for.
func (r *remote) suspect(now time.Time) (whom string, suspect bool) {
	slow := ""
	for _, g := range r.known() {
		slow = cmp.Or(slow, g.attempts.slow(now.Add(-suspectAfter)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if slow != "" {
		return r.after(slow), true
	}
	return r.nearest, r.turned
}

// probe abandons what is waited for at a node that does not answer a simple
// question either. The next one gets twice as long to answer, so that waits come
// to their end where all nodes are slow.
func (r *remote) probe(address string) {
	r.mu.Lock()
	patience := max(r.patience, scoutTimeout)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if r.reach(ctx, address, membersRequest()).GetMembers() != nil {
		r.setPatience(0)
		return
	}
	r.setPatience(min(2*patience, pollTime))
	r.turn(&r.nearest, address, "")
	r.polls.abandonIf(func(to string) bool { return to == address })
}

// lookAround asks a node for the members, and all others at once if it does not answer that.
func (r *remote) lookAround(address string) {
	ctx, cancel := context.WithTimeout(context.Background(), scoutTimeout)
	defer cancel()
	response := r.reach(ctx, address, membersRequest())
	if response.GetMembers() == nil {
		r.lookElsewhere(address)
	}
	r.heed(response)
}

// lookElsewhere asks all nodes for the members because one was of no use, and turns away from
// that one. It reports whether another one has named a leader.
func (r *remote) lookElsewhere(address string) bool {
	from, response := r.askOthers(context.Background(), membersRequest())
	r.turn(&r.nearest, address, from)
	r.heed(response)
	return response != nil
}

// heed learns who the members are, and ends what is on its way to nodes that do not lead.
func (r *remote) heed(response *clusterpb.Response) {
	groups := r.known()
	for i, leader := range r.learn(response) {
		if leader != "" && i < len(groups) {
			groups[i].attempts.abandon(leader)
		}
	}
}

// followMembers keeps a question for the members open at a node, which answers when they change:
// they may all be replaced without a failed call.
func (r *remote) followMembers() {
	for rest(context.Background(), r.closing, r.followOnce()) == nil {
	}
}

// followOnce asks once, and returns how long to wait before the next time.
func (r *remote) followOnce() time.Duration {
	began := time.Now()
	r.mu.Lock()
	address, known := r.nearest, r.newest
	r.mu.Unlock()
	request := membersRequest()
	request.GetMembers().KnownIndexes = known
	ctx, cancel := context.WithTimeout(context.Background(), membersHold+scoutTimeout)
	defer cancel()
	response := r.reach(ctx, address, request)
	r.heed(response)
	if !namesLeader(response.GetMembers()) {
		if r.lookElsewhere(address) {
			return pauseFirst // the next node may go as soon
		}
		return scoutEvery
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(known, r.newest) {
		return 0
	}
	return r.config.refreshEvery - time.Since(began)
}

// await implements access.
func (r *remote) await(ctx context.Context, id string, run runRef) (*clusterpb.Status, error) {
	for {
		response, err := r.poll(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Wait{
			Wait: &clusterpb.WaitRequest{FirstExecution: run.first, Incarnation: run.incarnation},
		}})
		if status := response.GetWait().GetStatus(); err != nil || status != nil {
			return status, err
		}
	}
}

// follow implements access.
func (r *remote) follow(ctx context.Context, id string, from Position, pass func(Recorded) bool) error {
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
			if !pass(Recorded{watched.Execution, event}) {
				return errEnough
			}
		}
		if result.GetEnded() {
			return nil
		}
		asked = &clusterpb.WatchRequest{Execution: result.GetExecution(), EventId: result.GetEventId(), Run: result.GetRun()}
	}
}

// poll has one part of a long wait answered. Only ctx bounds the whole; nodes that
// cannot be reached for as long as a call may take end it.
func (r *remote) poll(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	r.tellSeen(request)
	limited, cancel := context.WithTimeout(ctx, pollTime+r.config.CallTimeout)
	defer cancel()
	response, err := r.persist(limited, request, route{}, r.askNear)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return response, err
}
