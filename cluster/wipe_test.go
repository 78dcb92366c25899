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

// started starts a node of a cluster that is stopped and started by hand.
func started(t *testing.T, config Config) *Node {
	t.Helper()
	config.Logger = quiet()
	node, err := Start(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	return node
}

func stopped(t *testing.T, node *Node) {
	t.Helper()
	if err := node.Close(); err != nil {
		t.Error(err)
	}
}

// A follower is stopped, leader and other follower acknowledge 20 starts and are stopped, the
// other follower loses its Dir, and the two followers are started before the leader.
func TestAWipedDirectoryDestroysNothing(t *testing.T) {
	for _, groups := range []int{1, 3} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d groups, TLS %v", groups, secure), func(t *testing.T) {
				t.Parallel()
				wipeOne(t, groups, secure)
			})
		}
	}
}

// A Dir that has lost a part of itself is refused with what to do, and destroys nothing either.
func TestADirThatHasLostAPartOfItselfDestroysNothing(t *testing.T) {
	raftIn := func(dir string) []string { return []string{dir + "/raft.db", dir + "/raft.stable"} }
	but := func(kept ...string) func(t *testing.T, dir string) []string {
		return func(t *testing.T, dir string) (names []string) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if !slices.Contains(kept, entry.Name()) {
					names = append(names, entry.Name())
				}
			}
			return names
		}
	}
	these := func(names ...string) func(*testing.T, string) []string {
		return func(*testing.T, string) []string { return names }
	}
	for _, loss := range []struct {
		name   string
		groups int
		names  func(t *testing.T, dir string) []string
	}{
		{"log and stable file", 1, these(raftIn(".")...)},
		{"log and stable file of the first group", 3, these(raftIn(".")...)},
		{"all but directory-id", 1, but("directory-id")},
		{"all but directory-id", 3, but("directory-id")},
		{"all but identity and directory-id", 1, but("identity", "directory-id")},
		{"all but identity and directory-id", 3, but("identity", "directory-id")},
		{"a group", 3, these("group-001")},
		{"a group and the mark of earlier builds", 3, these("group-001", "groups-complete")},
		{"log and stable file of a group", 3, these(raftIn("group-001")...)},
		{"log, stable file and identity of a group", 3, these(append(raftIn("group-001"), "group-001/directory-id")...)},
		{"what the first group had", 3, but("group-001", "group-002")},
	} {
		t.Run(fmt.Sprintf("%s, %d groups", loss.name, loss.groups), func(t *testing.T) {
			t.Parallel()
			losePart(t, loss.groups, loss.names)
		})
	}
}

func losePart(t *testing.T, groups int, lost func(t *testing.T, dir string) []string) {
	ctx, nodes, configs, leader := startsOnTwo(t, groups, false)
	a, b := (leader+1)%3, (leader+2)%3
	for _, name := range lost(t, configs[b].Dir) {
		if err := os.RemoveAll(filepath.Join(configs[b].Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	nodes[a] = started(t, configs[a])
	configs[b].Logger = quiet()
	for range 2 { // a second start is refused as the first
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
	nodes[leader] = started(t, configs[leader])
	for i := range 20 {
		if status, err := nodes[leader].Client().Get(ctx, fmt.Sprint("w-", i)); err != nil || status.State != Running {
			t.Errorf("w-%d: %+v, %v", i, status, err)
		}
	}
}

func wipeOne(t *testing.T, groups int, secure bool) {
	ctx, nodes, configs, leader := startsOnTwo(t, groups, secure)
	a, b := (leader+1)%3, (leader+2)%3
	if err := os.RemoveAll(configs[b].Dir); err != nil {
		t.Fatal(err)
	}

	nodes[a], nodes[b] = started(t, configs[a]), started(t, configs[b])
	eventually(t, "the wiped node says that it is not wanted", func() bool {
		return errors.Is(nodes[b].Health().Ready(), ErrOtherDirectory)
	})
	impatient, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var unavailable *UnavailableError
	if _, err := StartRun(impatient, nodes[a].Client(), waiter, "w-unheard", ""); !errors.As(err, &unavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a majority of the directories a start came to %v", err)
	}

	nodes[leader] = started(t, configs[leader])
	for i := range 20 {
		if status, err := nodes[leader].Client().Get(ctx, fmt.Sprint("w-", i)); err != nil || status.State != Running {
			t.Errorf("w-%d: %+v, %v", i, status, err)
		}
	}
	eventually(t, "the new directory is adopted", func() bool {
		return nodes[leader].AdoptNode(ctx, nodes[b].ID(), nodes[b].Identity()) == nil
	})
	for _, g := range nodes[b].groups {
		eventually(t, "the adopted node has a vote again", func() bool { return g.journal.Standing().Voter })
	}
	eventually(t, "the adopted node is ready", func() bool { return nodes[b].Health().Ready() == nil })
	sameHistories(t, nodes)
}

// A node does not start while its disk is full, says so, and starts when there is room.
func TestStartOnAFullDiskSaysSo(t *testing.T) {
	const full = "/dev/full" // every write to it fails like that
	if _, err := os.Stat(full); err != nil {
		t.Skip(err)
	}
	config := Config{Dir: t.TempDir(), Logger: quiet()}
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
	stopped(t, started(t, config))
}

// startsOnTwo starts three nodes, stops a follower, the one after the leader, has the other two
// acknowledge 20 starts, and stops these.
func startsOnTwo(t *testing.T, groups int, secure bool) (ctx context.Context, nodes []*Node, configs []Config, leader int) {
	ctx, peers := testContext(t), loopbackPeers(t, 3)
	authority := newAuthority(t)
	for i := range peers {
		config := peerConfig(t, peers, i, definitions()...)
		config.Groups = groups
		if secure {
			config.TLS, config.RequireJoinToken = authority.keys(authority.node(config.NodeID)), true
		}
		configs = append(configs, config)
	}
	nodes = make([]*Node, 3)
	for i := range configs {
		nodes[i] = started(t, configs[i])
	}
	leader = slices.Index(nodes, leaderOf(t, nodes))
	a, b := (leader+1)%3, (leader+2)%3
	if _, err := Call(ctx, nodes[a].Client(), doubled, "first", 1); err != nil {
		t.Fatal(err)
	}
	stopped(t, nodes[a])
	for i := range 20 {
		if _, err := StartRun(ctx, nodes[leader].Client(), waiter, fmt.Sprint("w-", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	stopped(t, nodes[leader])
	stopped(t, nodes[b])
	return ctx, nodes, configs, leader
}

// A node that was added, not founded, and has lost its Dir, is not taken back under its name,
// until it is adopted.
func TestAWipedNodeThatHadJoinedIsRefused(t *testing.T) {
	f := newFleet(t, 3)
	f.leader()
	config := f.joining("n4")
	node := f.start(config)
	f.votes("n1", "n2", "n3", "n4")
	f.close(node)
	if err := os.RemoveAll(config.Dir); err != nil {
		t.Fatal(err)
	}
	config.Logger = quiet()
	_, err := Start(testContext(t), config)
	if !errors.Is(err, ErrOtherDirectory) || !strings.Contains(err.Error(), "tenuto adopt n4 ") {
		t.Fatalf("a node that has lost its Dir: %v", err)
	}
	text := err.Error()
	identity := text[strings.LastIndex(text, " ")+1:]
	eventually(t, "it is adopted", func() bool { return f.leader().AdoptNode(testContext(t), "n4", identity) == nil })
	f.start(config)
	f.votes("n1", "n2", "n3", "n4")
}

// A directory that a node runs with is not taken for lost: the node keeps its vote. Once it has
// been stopped, another one is adopted.
func TestTheDirOfANodeThatAnswersIsNotReplaced(t *testing.T) {
	ctx, f := testContext(t), newFleet(t, 3)
	leader, nodes := f.leader(), f.all()
	node := nodes[slices.IndexFunc(nodes, func(n *Node) bool { return n != leader })]
	eventually(t, "every node answers, and is recorded", func() bool {
		members, err := leader.Members(ctx)
		return err == nil && !slices.ContainsFunc(members, func(m Member) bool {
			return m.Identity == "" || !m.BehindKnown
		})
	})
	another := strings.Repeat("0", 32)
	err := leader.AdoptNode(ctx, node.ID(), another)
	if !errors.Is(err, ErrAnswers) || !strings.Contains(err.Error(), node.Identity()) {
		t.Errorf("while the node runs: %v; want ErrAnswers with its identity", err)
	}
	if err := leader.AdoptNode(ctx, node.ID(), node.Identity()); err != nil {
		t.Errorf("the directory that it has: %v", err)
	}
	f.votes("n1", "n2", "n3")
	f.close(node)
	eventually(t, "another directory is adopted", func() bool { return f.leader().AdoptNode(ctx, node.ID(), another) == nil })
}

// A copy of a Dir at another address takes over nothing: it steps aside, and the node whose Dir
// was copied is told.
func TestACopiedDirStepsAside(t *testing.T) {
	t.Run("all nodes run", func(t *testing.T) { copiedDirStepsAside(t, false) })
	// The leader knows the process of the node that was there first before it hears of the other.
	t.Run("the leader alone hears of the copy", func(t *testing.T) { copiedDirStepsAside(t, true) })
}

func copiedDirStepsAside(t *testing.T, leaderAlone bool) {
	ctx, peers := testContext(t), loopbackPeers(t, 3)
	var configs []Config
	var nodes []*Node
	for i := range peers {
		configs = append(configs, peerConfig(t, peers, i, definitions()...))
		nodes = append(nodes, started(t, configs[i]))
	}
	leader := leaderOf(t, nodes)
	if _, err := Call(ctx, leader.Client(), doubled, "first", 1); err != nil {
		t.Fatal(err)
	}
	original := (slices.Index(nodes, leader) + 1) % 3
	stopped(t, nodes[original])
	copied := configs[original]
	copied.Dir = t.TempDir()
	if err := os.CopyFS(copied.Dir, os.DirFS(configs[original].Dir)); err != nil {
		t.Fatal(err)
	}
	nodes[original] = started(t, configs[original])
	eventually(t, "it is ready", func() bool { return nodes[original].Health().Ready() == nil })
	if leaderAlone {
		stopped(t, nodes[(slices.Index(nodes, leader)+2)%3])
	}
	copied.Listen = loopbackPeers(t, 1)[0].Address
	copied.Advertise = copied.Listen
	clone := started(t, copied)
	select {
	case <-clone.Failed():
	case <-ctx.Done():
		t.Fatal("the copy goes on")
	}
	if err := clone.Err(); !errors.Is(err, ErrCopied) {
		t.Errorf("the copy: %v", err)
	}
	if err := nodes[original].Health().Ready(); err != nil {
		t.Errorf("the node itself: %v", err)
	}
	eventually(t, "the node knows of its copy", func() bool { return nodes[original].Health().Copies > 0 })
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
