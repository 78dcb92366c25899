package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// startManually starts a node of a cluster whose nodes the test stops and starts itself.
func startManually(t *testing.T, config Config) *Node {
	t.Helper()
	config.Logger = testLogger()
	node, err := Start(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	return node
}

func closeNode(t *testing.T, node *Node) {
	t.Helper()
	if err := node.Close(); err != nil {
		t.Error(err)
	}
}

// A follower is stopped; the leader and the other follower acknowledge 20 starts and are stopped.
// Then the other follower loses its Dir, and both followers are started before the leader.
func TestWipedDir_LosesNothing(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 3} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d partitions, TLS %v", partitions, secure), func(t *testing.T) {
				t.Parallel()
				testWipedDir(t, partitions, secure)
			})
		}
	}
}

// A Dir with missing files is rejected with an instruction, and destroys nothing either.
func TestDamagedDir_LosesNothing(t *testing.T) {
	t.Parallel()
	raftFiles := func(dir string) []string { return []string{dir + "/raft.db", dir + "/raft.stable"} }
	except := func(retained ...string) func(t *testing.T, dir string) []string {
		return func(t *testing.T, dir string) (names []string) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if !slices.Contains(retained, entry.Name()) {
					names = append(names, entry.Name())
				}
			}
			return names
		}
	}
	filesNamed := func(names ...string) func(*testing.T, string) []string {
		return func(*testing.T, string) []string { return names }
	}
	for _, loss := range []struct {
		name       string
		partitions int
		names      func(t *testing.T, dir string) []string
	}{
		{"log and stable file", 1, filesNamed(raftFiles(".")...)},
		{"log and stable file of the first partition", 3, filesNamed(raftFiles(".")...)},
		{"all but directory-id", 1, except("directory-id")},
		{"all but directory-id", 3, except("directory-id")},
		{"all but identity and directory-id", 1, except("identity", "directory-id")},
		{"all but identity and directory-id", 3, except("identity", "directory-id")},
		{"a partition", 3, filesNamed("group-001")},
		{"a partition and the mark of earlier versions", 3, filesNamed("group-001", "groups-complete")},
		{"log and stable file of a partition", 3, filesNamed(raftFiles("group-001")...)},
		{"log, stable file and identity of a partition", 3, filesNamed(append(raftFiles("group-001"), "group-001/directory-id")...)},
		{"the files of the first partition", 3, except("group-001", "group-002")},
	} {
		t.Run(fmt.Sprintf("%s, %d partitions", loss.name, loss.partitions), func(t *testing.T) {
			t.Parallel()
			testDamagedDir(t, loss.partitions, loss.names)
		})
	}
}

func testDamagedDir(t *testing.T, partitions int, lost func(t *testing.T, dir string) []string) {
	ctx, nodes, configs, leader := recordOnMajority(t, partitions, false)
	a, b := (leader+1)%3, (leader+2)%3
	for _, name := range lost(t, configs[b].Dir) {
		if err := os.RemoveAll(filepath.Join(configs[b].Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	nodes[a] = startManually(t, configs[a])
	configs[b].Logger = testLogger()
	for range 2 { // a second start is rejected like the first
		node, err := Start(ctx, configs[b])
		if err == nil {
			t.Error("it starts")
			t.Cleanup(func() { _ = node.Close() })
			break
		}
		if !strings.Contains(err.Error(), "tenuto adopt") {
			t.Errorf("the error does not say what to do: %v", err)
		}
	}
	nodes[leader] = startManually(t, configs[leader])
	for i := range 20 {
		if status, err := nodes[leader].Client().Get(ctx, fmt.Sprint("w-", i)); err != nil || status.State != Running {
			t.Errorf("w-%d: %+v, %v", i, status, err)
		}
	}
}

func testWipedDir(t *testing.T, partitions int, secure bool) {
	ctx, nodes, configs, leader := recordOnMajority(t, partitions, secure)
	a, b := (leader+1)%3, (leader+2)%3
	if err := os.RemoveAll(configs[b].Dir); err != nil {
		t.Fatal(err)
	}

	nodes[a], nodes[b] = startManually(t, configs[a]), startManually(t, configs[b])
	eventually(t, "the wiped node says that it is not wanted", func() bool {
		return errors.Is(nodes[b].Health().Ready(), ErrOtherDirectory)
	})
	shortCtx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var unavailable *UnavailableError
	if _, err := StartRun(shortCtx, nodes[a].Client(), waiter, "w-unheard", ""); !errors.As(err, &unavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a majority of the directories a start returned %v", err)
	}

	nodes[leader] = startManually(t, configs[leader])
	for i := range 20 {
		if status, err := nodes[leader].Client().Get(ctx, fmt.Sprint("w-", i)); err != nil || status.State != Running {
			t.Errorf("w-%d: %+v, %v", i, status, err)
		}
	}
	eventually(t, "the new directory is adopted", func() bool {
		return nodes[leader].AdoptNode(ctx, nodes[b].ID(), nodes[b].Identity()) == nil
	})
	for _, g := range nodes[b].partitions {
		eventually(t, "the adopted node has a vote again", func() bool { return g.journal.Status().Voter })
	}
	eventually(t, "the adopted node is ready", func() bool { return nodes[b].Health().Ready() == nil })
	expectSameHistories(t, nodes)
}

// A node does not start while its disk is full, reports that, and starts when there is space.
func TestStart_FullDiskIsReported(t *testing.T) {
	const full = "/dev/full" // every write to it fails like that
	if _, err := os.Stat(full); err != nil {
		t.Skip(err)
	}
	config := Config{Dir: t.TempDir(), Logger: testLogger()}
	written := filepath.Join(config.Dir, "identity.new") // the first file that is written
	if err := os.Symlink(full, written); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(testContext(t), config); !errors.Is(err, ErrDiskFull) {
		t.Errorf("on a full disk: %v", err)
	}
	if err := os.Remove(written); err != nil {
		t.Fatal(err)
	}
	closeNode(t, startManually(t, config))
}

// recordOnMajority starts three nodes and stops a follower, the one after the leader. The other two
// acknowledge 20 starts and are stopped.
func recordOnMajority(t *testing.T, partitions int, secure bool) (ctx context.Context, nodes []*Node, configs []Config, leader int) {
	ctx, peers := testContext(t), loopbackPeers(t, 3)
	authority := newAuthority(t)
	for i := range peers {
		config := peerConfig(t, peers, i, definitions()...)
		config.Partitions = partitions
		config.harness.HeartbeatTimeout = time.Second // two nodes of three must not miss heartbeats on few processors
		if secure {
			config.TLS, config.Settings.RequireJoinToken = authority.keys(authority.Node(config.NodeID)), true
		}
		configs = append(configs, config)
	}
	nodes = make([]*Node, 3)
	for i := range configs {
		nodes[i] = startManually(t, configs[i])
	}
	leader = slices.Index(nodes, leaderOf(t, nodes))
	a, b := (leader+1)%3, (leader+2)%3
	if _, err := Call(ctx, nodes[a].Client(), doubled, "first", 1); err != nil {
		t.Fatal(err)
	}
	closeNode(t, nodes[a])
	for i := range 20 {
		if _, err := StartRun(ctx, nodes[leader].Client(), waiter, fmt.Sprint("w-", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	closeNode(t, nodes[leader])
	closeNode(t, nodes[b])
	return ctx, nodes, configs, leader
}

// A joined node that has lost its Dir is not accepted under its ID until the new Dir is adopted.
func TestWipedDir_JoinedNodeIsRejected(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 3)
	f.leader()
	config := f.joiningConfig("n4")
	node := f.start(config)
	f.awaitVoters("n1", "n2", "n3", "n4")
	f.close(node)
	if err := os.RemoveAll(config.Dir); err != nil {
		t.Fatal(err)
	}
	config.Logger = testLogger()
	_, err := Start(testContext(t), config)
	if !errors.Is(err, ErrOtherDirectory) || !strings.Contains(err.Error(), "tenuto adopt n4 ") {
		t.Fatalf("a node that has lost its Dir: %v", err)
	}
	text := err.Error()
	identity := text[strings.LastIndex(text, " ")+1:]
	eventually(t, "it is adopted", func() bool { return f.leader().AdoptNode(testContext(t), "n4", identity) == nil })
	f.start(config)
	f.awaitVoters("n1", "n2", "n3", "n4")
}

// A Dir in use cannot be replaced, also by a leader that the node has not answered yet: the node
// keeps its vote. After the node was stopped, another Dir is adopted.
func TestAdoptNode_RejectsLiveNode(t *testing.T) {
	t.Parallel()
	// A node that gets no processor for three times as long counts as stopped.
	ctx, f := testContext(t), newTestClusterWith(t, 3, func(config *Config) { config.harness.HeartbeatTimeout = time.Second })
	leader, nodes := f.leader(), f.all()
	node := nodes[slices.IndexFunc(nodes, func(n *Node) bool { return n != leader })]
	eventually(t, "every node answers, and is recorded", func() bool {
		members, err := leader.Members(ctx)
		return err == nil && !slices.ContainsFunc(members, func(m Member) bool {
			return m.Identity == "" || !m.BehindKnown
		})
	})
	another := strings.Repeat("0", 32)
	for range 4 {
		err := leader.AdoptNode(ctx, node.ID(), another)
		if !errors.Is(err, ErrNodeAlive) || !strings.Contains(err.Error(), node.Identity()) {
			t.Errorf("while the node runs: %v; want ErrNodeAlive with its identity", err)
		}
		if err := f.leader().partitions[0].journal.TransferLeadership(ctx); err != nil {
			t.Logf("transfer: %v", err) // leadership was lost by itself
		}
	}
	if err := leader.AdoptNode(ctx, node.ID(), node.Identity()); err != nil {
		t.Errorf("the directory that it has: %v", err)
	}
	f.awaitVoters("n1", "n2", "n3")
	f.close(node)
	eventually(t, "another directory is adopted", func() bool { return f.leader().AdoptNode(ctx, node.ID(), another) == nil })
}

// A copy of a Dir at another address takes over nothing: that process fails, and the node whose Dir
// was copied reports it.
func TestCopiedDir_NodeFails(t *testing.T) {
	t.Parallel()
	t.Run("all nodes run", func(t *testing.T) { testCopiedDir(t, false) })
	// The leader knows the first process before it hears of the other.
	t.Run("the leader alone hears of the copy", func(t *testing.T) { testCopiedDir(t, true) })
}

func testCopiedDir(t *testing.T, leaderAlone bool) {
	ctx, peers := testContext(t), loopbackPeers(t, 3)
	var configs []Config
	var nodes []*Node
	for i := range peers {
		configs = append(configs, peerConfig(t, peers, i, definitions()...))
		nodes = append(nodes, startManually(t, configs[i]))
	}
	leader := leaderOf(t, nodes)
	if _, err := Call(ctx, leader.Client(), doubled, "first", 1); err != nil {
		t.Fatal(err)
	}
	original := (slices.Index(nodes, leader) + 1) % 3
	closeNode(t, nodes[original])
	copied := configs[original]
	copied.Dir = t.TempDir()
	if err := os.CopyFS(copied.Dir, os.DirFS(configs[original].Dir)); err != nil {
		t.Fatal(err)
	}
	nodes[original] = startManually(t, configs[original])
	eventually(t, "it is ready", func() bool { return nodes[original].Health().Ready() == nil })
	if leaderAlone {
		closeNode(t, nodes[(slices.Index(nodes, leader)+2)%3])
	}
	copied.Listen = loopbackPeers(t, 1)[0].Address
	copied.Advertise = copied.Listen
	clone := startManually(t, copied)
	select {
	case <-clone.Failed():
	case <-ctx.Done():
		t.Fatal("the copy goes on")
	}
	if err := clone.Err(); !errors.Is(err, ErrDirectoryCopied) {
		t.Errorf("the copy: %v", err)
	}
	eventually(t, "the node itself is ready", func() bool { return nodes[original].Health().Ready() == nil })
	eventually(t, "the node reports the copy", func() bool { return nodes[original].Health().Copies > 0 })
	members, err := leader.Members(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.NodeID == nodes[original].ID() && m.Address != configs[original].Listen {
			t.Errorf("its address is %s now", m.Address)
		}
	}
}
