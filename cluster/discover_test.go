package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/discovery"
	"github.com/tenuto-dev/tenuto/internal/dnstest"
	"github.com/tenuto-dev/tenuto/replay"
)

// A phoneBook is what the nodes of a test discover: the addresses that the test has given them.
type phoneBook struct {
	mu        sync.Mutex
	addresses []string
	err       error
}

func (p *phoneBook) set(addresses ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses = addresses
}

func (p *phoneBook) discover(context.Context) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.addresses), p.err
}

// A discoveringCluster is a cluster whose nodes are told how many found it, and discover where the
// others are. Node i is t-i.
type discoveringCluster struct {
	t       *testing.T
	book    *phoneBook
	tell    func(addresses ...string) // what publish calls
	configs []Config
	nodes   []*Node // nil: stopped
}

func newDiscoveringCluster(t *testing.T, nodes, found int, secure bool) *discoveringCluster {
	skipIfShort(t)
	d := &discoveringCluster{t: t, book: new(phoneBook), nodes: make([]*Node, nodes)}
	d.tell = d.book.set
	authority := newAuthority(t)
	for i := range nodes {
		config := Config{
			NodeID: fmt.Sprintf("t-%d", i), Listen: loopbackAddress(t), Found: found, Discover: d.book.discover,
			Partitions: testPartitionsDefault, Dir: t.TempDir(), Definitions: definitions(),
		}
		if secure {
			config.TLS = authority.keys(authority.Node(config.NodeID))
		}
		d.configs = append(d.configs, config)
	}
	d.publish()
	return d
}

// publish makes the addresses of all nodes known.
func (d *discoveringCluster) publish() {
	var addresses []string
	for _, config := range d.configs {
		addresses = append(addresses, config.Listen)
	}
	d.tell(addresses...)
}

// discoverWith makes the nodes discover each other by other means than the book.
func (d *discoveringCluster) discoverWith(discover discovery.Func, tell func(addresses ...string)) {
	for i := range d.configs {
		d.configs[i].Discover = discover
	}
	d.tell = tell
}

func (d *discoveringCluster) start(nodes ...int) {
	d.t.Helper()
	for _, i := range nodes {
		d.nodes[i] = startManually(d.t, d.configs[i])
	}
}

func (d *discoveringCluster) stop(nodes ...int) {
	d.t.Helper()
	for _, i := range nodes {
		closeNode(d.t, d.nodes[i])
		d.nodes[i] = nil
	}
}

func (d *discoveringCluster) wipe(i int) {
	d.t.Helper()
	if err := os.RemoveAll(d.configs[i].Dir); err != nil {
		d.t.Fatal(err)
	}
}

// awaitMembers waits until the cluster has exactly the nodes of the test, all with a vote and with
// their present addresses, and all of them are ready.
func (d *discoveringCluster) awaitMembers() {
	d.t.Helper()
	var want []string
	for _, config := range d.configs {
		want = append(want, config.NodeID+" at "+config.address())
	}
	var have []string
	defer func() {
		if d.t.Failed() {
			d.t.Logf("members: %v, want %v", have, want)
		}
	}()
	eventually(d.t, "all nodes are members with a vote, at their addresses, and ready", func() bool {
		for _, node := range d.nodes {
			if node.Health().Ready() != nil {
				return false
			}
			members, err := node.Members(testContext(d.t))
			have = nil
			for _, m := range members {
				if m.Voter {
					have = append(have, m.NodeID+" at "+m.Address)
				}
			}
			if err != nil || !slices.Equal(have, want) {
				return false
			}
		}
		return true
	})
}

func (d *discoveringCluster) call(i int, id string) {
	d.t.Helper()
	if got, err := Call(testContext(d.t), d.nodes[i].Client(), doubled, id, 4); err != nil || got != 8 {
		d.t.Errorf("%s on t-%d: %v, %v", id, i, got, err)
	}
}

// expectNotFounded fails the test if a node has a log.
func (d *discoveringCluster) expectNotFounded(when string) {
	d.t.Helper()
	for _, node := range d.nodes {
		if node != nil && node.self() != nil {
			d.t.Errorf("%s: %s is a member of a cluster", when, node.ID())
		}
	}
}

// awaitRounds waits until a node has discovered often enough that it would have founded a cluster.
func (d *discoveringCluster) awaitRounds(i int, known ...int) {
	d.t.Helper()
	eventually(d.t, "the node has found the others", func() bool {
		return !slices.ContainsFunc(known, func(k int) bool {
			return d.nodes[i].directory.Book.Address(d.configs[k].NodeID) != d.configs[k].Listen
		})
	})
}

// Three nodes without a list of each other found one cluster, once all three run. A fourth joins
// it, which it could not do before. The order of starts does not matter.
func TestDiscover_FoundsOneCluster(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			t.Parallel()
			d := newDiscoveringCluster(t, 4, 3, secure)
			joined := make(chan struct{})
			go func() {
				defer close(joined)
				d.start(3) // returns when it is a member
			}()
			d.start(2, 0)
			d.awaitRounds(0, 2)
			d.expectNotFounded("two of three run")
			d.start(1)
			<-joined
			d.awaitMembers()
			d.call(3, "first")
		})
	}
}

// srvRecords returns SRV records of a DNS server, whose targets have the same name and other ports.
func srvRecords(t *testing.T) (discover discovery.Func, tell func(addresses ...string)) {
	server := dnstest.Start(t)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.Address())
	}}
	return discovery.SRV("tenuto", "tcp", "tenuto.test.", resolver), func(addresses ...string) {
		var targets []string
		for _, address := range addresses {
			targets = append(targets, strings.Replace(address, "127.0.0.1:", "localhost:", 1))
		}
		server.SetTargets(targets...)
	}
}

// addressFile returns a file of addresses, which does not exist at first.
func addressFile(t *testing.T) (discover discovery.Func, tell func(addresses ...string)) {
	path := filepath.Join(t.TempDir(), "nodes")
	return discovery.File(path), func(addresses ...string) {
		if err := os.WriteFile(path+".new", []byte(strings.Join(addresses, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

// Nodes find each other by SRV records and by a file: for the founding, and after all addresses
// have changed. At their first start, there are no records, and no file.
func TestDiscover_BySRVAndFile(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]func(*testing.T) (discovery.Func, func(...string)){"SRV": srvRecords, "file": addressFile} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDiscoveringCluster(t, 4, 3, true)
			d.discoverWith(source(t))
			d.start(0, 1, 2)
			d.expectNotFounded("nothing is published")
			d.publish()
			d.start(3) // returns when it is a member
			d.awaitMembers()
			d.call(3, "first")
			d.stop(0, 1, 2, 3)
			for i := range d.configs {
				d.configs[i].Listen = loopbackAddress(t)
			}
			d.publish()
			d.start(3, 2, 1, 0)
			d.awaitMembers()
			d.call(0, "second")
		})
	}
}

// Nodes are restarted, with other addresses, at any time of the founding. There is one cluster in
// the end, with all nodes.
func TestDiscover_RestartsWhileFounding(t *testing.T) {
	t.Parallel()
	for restarted := range 3 {
		t.Run(fmt.Sprint("t-", restarted), func(t *testing.T) {
			t.Parallel()
			d := newDiscoveringCluster(t, 3, 3, false)
			others := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == restarted })
			d.start(restarted, others[0])
			d.awaitRounds(others[0], restarted)
			d.stop(restarted)
			d.configs[restarted].Listen = loopbackAddress(t)
			d.publish()
			d.start(others[1])
			d.start(restarted)
			d.stop(restarted) // at once: it may have agreed or not, founded or not
			d.configs[restarted].Listen = loopbackAddress(t)
			d.publish()
			d.start(restarted)
			d.awaitMembers()
			d.call(0, "first")
		})
	}
}

// Six nodes run, three of which found the cluster. As long as these do not all see each other, none
// is founded, although there are three nodes on the other side.
func TestDiscover_FoundsNothingWhileDivided(t *testing.T) {
	d := newDiscoveringCluster(t, 6, 3, false)
	sides := [2]*phoneBook{{}, {}}
	for i := range d.configs {
		side := min(i/2, 1) // t-0 and t-1, and the others
		d.configs[i].Discover = sides[side].discover
		d.configs[i].Settings.Voters = 7 // with the default, one of six would be a standby
		sides[side].addresses = append(sides[side].addresses, d.configs[i].Listen)
	}
	d.start(0, 1, 2)
	var joining sync.WaitGroup
	for i := 3; i < 6; i++ {
		joining.Go(func() { d.start(i) })
	}
	d.awaitRounds(0, 1)
	d.awaitRounds(1, 0)
	d.expectNotFounded("the founding nodes do not all see each other")
	for _, side := range sides {
		side.set(slices.Concat(sides[0].addresses, sides[1].addresses[:4])...)
	}
	joining.Wait()
	d.awaitMembers()
}

// A founding node with an empty Dir that finds a cluster without it joins that cluster, and founds
// no other.
func TestDiscover_JoinsClusterThatExists(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 1)
	d := newDiscoveringCluster(t, 3, 3, false)
	existing := f.leader()
	for i := range d.configs {
		d.configs[i].Partitions = existing.config.Partitions
	}
	d.book.set(append(slices.Clone(d.book.addresses), existing.config.Listen)...)
	d.start(0, 1, 2)
	eventually(t, "all are members of the cluster that exists", func() bool {
		members, err := existing.Members(testContext(t))
		return err == nil && len(members) == 4
	})
	for _, node := range d.nodes {
		if node.partitions[0].journal.HasAgreedToFound() {
			t.Errorf("%s has agreed to found a cluster", node.ID())
		}
	}
}

// All nodes stop and start with other addresses, and then with each other's. They find each other
// although each log has the old addresses, and what was acknowledged is there.
func TestDiscover_AllAddressesChangeAtOnce(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			t.Parallel()
			d := newDiscoveringCluster(t, 3, 3, secure)
			d.start(0, 1, 2)
			d.awaitMembers()
			d.call(0, "first")
			for round, next := range [][]string{
				{loopbackAddress(t), loopbackAddress(t), loopbackAddress(t)},
				nil, // those of the first round, in another order
			} {
				d.stop(0, 1, 2)
				if next == nil {
					next = []string{d.configs[1].Listen, d.configs[2].Listen, d.configs[0].Listen}
				}
				for i := range next {
					d.configs[i].Listen = next[i]
				}
				d.publish()
				d.start(2, 1, 0)
				d.awaitMembers()
				d.call(round, fmt.Sprint("after-", round))
				if status, err := d.nodes[2].Client().Get(testContext(t), "first"); err != nil || status.State != Completed {
					t.Errorf("what was acknowledged before: %+v, %v", status, err)
				}
			}
		})
	}
}

// A node is removed, and another one joins at its address. It is not found with Discover, so it
// does not introduce itself. The others have learned of the removed node at that address.
func TestDiscover_ReplacementTakesOverAddress(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d partitions", partitions), func(t *testing.T) {
			t.Parallel()
			authority := newAuthority(t)
			d := newDiscoveringCluster(t, 3, 3, false)
			for i := range d.configs {
				d.configs[i].Partitions, d.configs[i].TLS = partitions, authority.keys(authority.Node(d.configs[i].NodeID))
			}
			d.start(0, 1, 2)
			d.awaitMembers()
			d.awaitRounds(0, 2)
			d.awaitRounds(1, 2)
			d.stop(2)
			eventually(t, "t-2 is removed", func() bool { return d.nodes[0].RemoveNode(testContext(t), "t-2") == nil })
			next := d.configs[2]
			next.NodeID, next.Dir, next.Discover, next.Found = "t-3", t.TempDir(), nil, 0
			next.Join, next.TLS = []string{d.configs[0].Listen, d.configs[1].Listen}, authority.keys(authority.Node("t-3"))
			d.configs[2] = next
			d.start(2)
			d.awaitMembers()
			d.call(2, "first")
		})
	}
}

// A node that has lost its Dir and its address comes back by itself, if the settings say so. Its
// lost directory is rejected from then on.
func TestReplaceLostAfter_NodeComesBack(t *testing.T) {
	t.Parallel()
	for _, node := range []int{0, 3} { // a founding node, and one that has joined
		t.Run(fmt.Sprint("t-", node), func(t *testing.T) {
			t.Parallel()
			d := newDiscoveringCluster(t, 4, 3, true)
			for i := range d.configs {
				d.configs[i].Settings.ReplaceLostAfter = replaceLostMin
				d.configs[i].Settings.RequireJoinToken = i < 0
			}
			d.start(0, 1, 2)
			d.start(3)
			d.awaitMembers()
			d.call(1, "first")
			lost := d.nodes[node].Identity()
			d.stop(node)
			d.wipe(node)
			d.configs[node].Listen = loopbackAddress(t)
			d.publish()
			d.start(node)
			d.awaitMembers()
			d.call(node, "second")
			if now := d.nodes[node].Identity(); now == lost {
				t.Errorf("it has its lost directory %s", now)
			}
			expectSameHistories(t, d.nodes)
		})
	}
}

// Without the setting a lost Dir waits for an operator.
func TestReplaceLostAfter_OffByDefault(t *testing.T) {
	d := newDiscoveringCluster(t, 3, 3, false)
	d.start(0, 1, 2)
	d.awaitMembers()
	d.stop(1)
	d.wipe(1)
	d.start(1)
	eventually(t, "the node says that it is not wanted", func() bool {
		return errors.Is(d.nodes[1].Health().Ready(), ErrOtherDirectory)
	})
	leader := leaderOf(t, []*Node{d.nodes[0], d.nodes[2]})
	eventually(t, "the directory is adopted", func() bool {
		return leader.AdoptNode(testContext(t), "t-1", d.nodes[1].Identity()) == nil
	})
	d.awaitMembers()
}

// A remote client finds the cluster with Discover, also after all nodes have other addresses.
func TestDial_Discover(t *testing.T) {
	t.Parallel()
	d := newDiscoveringCluster(t, 3, 3, false)
	d.start(0, 1, 2)
	d.awaitMembers()
	client, err := Dial(testContext(t), DialConfig{Discover: d.book.discover, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := Call(testContext(t), client, doubled, "first", 1); err != nil {
		t.Error(err)
	}
	d.stop(0, 1, 2)
	for i := range d.configs {
		d.configs[i].Listen = loopbackAddress(t)
	}
	d.publish()
	d.start(0, 1, 2)
	if _, err := Call(testContext(t), client, doubled, "second", 1); err != nil {
		t.Errorf("after all addresses have changed: %v", err)
	}
}

// A function that ignores the end of its context does not keep a start, a client or a node from
// ending.
func TestDiscover_FunctionHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	hangs := func(context.Context) ([]string, error) { <-release; return nil, nil }
	within := func(what string, do func() error) (err error) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- do() }()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			t.Fatal("does not end: ", what)
			return nil
		}
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	var unavailable *UnavailableError
	err := within("a start", func() error {
		_, err := Start(short(), Config{Dir: t.TempDir(), NodeID: "n1", Listen: loopbackAddress(t), Discover: hangs, Logger: testLogger()})
		return err
	})
	if !errors.As(err, &unavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start: %v", err)
	}
	err = within("a dial", func() error {
		_, err := Dial(short(), DialConfig{Discover: hangs, Logger: testLogger()})
		return err
	})
	if !errors.As(err, &unavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial: %v", err)
	}
	asked := make(chan struct{}, 1)
	node, err := Start(testContext(t), Config{
		Dir: t.TempDir(), NodeID: "t-0", Listen: loopbackAddress(t), Found: 2, Logger: testLogger(),
		Discover: func(ctx context.Context) ([]string, error) { asked <- struct{}{}; return hangs(ctx) },
	})
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := within("closing a node", node.Close); err != nil {
		t.Error(err)
	}
}

func TestConfig_DiscoverAndFoundAreValidated(t *testing.T) {
	discover := new(phoneBook).discover
	valid := Config{Dir: t.TempDir(), NodeID: "t-0", Listen: "127.0.0.1:1", Discover: discover, Found: 3}
	for _, test := range []struct {
		field  string
		change func(*Config)
	}{
		{"Found", func(c *Config) { c.Found = 1 }},
		{"Found", func(c *Config) { c.Found = foundMax + 1 }},
		{"Found", func(c *Config) { c.Found = -1 }},
		{"Found", func(c *Config) { c.Discover = nil }},
		{"Found", func(c *Config) { c.NodeID = "t" }},
		{"Found", func(c *Config) { c.NodeID = "t-01" }},
		{"Found", func(c *Config) { c.Join = []string{"127.0.0.1:2"} }},
		{"Found", func(c *Config) { c.Peers = []Peer{{"t-0", "127.0.0.1:1"}} }},
		{"Listen", func(c *Config) { c.Listen = "" }},
		{"Peers", func(c *Config) { c.Found, c.Discover, c.Peers = 0, nil, []Peer{{"t-0", ""}} }},
		{"Advertise", func(c *Config) { c.Listen, c.TLS = "0.0.0.0:1", KeyFiles("a", "b", "c") }},
		{"Settings.ReplaceLostAfter", func(c *Config) { c.Settings.ReplaceLostAfter = replaceLostMin - 1 }},
		{"Settings.ReplaceLostAfter", func(c *Config) { c.Settings.ReplaceLostAfter = replaceLostMax + 1 }},
	} {
		config := valid
		test.change(&config)
		var invalid *replay.InvalidError
		if err := config.withDefaults().validate(); !errors.As(err, &invalid) || !strings.HasSuffix(invalid.Field, test.field) {
			t.Errorf("want an error about %s, got %v", test.field, err)
		}
	}
	if err := valid.withDefaults().validate(); err != nil {
		t.Error(err)
	}
}
