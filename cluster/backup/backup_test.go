package backup_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
)

var (
	goAhead = replay.Event[string]("go-ahead")
	step    = replay.Activity[int, int]("step")
	child   = replay.Orchestration[int, int]("child")
	parent  = replay.Orchestration[int, int]("parent")
	number  = replay.Event[int]("number")
	sender  = replay.Orchestration[int, int]("sender")
	adder   = replay.Orchestration[int, int]("adder")
	waiter  = replay.Orchestration[string, string]("waiter")
	sleeper = replay.Orchestration[time.Duration, string]("sleeper")
)

func definitions() []replay.Definition {
	return []replay.Definition{
		step.Bind(func(_ context.Context, n int) (int, error) { return n + 1, nil }),
		child.Bind(func(ctx *replay.Context, n int) (int, error) { return step.Call(ctx, n) }),
		parent.Bind(func(ctx *replay.Context, rounds int) (sum int, err error) {
			for i := range rounds {
				n, err := child.Call(ctx, i)
				if err != nil {
					return 0, err
				}
				sum += n
			}
			return sum, nil
		}),
		sender.Bind(func(ctx *replay.Context, count int) (int, error) {
			for i := range count {
				if err := number.SendTo(ctx, "a"+strings.TrimPrefix(ctx.InstanceID(), "s"), i+1); err != nil {
					return 0, err
				}
			}
			return count, nil
		}),
		adder.Bind(func(ctx *replay.Context, count int) (sum int, err error) {
			for range count {
				n, err := number.Wait(ctx)
				if err != nil {
					return 0, err
				}
				sum += n
			}
			return sum, nil
		}),
		waiter.Bind(func(ctx *replay.Context, name string) (string, error) {
			answer, err := goAhead.Wait(ctx)
			return name + " " + answer, err
		}),
		sleeper.Bind(func(ctx *replay.Context, d time.Duration) (string, error) { return "slept", ctx.Sleep(d) }),
	}
}

func newCluster(t *testing.T, nodes, partitions int) *clustertest.Cluster {
	t.Helper()
	return clustertest.New(t, nodes, clustertest.Definitions(definitions()...), clustertest.Configure(func(_ int, c *cluster.Config) {
		c.Partitions = partitions
	}))
}

// startRestored starts a node on a restored directory.
func startRestored(t *testing.T, dir string, partitions int) *cluster.Node {
	t.Helper()
	return startNode(t, cluster.Config{NodeID: "r1", Dir: dir, Partitions: partitions})
}

func write(t *testing.T, client *cluster.Client, options backup.Options) (*backup.Info, *bytes.Buffer) {
	t.Helper()
	for {
		var to bytes.Buffer
		switch info, err := backup.Write(t.Context(), client, &to, options); {
		case err == nil:
			return info, &to
		case !errors.Is(err, backup.ErrMissed): // of a busy node
			t.Fatal(err)
		}
	}
}

func restore(t *testing.T, backups ...io.Reader) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := backup.Restore(t.Context(), backup.Target{Dir: dir, NodeID: "r1"}, backups...); err != nil {
		t.Fatal(err)
	}
	return dir
}

// resultOf waits until an instance has ended, and returns its result.
func resultOf[T any](ctx context.Context, client *cluster.Client, id string) (result T, err error) {
	status, err := client.Wait(ctx, id)
	if err != nil {
		return result, err
	}
	err = status.Output(&result)
	return result, err
}

// startMessages starts instances that run children and send each other messages, each of them a
// number of rounds. It returns their results.
func startMessages(t *testing.T, client *cluster.Client, each, rounds int) map[string]int {
	t.Helper()
	results := map[string]int{}
	sum := rounds * (rounds + 1) / 2
	for i := range each {
		for _, start := range []struct {
			kind   string
			of     replay.OrchestrationHandle[int, int]
			result int
		}{{"p", parent, sum}, {"a", adder, sum}, {"s", sender, rounds}} {
			id := fmt.Sprint(start.kind, i)
			if _, err := cluster.StartRun(t.Context(), client, start.of, id, rounds); err != nil {
				t.Fatal(err)
			}
			results[id] = start.result
		}
	}
	return results
}

// Parents with children, and instances that send messages, in other partitions run while backups
// are made. Each restored cluster has everything that was acknowledged before its backup, and every
// parent in it ends with the right result.
func TestBackup_RestoredClusterGoesOn(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			const parents, rounds = 20, 30
			c := newCluster(t, 3, partitions)
			client := c.Client(0)
			if _, err := cluster.StartRun(t.Context(), client, waiter, "w", "order"); err != nil {
				t.Fatal(err)
			}
			want := startMessages(t, client, parents, rounds)
			info, full := write(t, client, backup.Options{})
			if len(info.Partitions) != partitions {
				t.Fatalf("%d partitions", len(info.Partitions))
			}
			node := startRestored(t, restore(t, full), partitions)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			for id, result := range want {
				if got, err := resultOf[int](ctx, node.Client(), id); err != nil || got != result {
					t.Errorf("%s: %d, %v; want %d", id, got, err, result)
				}
			}
			if err := cluster.Send(ctx, node.Client(), "w", goAhead, "paid"); err != nil {
				t.Fatal(err)
			}
			if answer, err := resultOf[string](ctx, node.Client(), "w"); err != nil || answer != "order paid" {
				t.Errorf("the waiter: %q, %v", answer, err)
			}
		})
	}
}

// An incremental backup has what is new, and restores with the backups before it.
func TestBackup_IncrementalHasWhatChanged(t *testing.T) {
	c := newCluster(t, 1, 1)
	client := c.Client(0)
	var calls sync.WaitGroup
	for i := range 300 {
		calls.Go(func() {
			if _, err := cluster.StartRun(t.Context(), client, waiter, fmt.Sprint("w", i), "order"+string(make([]byte, 2000))); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	first, full := write(t, client, backup.Options{})
	if _, err := cluster.StartRun(t.Context(), client, waiter, "late", "order"); err != nil {
		t.Fatal(err)
	}
	second, increment := write(t, client, backup.Options{Base: first})
	if second.Base != first.ID || second.Cut <= first.Cut {
		t.Errorf("%+v after %+v", second, first)
	}
	if increment.Len() > full.Len()/2 {
		t.Errorf("the increment has %d bytes, the full backup %d", increment.Len(), full.Len())
	}
	third, again := write(t, client, backup.Options{Base: second})
	node := startRestored(t, restore(t, bytes.NewReader(full.Bytes()), increment, again), 1)
	for _, id := range []string{"w0", "w299", "late"} {
		if _, err := node.Client().Get(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := backup.Restore(t.Context(), backup.Target{Dir: filepath.Join(t.TempDir(), "x"), NodeID: "r1"}, full, bytes.NewReader(again.Bytes())); err == nil {
		t.Errorf("restored %s without the backup that it continues", third.ID)
	}
}

// Any byte of a backup that is damaged or missing is noticed, and nothing is left of the target.
func TestRestore_RefusesDamagedBackups(t *testing.T) {
	c := newCluster(t, 1, 1)
	_, full := write(t, c.Client(0), backup.Options{})
	content := full.Bytes()
	for at := 20; at < len(content); at += max(len(content)/60, 1) {
		damaged := bytes.Clone(content)
		damaged[at] ^= 4
		for name, b := range map[string][]byte{"flipped": damaged, "truncated": content[:at]} {
			dir := filepath.Join(t.TempDir(), "restored")
			_, err := backup.Restore(t.Context(), backup.Target{Dir: dir, NodeID: "r1"}, bytes.NewReader(b))
			if !errors.Is(err, backup.ErrDamaged) {
				t.Errorf("byte %d %s: %v", at, name, err)
			}
			if left, _ := filepath.Glob(dir + "*"); len(left) > 0 {
				t.Errorf("byte %d %s: %v is left", at, name, left)
			}
		}
	}
}

// The clock of the leader was decades behind or ahead when it was backed up: the cluster time of
// the restored cluster is near that of the backup all the same.
func TestRestore_BackupOfNodeWithWrongClock(t *testing.T) {
	c := newCluster(t, 1, 1)
	_, full := write(t, c.Client(0), backup.Options{})
	for _, years := range []int{-40, 40} {
		wrong := time.Duration(years) * 365 * 24 * time.Hour
		node := startRestored(t, restore(t, redated(t, full.Bytes(), wrong)), 1)
		if _, err := cluster.StartRun(t.Context(), node.Client(), waiter, "w", "order"); err != nil {
			t.Fatal(err)
		}
		status, err := node.Client().Get(t.Context(), "w")
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Since(status.CreatedAt).Abs(); off > time.Hour {
			t.Errorf("a clock wrong by %d years: the cluster time is %v", years, status.CreatedAt)
		}
	}
}

// redated returns a backup as a node writes it whose clock is wrong.
func redated(t *testing.T, content []byte, wrong time.Duration) io.Reader {
	t.Helper()
	from, to := frame.NewReader(bytes.NewReader(content)), new(bytes.Buffer)
	w := frame.NewWriter(to)
	begin := content[:bytes.IndexByte(content, '\n')+1]
	if err := from.Bytes(bytes.Clone(begin)); err != nil {
		t.Fatal(err)
	}
	w.Bytes(begin)
	encoded, err := from.Frame(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	var info backup.Info
	if err := json.Unmarshal(encoded, &info); err != nil {
		t.Fatal(err)
	}
	info.Time = info.Time.Add(wrong)
	if encoded, err = json.Marshal(&info); err != nil {
		t.Fatal(err)
	}
	w.Frame(encoded)
	for {
		part, err := from.Frame(1 << 20)
		if err != nil { // the trailer
			break
		}
		w.Frame(part)
	}
	w.Trailer()
	return to
}

func startNode(t *testing.T, config cluster.Config) *cluster.Node {
	t.Helper()
	return startNodeIn(t.Context(), t, config)
}

func startNodeIn(ctx context.Context, t *testing.T, config cluster.Config) *cluster.Node {
	t.Helper()
	config.Definitions = definitions()
	node, err := cluster.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return node
}

func eventually(t *testing.T, what string, holds func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("timeout: ", what)
		}
	}
}

// The first node of a restored cluster has the ID and the address of an old one. Another old node,
// with its old directory, is refused by it; with an empty directory it joins and gets everything.
func TestRestore_OldDirectoriesAreRefused(t *testing.T) {
	peers := []cluster.Peer{{NodeID: "a", Address: addresstest.Free(t)}, {NodeID: "b", Address: addresstest.Free(t)}}
	dirs := []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
	var old []*cluster.Node
	var starting sync.WaitGroup
	var mu sync.Mutex
	for i, p := range peers {
		starting.Go(func() {
			node, err := cluster.Start(t.Context(), cluster.Config{NodeID: p.NodeID, Dir: dirs[i], Listen: p.Address, Peers: peers, Definitions: definitions()})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			old = append(old, node)
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if _, err := cluster.StartRun(t.Context(), old[0].Client(), waiter, "w", "order"); err != nil {
		t.Fatal(err)
	}
	_, full := write(t, old[0].Client(), backup.Options{})
	for _, node := range old {
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
	restored := filepath.Join(t.TempDir(), "restored")
	if _, err := backup.Restore(t.Context(), backup.Target{Dir: restored, NodeID: "a", Address: peers[0].Address}, full); err != nil {
		t.Fatal(err)
	}
	first := startNode(t, cluster.Config{NodeID: "a", Dir: restored, Listen: peers[0].Address})
	stale, err := cluster.Start(t.Context(), cluster.Config{NodeID: "b", Dir: dirs[1], Listen: peers[1].Address, Peers: peers, Definitions: definitions()})
	if err == nil { // it had not heard of the restored cluster yet
		eventually(t, "the old node is refused", func(context.Context) bool { return errors.Is(stale.Health().Err, journal.ErrOtherLineage) })
		if err := stale.Close(); err != nil && !errors.Is(err, journal.ErrOtherLineage) {
			t.Fatal(err)
		}
	} else if !errors.Is(err, journal.ErrOtherLineage) {
		t.Fatal(err)
	}
	if _, err := cluster.Call(t.Context(), first.Client(), child, "c", 1); err != nil {
		t.Fatal(err)
	}
	if members, err := first.Client().Members(t.Context()); err != nil || len(members) != 1 {
		t.Errorf("members %v, %v", members, err)
	}
	joined := startNode(t, cluster.Config{NodeID: "b", Dir: filepath.Join(t.TempDir(), "b"), Listen: peers[1].Address, Join: []string{peers[0].Address}})
	eventually(t, "the new node votes and has the instances", func(ctx context.Context) bool {
		members, err := first.Client().Members(ctx)
		status, getErr := joined.Client().Get(ctx, "w", cluster.Stale())
		return err == nil && len(members) == 2 && members[1].Voter && getErr == nil && status.State == cluster.Running
	})
}
