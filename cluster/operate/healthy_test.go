package operate_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay"
)

// allowedWarnings are the warnings that nodes may log during healthy operations.
var allowedWarnings = []string{
	"member does not answer", // while it is restarted
	// The machine that runs the test is busy.
	"slow disk", "disk write finished after stall",
}

// A nodeLog is what a node has logged and was not checked.
type nodeLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *nodeLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *nodeLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// check checks that the node has logged no error, and no warning but those that are allowed, since
// the last check.
func (l *nodeLog) check(t *testing.T, node string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		allowed := slices.ContainsFunc(allowedWarnings, func(text string) bool { return strings.Contains(line, text) })
		switch {
		case strings.Contains(line, "disk write stalled"): // the disk of the machine that runs the test
		case strings.Contains(line, "level=ERROR"), strings.Contains(line, "level=WARN") && !allowed:
			t.Errorf("%s: %s", node, line)
		}
	}
	l.text.Reset()
}

// A loggedCluster has four nodes with directories, whose logs are checked.
type loggedCluster struct {
	t       *testing.T // of the operation
	whole   *testing.T
	backups backup.Directory
	service *service
	configs []cluster.Config
	nodes   []*cluster.Node
	logs    []*nodeLog
	calls   int
}

// newLoggedCluster starts three nodes that found a cluster, and one that joins.
func newLoggedCluster(t *testing.T) *loggedCluster {
	t.Helper()
	c := &loggedCluster{t: t, whole: t, backups: backup.Directory(t.TempDir()), service: new(service)}
	var peers []cluster.Peer
	for i := range 3 {
		peers = append(peers, cluster.Peer{NodeID: fmt.Sprint("n", i), Address: addresstest.Free(t)})
	}
	for i := range 4 {
		log := new(nodeLog)
		config := cluster.Config{
			NodeID: fmt.Sprint("n", i), Dir: filepath.Join(t.TempDir(), "data"), Partitions: testPartitions, Definitions: c.service.definitions(),
			Logger: slog.New(slog.NewTextHandler(log, nil)), Backups: backup.Plan{To: c.backups, Every: time.Second, Keep: 2},
		}
		if i < len(peers) {
			config.Listen, config.Peers = peers[i].Address, peers
		} else {
			config.Listen, config.Join = addresstest.Free(t), []string{peers[0].Address}
		}
		c.configs, c.logs, c.nodes = append(c.configs, config), append(c.logs, log), append(c.nodes, nil)
		c.start(i)
	}
	c.awaitMembers("four voters", func(members []cluster.Member) bool { return len(members) == 4 && votersOf(members) == 4 })
	for _, log := range c.logs {
		log.reset() // of the founding and the join, which package cluster tests
	}
	return c
}

// start starts a node. It elects late, because on a busy machine heartbeats that are due five times
// a second are missed.
func (c *loggedCluster) start(i int) {
	c.t.Helper()
	node, err := cluster.Start(harness.NewContext(context.Background(), harness.Overrides{HeartbeatTimeout: 2 * time.Second}), c.configs[i])
	if err != nil {
		c.t.Fatal(err)
	}
	c.whole.Cleanup(func() { _ = node.Close() }) // stopped before, unless the test has failed
	c.nodes[i] = node
}

func (c *loggedCluster) stop(i int) {
	c.t.Helper()
	if err := c.nodes[i].Stop(c.t.Context()); err != nil {
		c.t.Errorf("stop n%d: %v", i, err)
	}
}

func (c *loggedCluster) client() *cluster.Client { return c.nodes[0].Client() }

// eventually waits until a condition holds.
func (c *loggedCluster) eventually(what string, holds func(context.Context) bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Minute)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			c.t.Fatal("timeout: ", what)
		}
	}
}

func (c *loggedCluster) awaitMembers(what string, holds func([]cluster.Member) bool) {
	c.t.Helper()
	c.eventually(what, func(ctx context.Context) bool {
		members, err := c.client().Members(ctx)
		return err == nil && holds(members)
	})
}

func votersOf(members []cluster.Member) (voters int) {
	for _, m := range members {
		if m.Voter {
			voters++
		}
	}
	return voters
}

// call runs an orchestration with an activity through each node.
func (c *loggedCluster) call() {
	c.t.Helper()
	for _, node := range c.nodes {
		c.calls++
		if got, err := cluster.Call(c.t.Context(), node.Client(), program, fmt.Sprint("call-", c.calls), "counted"); err != nil || got != "counted" {
			c.t.Errorf("a call through %s: %q, %v", node.ID(), got, err)
		}
	}
}

// Nodes log no error during operations that succeed, and no warning but a few that are named.
// Package cluster has such tests of a start, a join, a transfer, a removal, new keys and a new
// protocol.
func TestHealthyOperations_LogNoError(t *testing.T) {
	c := newLoggedCluster(t)
	for _, operation := range []struct {
		name string
		run  func(*loggedCluster)
	}{
		{"scheduled backup", (*loggedCluster).awaitScheduledBackups},
		{"backup", (*loggedCluster).backUp},
		{"comparison", (*loggedCluster).compare},
		{"role", (*loggedCluster).setRoles},
		{"voters", (*loggedCluster).changeVoters},
		{"worker", (*loggedCluster).runWorker},
		{"address", (*loggedCluster).changeAddress},
		{"stop", func(c *loggedCluster) {
			for i := range slices.Backward(c.nodes) {
				c.stop(i)
			}
		}},
	} {
		ok := t.Run(operation.name, func(t *testing.T) {
			c.t = t
			if operation.name != "stop" {
				c.call()
			}
			operation.run(c)
			for i, log := range c.logs {
				log.check(t, fmt.Sprint("n", i))
			}
		})
		if !ok {
			break
		}
	}
}

// awaitScheduledBackups waits until two more scheduled backups are made, and an old one is removed.
func (c *loggedCluster) awaitScheduledBackups() {
	began := time.Now()
	c.eventually("two more scheduled backups", func(ctx context.Context) bool {
		entries, err := backup.List(ctx, c.backups)
		return err == nil && len(entries) >= 2 && entries[len(entries)-2].Time.After(began)
	})
}

func (c *loggedCluster) backUp() {
	// Nodes make one backup at a time, and scheduled ones are made meanwhile.
	var full *backup.Info
	c.eventually("a full backup is made", func(ctx context.Context) (done bool) {
		var err error
		full, err = backup.Write(ctx, c.client(), io.Discard, backup.Options{})
		return err == nil
	})
	c.eventually("an incremental backup is made", func(ctx context.Context) bool {
		_, err := backup.Write(ctx, c.client(), io.Discard, backup.Options{Base: full})
		return err == nil
	})
}

// compare compares the replicas until all voters have taken part: one may miss a comparison.
func (c *loggedCluster) compare() {
	c.eventually("all voters take part", func(ctx context.Context) bool {
		all, err := operate.Verify(ctx, c.client(), nil)
		if err != nil || len(all) != testPartitions {
			c.t.Fatalf("%+v, %v", all, err)
		}
		return !slices.ContainsFunc(all, func(v operate.Verification) bool {
			if !v.Done || len(v.Differences) > 0 {
				c.t.Errorf("%+v", v)
			}
			return v.Replicas != v.Voters
		})
	})
}

// setRoles makes the leader of the first partition a standby, and then lets the cluster decide.
func (c *loggedCluster) setRoles() {
	leader := leaderOf(c.t, c.client())
	if err := operate.SetRole(c.t.Context(), c.client(), leader, operate.RoleStandby, "test"); err != nil {
		c.t.Fatal(err)
	}
	c.awaitMembers(leader+" is a standby", func(members []cluster.Member) bool {
		return slices.ContainsFunc(members, func(m cluster.Member) bool { return m.NodeID == leader && !m.Voter && m.Role == operate.RoleStandby })
	})
	if err := operate.SetRole(c.t.Context(), c.client(), leader, operate.RoleAuto, "test"); err != nil {
		c.t.Fatal(err)
	}
	c.awaitMembers("four voters", func(members []cluster.Member) bool { return votersOf(members) == 4 })
}

func (c *loggedCluster) changeVoters() {
	for _, of := range []struct{ wanted, voters int }{{3, 3}, {5, 4}} {
		if _, err := c.client().ChangeSettings(c.t.Context(), func(s *cluster.Settings) { s.Voters = of.wanted }); err != nil {
			c.t.Fatal(err)
		}
		c.awaitMembers(fmt.Sprint(of.voters, " voters"), func(members []cluster.Member) bool { return votersOf(members) == of.voters })
	}
}

// runWorker lets a worker connect, run the activities of many instances, and drain while it runs
// them.
func (c *loggedCluster) runWorker() {
	if _, err := c.client().ChangeSettings(c.t.Context(), func(s *cluster.Settings) { s.ActivityPlacement = "workers first" }); err != nil {
		c.t.Fatal(err)
	}
	var addresses []string
	for _, config := range c.configs {
		addresses = append(addresses, config.Listen)
	}
	log, begun, release := new(nodeLog), make(chan struct{}, 1), make(chan struct{})
	worker, err := cluster.Dial(c.t.Context(), cluster.DialConfig{
		Addresses: addresses, WorkerName: "worker", Logger: slog.New(slog.NewTextHandler(log, nil)), DrainTimeout: time.Hour,
		Definitions: []replay.Definition{counted.Bind(func(_ context.Context, name string) (string, error) {
			select {
			case begun <- struct{}{}:
			default: // another one has begun
			}
			<-release
			return name, nil
		})},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.eventually("the worker is connected", func(ctx context.Context) bool {
		workers, err := operate.Workers(ctx, c.client())
		return err == nil && len(workers) == 1 && workers[0].Slots > 0
	})
	var calls sync.WaitGroup
	c.eventually("the worker runs an activity", func(context.Context) bool { // the settings reach each leader
		c.calls++
		id := fmt.Sprint("call-", c.calls)
		calls.Go(func() {
			if got, err := cluster.Call(c.t.Context(), c.client(), program, id, "counted"); err != nil || got != "counted" {
				c.t.Errorf("%s: %q, %v", id, got, err)
			}
		})
		return len(begun) > 0
	})
	closed := make(chan error, 1)
	go func() { closed <- worker.Close() }()
	c.eventually("the worker drains", func(ctx context.Context) bool {
		workers, err := operate.Workers(ctx, c.client())
		return err == nil && len(workers) == 1 && workers[0].Draining
	})
	close(release)
	if err := <-closed; err != nil {
		c.t.Error(err)
	}
	calls.Wait()
	log.check(c.t, "the worker")
}

// changeAddress restarts a node with another address.
func (c *loggedCluster) changeAddress() {
	const moved = 2
	c.stop(moved)
	c.configs[moved].Listen, c.configs[moved].Peers = addresstest.Free(c.t), nil
	c.configs[moved].Join = []string{c.configs[0].Listen, c.configs[1].Listen}
	c.start(moved)
	c.awaitMembers("the others know the new address", func(members []cluster.Member) bool {
		return slices.ContainsFunc(members, func(m cluster.Member) bool {
			return m.NodeID == c.configs[moved].NodeID && m.Address == c.configs[moved].Listen && m.Liveness != cluster.MemberUnreachable
		})
	})
	c.call()
}
