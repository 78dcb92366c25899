package recovery_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/recovery"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/internal/keytest"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
)

var (
	goAhead = replay.Event[string]("go ahead")
	double  = replay.Activity[int, int]("double")
	doubled = replay.Orchestration[int, int]("doubled")
	waiter  = replay.Orchestration[string, string]("waiter")
)

func definitions() []replay.Definition {
	return []replay.Definition{
		double.Bind(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
		doubled.Bind(func(ctx *replay.Context, n int) (int, error) { return double.Call(ctx, n) }),
		waiter.Bind(func(ctx *replay.Context, name string) (string, error) {
			answer, err := goAhead.Wait(ctx)
			return name + " " + answer, err
		}),
	}
}

// A member is a node of the cluster under test, and how to start it again.
type member struct {
	config cluster.Config
	node   *cluster.Node
	keys   *keytest.Authority // nil: without TLS
}

// newCluster starts nodes with directories.
func newCluster(t *testing.T, nodes, partitions int) []*member {
	t.Helper()
	return newClusterWithKeys(t, nodes, partitions, nil)
}

func newClusterWithKeys(t *testing.T, nodes, partitions int, keys *keytest.Authority) []*member {
	t.Helper()
	var peers []cluster.Peer
	for i := range nodes {
		peers = append(peers, cluster.Peer{NodeID: fmt.Sprint("n", i+1), Address: addresstest.Free(t)})
	}
	var members []*member
	for _, p := range peers {
		members = append(members, &member{keys: keys, config: cluster.Config{
			NodeID: p.NodeID, Dir: filepath.Join(t.TempDir(), "data"), Listen: p.Address, Peers: peers, Partitions: partitions,
		}})
	}
	start(t, members...)
	eventually(t, "every node is a voter of a cluster with a leader", func(ctx context.Context) bool {
		known, err := members[0].node.Client().Members(ctx)
		return err == nil && len(known) == nodes && !slices.ContainsFunc(known, func(m cluster.Member) bool { return !m.Voter || m.Identity == "" })
	})
	return members
}

// start starts members at the same time.
func start(t *testing.T, members ...*member) {
	t.Helper()
	var starting sync.WaitGroup
	for _, m := range members {
		starting.Go(func() {
			node, err := m.open(t)
			if err != nil {
				t.Error(err)
				return
			}
			m.node = node
			t.Cleanup(func() { _ = node.Close() })
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// open starts a member. It elects late, because on a busy machine heartbeats that are due five
// times a second are missed.
func (m *member) open(t *testing.T) (*cluster.Node, error) {
	return cluster.Start(harness.NewContext(t.Context(), harness.Overrides{HeartbeatTimeout: 2 * time.Second}), m.quiet())
}

// stop ends members without a transfer of their leaderships.
func stop(t *testing.T, members ...*member) {
	t.Helper()
	for _, m := range members {
		if err := m.node.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func eventually(t *testing.T, what string, holds func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("timeout: ", what)
		}
	}
}

// The node that was stopped first lacks what the two others have acknowledged since. Of the others,
// one survives: the recovered cluster has everything, and the old directories are refused.
func TestRecover_KeepsWhatTheBestSurvivorHas(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 4} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) { testRecover(t, partitions, nil) })
	}
	// With TLS, nodes of the recovered cluster reject Raft connections of nodes that are no
	// members.
	t.Run("TLS", func(t *testing.T) { testRecover(t, 1, keytest.NewAuthority(t)) })
}

func testRecover(t *testing.T, partitions int, keys *keytest.Authority) {
	ctx := t.Context()
	members := newClusterWithKeys(t, 3, partitions, keys)
	first, lost, survivor := members[0], members[1], members[2]
	client := survivor.node.Client()
	for i := range 20 {
		if got, err := cluster.Call(ctx, client, doubled, fmt.Sprint("before-", i), i); err != nil || got != 2*i {
			t.Fatal(got, err)
		}
	}
	stop(t, first)
	for i := range 20 {
		if _, err := cluster.StartRun(ctx, client, waiter, fmt.Sprint("open-", i), "order"); err != nil {
			t.Fatal(err)
		}
	}
	stop(t, lost, survivor)

	report, err := recovery.Inspect(ctx, first.config.Dir, survivor.config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, p := range report.Partitions {
		if p.Best != 1 || p.Index <= p.Survivors[0].Index || p.Committed > p.Index || !slices.Equal(p.Members, []string{"n1", "n2", "n3"}) {
			t.Errorf("partition %+v", p)
		}
		open += p.Affected
	}
	if len(report.Partitions) != partitions || open < 20 || report.Lineage != "" {
		t.Errorf("report %+v", report)
	}

	recovered := &member{keys: keys, config: cluster.Config{
		NodeID: "n3", Dir: filepath.Join(t.TempDir(), "recovered"), Listen: survivor.config.Listen, Partitions: partitions,
	}}
	target := recovery.Target{Dir: recovered.config.Dir, Address: recovered.config.Listen}
	if _, err := recovery.Recover(ctx, target, first.config.Dir, survivor.config.Dir); err != nil {
		t.Fatal(err)
	}
	for number := range partitions {
		checkContinues(t, journal.PartitionDir(survivor.config.Dir, number), journal.PartitionDir(recovered.config.Dir, number), number)
	}
	start(t, recovered)
	checkRecovered(t, recovered.node.Client())
	checkOldNodesDoNotServe(t, recovered, first, lost)
	fresh := &member{keys: keys, config: cluster.Config{
		NodeID: "n2", Dir: filepath.Join(t.TempDir(), "fresh"), Listen: lost.config.Listen, Partitions: partitions, Join: []string{recovered.config.Listen},
	}}
	start(t, fresh)
	eventually(t, "a node with an empty directory votes and has the instances", func(ctx context.Context) bool {
		now, err := recovered.node.Client().Members(ctx)
		status, getErr := fresh.node.Client().Get(ctx, "before-0", cluster.Stale())
		return err == nil && len(now) == 2 && now[0].Voter && getErr == nil && status.Continued == "recovered"
	})
}

// checkContinues checks that the recovered directory of a partition is later than the survivor's in
// every respect in which nodes compare each other.
func checkContinues(t *testing.T, survivor, recovered string, partition int) {
	t.Helper()
	open := func(dir string) *journal.Survivor {
		s, err := journal.OpenSurvivor(dir, partition, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	before, after := open(survivor), open(recovered)
	if after.Epoch <= before.Epoch || after.Term <= before.Term || after.Index <= before.Index || after.Lineage == before.Lineage {
		t.Errorf("partition %d: epoch %d after %d, term %d after %d, index %d after %d, lineage %q after %q", partition,
			after.Epoch, before.Epoch, after.Term, before.Term, after.Index, before.Index, after.Lineage, before.Lineage)
	}
}

// checkOldNodesDoNotServe starts a majority of the old cluster, which has a leader as long as the
// recovered node does not run. Then they must stop for good, and clients that know the recovered
// cluster must not use them before.
func checkOldNodesDoNotServe(t *testing.T, recovered *member, old ...*member) {
	t.Helper()
	ctx := t.Context()
	follower := dial(t, recovered.keys, old[0].config.Listen, recovered.config.Listen) // of the recovered cluster
	if _, err := cluster.Call(ctx, follower, doubled, "pinned", 1); err != nil {
		t.Fatal(err)
	}
	for _, m := range old {
		checkEnds(t, m)
	}
	// Without the files that record it: as if the recovered node had not run when they returned.
	stop(t, recovered)
	for _, m := range old {
		if err := os.Remove(filepath.Join(m.config.Dir, "lineage-ended")); err != nil {
			t.Fatal(err)
		}
	}
	start(t, old...)
	eventually(t, "the old cluster has a leader", func(ctx context.Context) bool {
		return old[0].node.Health().Ready() == nil && old[1].node.Health().Ready() == nil
	})
	for _, m := range old {
		stranger := dial(t, m.keys, m.config.Listen) // it cannot know of the recovered cluster
		if _, err := stranger.Get(ctx, "before-0"); err != nil {
			t.Error(err)
		}
	}
	for what, call := range map[string]func(ctx context.Context) error{
		"a start": func(ctx context.Context) error {
			_, err := cluster.StartRun(ctx, follower, doubled, "refused", 1)
			return err
		},
		"a read":      func(ctx context.Context) error { _, err := follower.Get(ctx, "before-0", cluster.Stale()); return err },
		"the members": func(ctx context.Context) error { _, err := follower.Members(ctx); return err },
	} {
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := call(limited)
		cancel()
		var unavailable *cluster.UnavailableError // the last attempt may have been at the node that does not run
		if !errors.As(err, &unavailable) {
			t.Errorf("%s of a client of the recovered cluster at the old one: %v", what, err)
		}
	}
	start(t, recovered)
	for _, m := range old {
		eventually(t, "the old nodes have stopped", func(context.Context) bool {
			h := m.node.Health()
			return h.Failed && errors.Is(h.Err, journal.ErrOtherLineage)
		})
		if _, err := m.node.Client().Get(ctx, "before-0", cluster.Stale()); !errors.Is(err, journal.ErrOtherLineage) {
			t.Errorf("a read at a stopped node: %v", err)
		}
		stop(t, m)
	}
	if status, err := follower.Get(ctx, "pinned"); err != nil || status.State != cluster.Completed {
		t.Errorf("the client of the recovered cluster: %+v, %v", status, err)
	}
	stop(t, recovered)
	for _, m := range old {
		if node, err := m.open(t); !errors.Is(err, journal.ErrOtherLineage) {
			t.Errorf("a stopped node is started again, and no node of the recovered cluster runs: %v, %v", node, err)
		}
	}
	start(t, recovered)
}

// checkEnds starts a node with an old directory while the recovered node answers. The start fails,
// or the node fails if the answer comes after the second that a start waits for it.
func checkEnds(t *testing.T, m *member) {
	t.Helper()
	node, err := m.open(t)
	if err == nil {
		eventually(t, "the node has failed", func(context.Context) bool { return node.Health().Failed })
		err = node.Health().Err
		_ = node.Close() // returns the failure
	}
	if !errors.Is(err, journal.ErrOtherLineage) {
		t.Fatalf("with an old directory, while the recovered node answers: %v", err)
	}
}

// quiet returns the configuration with the code of the tests, and no log.
func (m *member) quiet() cluster.Config {
	m.config.Definitions, m.config.Logger = definitions(), slog.New(slog.DiscardHandler)
	if m.keys != nil {
		m.config.TLS, m.config.ClusterID = keySource(m.keys, m.keys.Node(m.config.NodeID)), keytest.ClusterID
	}
	return m.config
}

// fixedKeys is a source of keys that do not change.
type fixedKeys cluster.Keys

func (k *fixedKeys) Keys() (*cluster.Keys, error) { return (*cluster.Keys)(k), nil }

func keySource(keys *keytest.Authority, own *tls.Certificate) cluster.KeySource {
	return &fixedKeys{Certificate: own, Roots: keys.Roots()}
}

func dial(t *testing.T, keys *keytest.Authority, addresses ...string) *cluster.Client {
	t.Helper()
	config := cluster.DialConfig{Addresses: addresses, Logger: slog.New(slog.DiscardHandler)}
	if keys != nil {
		config.TLS, config.ClusterID = keySource(keys, keys.Client("test")), keytest.ClusterID
	}
	client, err := cluster.Dial(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// checkRecovered checks that all instances are there and go on, and that those of the old cluster
// say what happened.
func checkRecovered(t *testing.T, client *cluster.Client) {
	t.Helper()
	ctx := t.Context()
	for i := range 20 {
		status, err := client.Get(ctx, fmt.Sprint("before-", i))
		var output int
		if err == nil {
			err = status.Output(&output)
		}
		if err != nil || output != 2*i || status.Continued != "recovered" || status.ContinuedIndex == 0 || time.Since(status.ContinuedAt) > time.Hour {
			t.Fatalf("%+v, output %d, %v", status, output, err)
		}
		id := fmt.Sprint("open-", i)
		if err := cluster.Send(ctx, client, id, goAhead, "shipped"); err != nil {
			t.Fatal(err)
		}
		status, err = client.Wait(ctx, id)
		var text string
		if err == nil {
			err = status.Output(&text)
		}
		if err != nil || text != "order shipped" || status.Continued != "recovered" {
			t.Fatalf("%+v, output %q, %v", status, text, err)
		}
	}
	if _, err := cluster.Call(ctx, client, doubled, "new", 4); err != nil {
		t.Fatal(err)
	}
	page, err := client.List(ctx, cluster.Filter{}, "", 100)
	if err != nil || len(page.Instances) != 41 {
		t.Fatal(len(page.Instances), err)
	}
	for _, status := range page.Instances {
		if (status.InstanceID == "new") != (status.Continued == "") {
			t.Errorf("%s is listed as continued %q", status.InstanceID, status.Continued)
		}
	}
}

func TestRecover_Refusals(t *testing.T) {
	ctx := t.Context()
	members := newCluster(t, 2, 1)
	other := newCluster(t, 1, 1)[0]
	dir := members[0].config.Dir
	into := recovery.Target{Dir: filepath.Join(t.TempDir(), "new")}
	var invalid *replay.InvalidError
	var locked *journal.LockedError
	if _, err := recovery.Inspect(ctx, dir); !errors.As(err, &locked) {
		t.Errorf("of a node that runs: %v", err)
	}
	stop(t, members...)
	stop(t, other)
	if _, err := recovery.Inspect(ctx, dir, filepath.Join(dir, "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a directory that does not exist: %v", err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		to   recovery.Target
		dirs []string
		want string
	}{
		"no directory":           {into, nil, "missing"},
		"no target":              {recovery.Target{}, []string{dir}, "Target.Dir"},
		"a target with files":    {recovery.Target{Dir: full}, []string{dir}, "not empty"},
		"the directory itself":   {recovery.Target{Dir: dir}, []string{dir}, "not empty"},
		"two of one node":        {into, []string{dir, copied}, "two of node n1"},
		"the only member":        {into, []string{other.config.Dir}, "only member"},
		"a directory of no node": {into, []string{full}, ""},
	} {
		_, err := recovery.Recover(ctx, c.to, c.dirs...)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.want != "" && !errors.As(err, &invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(into.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused recovery has left %s: %v", into.Dir, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := recovery.Recover(ended, into, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := recovery.Recover(ctx, into, dir); err != nil {
		t.Error(err)
	}
}

// A damaged log is refused, and the new directory does not exist. Another survivor can still be
// used.
func TestRecover_DamagedLog(t *testing.T) {
	ctx := t.Context()
	members := newCluster(t, 3, 1)
	const marker = "an-instance-in-the-log"
	if _, err := cluster.StartRun(ctx, members[0].node.Client(), waiter, marker, "order"); err != nil {
		t.Fatal(err)
	}
	for _, m := range members[:2] {
		eventually(t, "the node has the instance", func(ctx context.Context) bool {
			_, err := m.node.Client().Get(ctx, marker, cluster.Stale())
			return err == nil
		})
	}
	stop(t, members...)
	damaged, intact := members[0].config.Dir, members[1].config.Dir
	path := filepath.Join(damaged, "raft.db")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(content, []byte(marker)) {
		t.Fatal("the log lacks the instance")
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(content, []byte(marker), []byte("an-instance-in-the-fog")), 0o600); err != nil {
		t.Fatal(err)
	}
	into := recovery.Target{Dir: filepath.Join(t.TempDir(), "new"), Logger: slog.New(slog.DiscardHandler)}
	for name, dirs := range map[string][]string{"alone": {damaged}, "among others": {intact, damaged}} {
		var damage *journal.DamagedError
		if _, err := recovery.Recover(ctx, into, dirs...); !errors.As(err, &damage) || damage.Path == "" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(into.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a directory was made: %v", name, err)
		}
	}
	if _, err := recovery.Recover(ctx, into, intact); err != nil {
		t.Error(err)
	}
}

// The directory of a node that was removed is no survivor: it may lack what was acknowledged since.
// Its ID is no target: the leader of the new cluster would remove the node.
func TestRecover_RemovedNode(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	members := newCluster(t, 3, 1)
	removed := members[2]
	eventually(t, "the node is removed", func(ctx context.Context) bool {
		err := members[0].node.Client().RemoveNode(ctx, removed.config.NodeID)
		if err != nil && !errors.Is(err, cluster.ErrMembershipChanging) {
			t.Fatal(err)
		}
		return err == nil
	})
	select {
	case <-removed.node.Failed():
	case <-time.After(time.Minute):
		t.Fatal("timeout: the removed node has stopped")
	}
	var stream bytes.Buffer
	if _, err := backup.Write(ctx, members[0].node.Client(), &stream, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	stop(t, members...)
	dir, id := filepath.Join(t.TempDir(), "new"), removed.config.NodeID
	if _, err := recovery.Recover(ctx, recovery.Target{Dir: dir, NodeID: id}, members[0].config.Dir); !errors.Is(err, cluster.ErrRemoved) || !strings.Contains(err.Error(), id) {
		t.Errorf("recovered as the removed node: %v", err)
	}
	if _, err := backup.Restore(ctx, backup.Target{Dir: dir, NodeID: id}, &stream); !errors.Is(err, cluster.ErrRemoved) || !strings.Contains(err.Error(), id) {
		t.Errorf("restored as the removed node: %v", err)
	}
	if left, err := filepath.Glob(dir + "*"); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	for _, dirs := range [][]string{{removed.config.Dir}, {members[0].config.Dir, removed.config.Dir}} {
		if _, err := recovery.Inspect(ctx, dirs...); !errors.Is(err, cluster.ErrRemoved) {
			t.Errorf("%v: %v", dirs, err)
		}
	}
}

// Directories of two lineages are not compared: their terms and indexes have nothing in common.
func TestRecover_OtherLineage(t *testing.T) {
	ctx := t.Context()
	members := newCluster(t, 2, 1)
	stop(t, members...)
	first := filepath.Join(t.TempDir(), "first")
	into := recovery.Target{Dir: first, Logger: slog.New(slog.DiscardHandler)}
	if _, err := recovery.Recover(ctx, into, members[0].config.Dir); err != nil {
		t.Fatal(err)
	}
	var invalid *replay.InvalidError
	if _, err := recovery.Inspect(ctx, first, members[1].config.Dir); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "different lineages") {
		t.Error(err)
	}
}

// Nodes of a cluster that was restored from a backup stop, too, if they return.
func TestRestore_OldNodesStop(t *testing.T) {
	ctx := t.Context()
	members := newCluster(t, 3, 1)
	if _, err := cluster.Call(ctx, members[0].node.Client(), doubled, "before", 1); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if _, err := backup.Write(ctx, members[0].node.Client(), &stream, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	stop(t, members...)
	restored := &member{config: cluster.Config{NodeID: "n1", Dir: filepath.Join(t.TempDir(), "restored"), Listen: members[0].config.Listen}}
	to := backup.Target{Dir: restored.config.Dir, NodeID: "n1", Address: restored.config.Listen, Logger: slog.New(slog.DiscardHandler)}
	if _, err := backup.Restore(ctx, to, &stream); err != nil {
		t.Fatal(err)
	}
	start(t, restored)
	for _, m := range members[1:] {
		checkEnds(t, m)
	}
	if h := restored.node.Health(); h.Lineage == "" || time.Since(h.LineageSince) > time.Hour || h.Ready() != nil {
		t.Errorf("health %+v", h)
	}
}
