package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// dialNodes returns a remote client of nodes without TLS.
func dialNodes(t *testing.T, config DialConfig, nodes ...*Node) *Client {
	t.Helper()
	for _, node := range nodes {
		config.Addresses = append(config.Addresses, node.config.Listen)
	}
	if config.Logger == nil {
		config.Logger = quiet()
	}
	client, err := Dial(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// lifeSeenBy returns what a client sees of a whole life of instances, in words.
func lifeSeenBy(ctx context.Context, client *Client, prefix string) (seen []string) {
	note := func(what string, values ...any) { seen = append(seen, what+": "+fmt.Sprint(values...)) }
	id := func(name string) string { return prefix + name }
	noteErr := func(what string, err error) {
		text := "none"
		if err != nil {
			text = strings.ReplaceAll(err.Error(), prefix, "")
		}
		note(what, text)
	}
	sum, err := Call(ctx, client, fifth, id("fifth"), 3)
	note("call", sum)
	noteErr("its error", err)
	_, err = StartRun(ctx, client, fifth, id("fifth"), 3)
	note("a second start", errors.Is(err, ErrInstanceExists))
	_, err = StartRun(ctx, client, ledger, id("ledger"), 10, Tags(map[string]string{"of": prefix}))
	noteErr("start", err)
	raised, err := CallUpdate(ctx, client, id("ledger"), raise, 5)
	note("update", raised)
	noteErr("its error", err)
	_, err = CallUpdate(ctx, client, id("ledger"), raise, 500)
	noteErr("one that is refused", err)
	_, err = CallUpdate(ctx, client, id("ledger"), raise, -1)
	note("one that fails", errors.Is(err, errLow))
	_, err = Query(ctx, client, id("ledger"), replay.Query[int, int]("none"), 1)
	note("query of one that has none", errors.As(err, new(*replay.NoQueryError)))
	pending, err := client.Pending(ctx, id("ledger"))
	note("pending", len(pending), err)
	noteErr("suspend", client.Suspend(ctx, id("ledger"), "a"))
	noteErr("resume", client.Resume(ctx, id("ledger"), "b"))
	noteErr("send", Send(ctx, client, id("ledger"), closed, 0))
	status, err := client.Wait(ctx, id("ledger"))
	noteErr("wait", err)
	note("state", status.State, status.LastEventID)
	history, err := client.History(ctx, id("ledger"))
	noteErr("history", err)
	note("events", len(history.Events))
	places, err := watched(ctx, client, id("ledger"), Position{})
	note("watched", places)
	noteErr("its error", err)
	executions, err := client.Executions(ctx, id("ledger"))
	note("executions", len(executions), err)
	page, err := client.List(ctx, Filter{Tags: map[string]string{"of": prefix}}, "", 0)
	note("list", len(page.Instances), err)
	n, err := client.Count(ctx, Filter{IDPrefix: prefix})
	note("count", n, err)
	_, err = Call(ctx, client, failing, id("failing"), "")
	noteErr("a failure", err)
	run, err := SendOrStart(ctx, client, waiter, id("waiter"), "got ", word, "it")
	noteErr("send or start", err)
	got, err := run.Wait(ctx)
	note("its result", got, err)
	noteErr("send to nobody", Send(ctx, client, id("nobody"), word, ""))
	noteErr("cancel of one that has ended", client.Cancel(ctx, id("waiter"), ""))
	_, err = client.Wait(ctx, id("nobody"))
	noteErr("wait for nobody", err)
	_, err = watched(ctx, client, id("nobody"), Position{})
	noteErr("watch nobody", err)
	noteErr("a wrong ID", client.Cancel(ctx, "no ID", ""))
	purged, err := client.Purge(ctx, id("waiter"), id("nobody"))
	note("purge", purged, err)
	_, err = client.Get(ctx, id("waiter"), Stale())
	note("a stale read", err == nil || errors.Is(err, ErrNotFound))
	return seen
}

func TestARemoteClientSeesWhatThatOfANodeSees(t *testing.T) {
	noGoroutinesLeft(t)
	nodes := startPeersWith(t, 3, ledgers()...)
	ctx := testContext(t)
	want := lifeSeenBy(ctx, leaderOf(t, nodes).Client(), "embedded-")
	for i, node := range nodes {
		got := lifeSeenBy(ctx, dialNodes(t, DialConfig{}, node), fmt.Sprintf("remote-%d-", i))
		if !slices.Equal(got, want) {
			t.Errorf("through %s:\n%s\nwant\n%s", node.ID(), strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// A watch and a wait go on at other nodes, without a gap or a repetition, when the
// one that has answered them is gone.
func TestARemoteClientGoesOnThroughTheLossOfANode(t *testing.T) {
	noGoroutinesLeft(t)
	nodes := startPeersWith(t, 3, append(definitions(), counter.Bind(counterBody))...)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	client := dialNodes(t, DialConfig{}, nodes...)
	run, err := StartRun(ctx, client, counter, "c", count{Round: 1})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- second(run.Wait(ctx)) }()
	var places []string
	n := 0
	for r, err := range client.Watch(ctx, "c", Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, fmt.Sprintf("%d.%d", r.Execution, r.Event.EventId))
		if r.Event.GetExternalSubscribed() == nil {
			continue
		}
		if n++; n == 3 {
			if err := leader.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := Send(ctx, client, "c", add, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the wait: %v", err)
	}
	all, err := watched(ctx, client, "c", Position{})
	if err != nil || !slices.Equal(places, all) {
		t.Errorf("%v; want %v, %v", places, all, err)
	}
}

func TestARemoteClientSaysWhetherNothingWasDone(t *testing.T) {
	noGoroutinesLeft(t)
	peers := loopbackPeers(t, 1)
	_, err := Dial(context.Background(), DialConfig{Addresses: []string{peers[0].Address}, CallTimeout: 50 * time.Millisecond, Logger: quiet()})
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || !unavailable.NotExecuted || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("where nobody is: %v; want that nothing was done, and why", err)
	}
	nodes := startPeers(t, 3)
	leaderOf(t, nodes)
	client := dialNodes(t, DialConfig{CallTimeout: 300 * time.Millisecond}, nodes...)
	for _, node := range nodes {
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = StartRun(context.Background(), client, doubled, "d", 1)
	if !errors.As(err, &unavailable) || !unavailable.NotExecuted {
		t.Errorf("when all are gone: %v; want that nothing was done", err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err = client.Get(testContext(t), "d"); !errors.Is(err, ErrClosed) {
		t.Errorf("when it is closed: %v", err)
	}
}

func TestWhatDialRefuses(t *testing.T) {
	for name, config := range map[string]DialConfig{
		"no address":     {},
		"no host:port":   {Addresses: []string{"localhost"}},
		"a cluster ID":   {Addresses: []string{"127.0.0.1:1"}, ClusterID: "a/b"},
		"keys not there": {Addresses: []string{"127.0.0.1:1"}, TLS: KeyFiles("none", "none", "none")},
	} {
		var wrong *InputError
		if _, err := Dial(testContext(t), config); !errors.As(err, &wrong) {
			t.Errorf("%s: %v; want an InputError", name, err)
		}
	}
}

// A stranger answers like a node of which a test decides what it knows.
type stranger struct {
	leader  atomic.Pointer[string]
	hanging bool
	called  atomic.Int32
}

func (s *stranger) serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	if request.GetMembers() != nil {
		result := &clusterpb.MembersResult{Members: []*clusterpb.Member{{Node: "s", Address: *s.leader.Load(), Leader: true}}}
		return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}}
	}
	s.called.Add(1)
	if s.hanging {
		<-ctx.Done()
		return new(clusterpb.Response)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Send{Send: new(clusterpb.SendResult)}}
}

func (*stranger) employ(grpc.ServerStream) error   { return nil }
func (*stranger) startAll(grpc.ServerStream) error { return nil }

// A node that hangs keeps its connections. What it has in hand is taken to the new
// leader as soon as others know of one.
func TestACallToALeaderThatHangsGoesOnAtTheNext(t *testing.T) {
	noGoroutinesLeft(t)
	var servers []*stranger
	var addresses []string
	for i := range 2 {
		port, err := listen("127.0.0.1:0", &dialer{links: newLinks(nil)}, nil, quiet())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(port.close)
		server := &stranger{hanging: i == 0}
		calls := serveCalls(server, port.calls)
		t.Cleanup(calls.close)
		servers, addresses = append(servers, server), append(addresses, port.listener.Addr().String())
	}
	servers[0].leader.Store(&addresses[0])
	servers[1].leader.Store(&addresses[0])
	client, err := Dial(testContext(t), DialConfig{Addresses: addresses, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	sent := make(chan error)
	go func() { sent <- Send(testContext(t), client, "i", word, "") }()
	eventually(t, "the leader that hangs is called", func() bool { return servers[0].called.Load() == 1 })
	servers[1].leader.Store(&addresses[1])
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// hangingRemote is a client of three nodes, of which some do not answer.
func hangingRemote(t *testing.T, hangs func(address string) bool) (r *remote, asked func(address string) int) {
	t.Helper()
	var mu sync.Mutex
	counts := make(map[string]int)
	r = &remote{
		config: DialConfig{CallTimeout: time.Minute}, pool: newCallPool(nil), closing: make(chan struct{}),
		addresses: []string{"a", "b", "c"}, groups: []*aimedGroup{newAimedGroup("a")}, nearest: "a",
		reach: func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
			mu.Lock()
			counts[address]++
			mu.Unlock()
			switch {
			case hangs(address):
				<-ctx.Done()
				return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown}}
			case request.GetMembers() != nil:
				var members []*clusterpb.Member
				for _, at := range []string{"a", "b", "c"} {
					members = append(members, &clusterpb.Member{Node: "node-" + at, Address: at})
				}
				return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: &clusterpb.MembersResult{Members: members}}}
			}
			return &clusterpb.Response{Result: &clusterpb.Response_Wait{Wait: &clusterpb.WaitResult{Status: &clusterpb.Status{Instance: address}}}}
		},
	}
	r.running.Go(r.scout)
	t.Cleanup(func() { _ = r.release() })
	return r, func(address string) int {
		mu.Lock()
		defer mu.Unlock()
		return counts[address]
	}
}

func TestAWaitMovesOnFromANodeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := hangingRemote(t, func(address string) bool { return address != "c" })
		begin := time.Now()
		status, err := r.await(t.Context(), "i", runRef{first: 1})
		if err != nil || status.Instance != "c" {
			t.Fatalf("%v, %v", status, err)
		}
		// The second node that hangs is given twice the time.
		if passed := time.Since(begin); passed > 4*time.Second {
			t.Errorf("it took %v", passed)
		}
		r.turn(&r.nearest, "c", "b")
		begin = time.Now()
		if _, err := r.await(t.Context(), "i", runRef{first: 1}); err != nil || time.Since(begin) > 3*time.Second {
			t.Errorf("again: %v after %v", err, time.Since(begin))
		}
	})
}

func TestMembersAreAskedOfAllNodesBeforeNoneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var knows atomic.Pointer[string] // the address of the node that is in contact with the leader
		r := &remote{
			config: DialConfig{CallTimeout: time.Minute}, pool: newCallPool(nil), closing: make(chan struct{}),
			addresses: []string{"refused", "hangs", "healthy"}, groups: []*aimedGroup{newAimedGroup("refused")}, nearest: "refused",
			reach: func(ctx context.Context, address string, _ *clusterpb.Request) *clusterpb.Response {
				if address == "hangs" {
					<-ctx.Done()
					return notLeader("it hangs")
				}
				members := []*clusterpb.Member{{Node: "n0", Address: "refused"}, {Node: "n2", Address: "healthy", Leader: address == *knows.Load()}}
				return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: &clusterpb.MembersResult{Members: members}}}
			},
		}
		t.Cleanup(func() { _ = r.release() })
		client := &Client{access: r}
		leads := func() bool {
			begin := time.Now()
			members, err := client.Members(t.Context())
			if err != nil || len(members) != 2 || time.Since(begin) > membersWait {
				t.Fatalf("%v, %v after %v", members, err, time.Since(begin))
			}
			return members[1].Leader
		}
		nobody, healthy := "", "healthy"
		knows.Store(&nobody)
		if leads() {
			t.Error("a node leads that nobody knows of")
		}
		knows.Store(&healthy)
		if !leads() {
			t.Error("no node leads; want the one that another node knows of")
		}
		if got := r.aimed(&r.groups[0].leading); got != healthy {
			t.Errorf("the next call goes to %q; want the leader", got)
		}
	})
}

// Where every node is slow, patience grows until one answers.
func TestAWaitComesToItsEndWhereAllNodesAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, asked := hangingRemote(t, func(string) bool { time.Sleep(3 * time.Second); return false })
		if status, err := r.await(t.Context(), "i", runRef{first: 1}); err != nil || status.Instance == "" {
			t.Fatalf("%v, %v", status, err)
		}
		if n := asked("a") + asked("b") + asked("c"); n > 30 {
			t.Errorf("asked %d times", n)
		}
	})
}
