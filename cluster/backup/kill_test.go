package backup_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
)

// nodeEnv is the environment variable with the nodeProcess that a process runs.
const nodeEnv = "TENUTO_BACKUP_TEST_NODE"

func TestMain(m *testing.M) {
	encoded := os.Getenv(nodeEnv)
	if encoded == "" {
		os.Exit(m.Run())
	}
	if err := runNodeProcess(encoded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A nodeProcess is a node in a process of its own.
type nodeProcess struct {
	NodeID, Dir string
	Peers       []cluster.Peer
	// Sink is the directory of a plan for full backups; "" for no plan.
	Sink string

	command *exec.Cmd
}

func (p *nodeProcess) address() string {
	return p.Peers[slices.IndexFunc(p.Peers, func(of cluster.Peer) bool { return of.NodeID == p.NodeID })].Address
}

// runNodeProcess runs a node until standard input ends.
func runNodeProcess(encoded string) error {
	var p nodeProcess
	if err := json.Unmarshal([]byte(encoded), &p); err != nil {
		return err
	}
	config := cluster.Config{
		NodeID: p.NodeID, Dir: p.Dir, Peers: p.Peers, Listen: p.address(), Definitions: definitions(), Logger: slog.New(slog.DiscardHandler),
	}
	if p.Sink != "" {
		config.Backups = backup.Plan{To: slowSink{backup.Directory(p.Sink)}, Every: time.Second, Increments: -1}
	}
	node, err := cluster.Start(context.Background(), config)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, node.Close())
}

// A slowSink takes at least a second for each backup, so that a kill meets one.
type slowSink struct{ backup.Directory }

// Put implements backup.Sink.
func (s slowSink) Put(ctx context.Context, name string, content io.Reader) error {
	begun := time.Now()
	return s.Directory.Put(ctx, name, io.MultiReader(content, readerFunc(func([]byte) (int, error) {
		time.Sleep(time.Until(begun.Add(time.Second)))
		return 0, io.EOF
	})))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func (p *nodeProcess) start(t *testing.T) {
	t.Helper()
	encoded, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	p.command = exec.Command(os.Args[0], "-test.run=^$")
	p.command.Env = append(os.Environ(), nodeEnv+"="+string(encoded))
	p.command.Stderr = os.Stderr
	_, inErr := p.command.StdinPipe()
	out, err := p.command.StdoutPipe()
	if err := errors.Join(inErr, err, p.command.Start()); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%s says %q, %v", p.NodeID, line, err)
	}
}

// kill ends the process as kill -9 does.
func (p *nodeProcess) kill() {
	if p.command == nil || p.command.Process == nil {
		return // it did not start
	}
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// processInstances is how many instances startProcesses starts.
const processInstances = 16

// startProcesses starts three nodes, and returns them by their IDs and a client of them, with a
// state of some megabytes.
func startProcesses(t *testing.T, sink string) (nodes map[string]*nodeProcess, client *cluster.Client) {
	t.Helper()
	var peers []cluster.Peer
	var addresses []string
	for _, id := range []string{"a", "b", "c"} {
		peers = append(peers, cluster.Peer{NodeID: id, Address: addresstest.Free(t)})
		addresses = append(addresses, peers[len(peers)-1].Address)
	}
	nodes = make(map[string]*nodeProcess)
	var starting sync.WaitGroup
	for _, p := range peers {
		node := &nodeProcess{NodeID: p.NodeID, Dir: filepath.Join(t.TempDir(), p.NodeID), Peers: peers, Sink: sink}
		nodes[p.NodeID] = node
		t.Cleanup(node.kill)
		starting.Go(func() { node.start(t) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	client, err := cluster.Dial(t.Context(), cluster.DialConfig{Addresses: addresses, CallTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range processInstances {
		if _, err := cluster.StartRun(t.Context(), client, waiter, fmt.Sprint("w", i), strings.Repeat(fmt.Sprint(i), 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	return nodes, client
}

// leaderAndFollower returns the node that leads, and another one.
func leaderAndFollower(t *testing.T, client *cluster.Client) (leader, follower string) {
	t.Helper()
	eventually(t, "a leader and a follower that answers", func(ctx context.Context) bool {
		members, err := client.Members(ctx)
		for _, m := range members {
			if m.Leader {
				leader = m.NodeID
			} else if m.Liveness != cluster.MemberUnreachable {
				follower = m.NodeID
			}
		}
		return err == nil && leader != "" && follower != ""
	})
	return leader, follower
}

// put stores a backup in a directory. It calls during after the first bytes.
func put(ctx context.Context, client *cluster.Client, to backup.Directory, name string, options backup.Options, during func()) error {
	from, writer := io.Pipe()
	var writing sync.WaitGroup
	var writeErr error
	writing.Go(func() {
		options.Progress = func(_, _ int64) { during(); during = func() {} }
		_, writeErr = backup.Write(ctx, client, writer, options)
		writer.CloseWithError(writeErr)
	})
	err := to.Put(ctx, name, from)
	from.CloseWithError(err)
	writing.Wait()
	return errors.Join(writeErr, err)
}

// The node whose files are copied is killed meanwhile: the error says that it is lost, nothing is
// left in the directory, and the next backup is made of another node. When the node is back, it has
// removed its checkpoint, and serves the next one.
func TestWrite_NodeIsKilled(t *testing.T) {
	nodes, client := startProcesses(t, "")
	for _, leads := range []bool{false, true} {
		t.Run(fmt.Sprint("leader ", leads), func(t *testing.T) {
			dir := backup.Directory(t.TempDir())
			victim, other := leaderAndFollower(t, client)
			if !leads {
				victim, other = other, victim
			}
			err := put(t.Context(), client, dir, "lost.backup", backup.Options{Node: victim}, nodes[victim].kill)
			if _, lost := errors.AsType[*cluster.UnavailableError](err); !lost {
				t.Errorf("the error is %v (%T)", err, err)
			}
			if left, err := os.ReadDir(string(dir)); err != nil || len(left) > 0 {
				t.Errorf("left in the directory: %v, %v", left, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			for name, options := range map[string]backup.Options{"named": {Node: other}, "chosen": {}} {
				// A backup waits for the next leader.
				if err := put(ctx, client, dir, name, options, func() {}); err != nil {
					t.Fatalf("the next backup, of a node that is %s: %v", name, err)
				}
				verifyFile(t, dir, name, processInstances)
			}
			nodes[victim].start(t)
			if left, err := filepath.Glob(filepath.Join(nodes[victim].Dir, "backup")); err != nil || len(left) > 0 {
				t.Errorf("the checkpoint is left: %v, %v", left, err)
			}
			eventually(t, "the node serves a backup again", func(ctx context.Context) bool {
				_, err := backup.Write(ctx, client, io.Discard, backup.Options{Node: victim})
				return err == nil
			})
		})
	}
}

// verifyFile verifies a backup that has at least some instances.
func verifyFile(t *testing.T, dir backup.Directory, name string, instances uint64) {
	t.Helper()
	file, err := dir.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if v, err := backup.Verify(t.Context(), t.TempDir(), file); err != nil || v.Instances < instances {
		t.Errorf("%s: %+v, %v", name, v, err)
	}
}

// The node that executes a plan is killed while it writes: what it has written is no backup, and
// the next leader makes one. All backups that are listed are whole.
func TestPlan_NodeIsKilled(t *testing.T) {
	dir := backup.Directory(t.TempDir())
	nodes, client := startProcesses(t, string(dir))
	started := time.Now()
	partial := func() []string {
		left, err := filepath.Glob(filepath.Join(string(dir), "*.partial"))
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	eventually(t, "a node is killed while it writes", func(ctx context.Context) bool {
		leader, _ := leaderAndFollower(t, client)
		if len(partial()) == 0 {
			return false
		}
		nodes[leader].kill()
		if len(partial()) > 0 {
			return true
		}
		nodes[leader].start(t)
		return false
	})
	killed := time.Now()
	eventually(t, "another node makes a backup", func(ctx context.Context) bool {
		entries, err := backup.List(ctx, dir)
		return err == nil && len(entries) > 0 && entries[len(entries)-1].Time.After(killed)
	})
	entries, err := backup.List(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		instances := uint64(0)
		if e.Time.After(started) { // the others were made while instances were still started
			instances = processInstances
		}
		verifyFile(t, dir, e.Name, instances)
	}
}
