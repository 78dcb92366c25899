package upgrades

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const (
	repository = "../.."
	// oldCommit is the last commit that speaks protocol 3; see journal/state.NewestProtocol.
	oldCommit                = "ae15f12ba6e73cfa982328d4a1ab0bd77b27ca03"
	oldProtocol, newProtocol = 3, 4
	hostEnv                  = "TENUTO_UPGRADES_HOST"
	// waitMax bounds each wait. Elections on a busy machine may take seconds.
	waitMax = 2 * time.Minute
)

// added is that of the host.
var added = replay.Event[int]("added")

// settings are those of the host.
type settings struct {
	ID, Address, Dir string
	Peers            []cluster.Peer
	Load             []string
	First            int
}

// builds are the programs of the two builds, by their protocols.
type builds map[int]string

// buildHosts builds the host from the old commit and from the present state. If it is asked to, it
// fails without git or that commit, because "make upgrades" must not succeed with nothing run.
func buildHosts(t *testing.T) builds {
	t.Helper()
	if os.Getenv("TENUTO_UPGRADES") == "" {
		t.Skip("builds an earlier version, which takes minutes: run \"make upgrades\"")
	}
	git := func(arguments ...string) *exec.Cmd {
		return exec.Command("git", append([]string{"-C", repository}, arguments...)...)
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatalf("the earlier build needs git: %v", err)
	}
	if out, err := git("cat-file", "-e", oldCommit+"^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("the earlier build needs commit %s, which this repository does not have: %v: %s\nIf it is a shallow clone, run \"git fetch --unshallow\"", oldCommit, err, out)
	}
	dir, err := filepath.Abs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "old")
	archive := filepath.Join(dir, "old.tar")
	run(t, git("archive", "--format=tar", "-o", archive, oldCommit))
	if err := os.MkdirAll(filepath.Join(source, "internal/upgrades"), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command("tar", "-xf", archive, "-C", source))
	if err := os.CopyFS(filepath.Join(source, "internal/upgrades/host"), os.DirFS("host")); err != nil {
		t.Fatal(err)
	}
	made := builds{oldProtocol: filepath.Join(dir, "host-old"), newProtocol: filepath.Join(dir, "host-new")}
	for protocol, at := range map[int]string{oldProtocol: source, newProtocol: repository} {
		build := exec.Command("go", "build", "-trimpath", "-o", made[protocol], "./internal/upgrades/host")
		build.Dir, build.Env = at, append(os.Environ(), "GOWORK=off")
		run(t, build)
	}
	return made
}

func run(t *testing.T, command *exec.Cmd) {
	t.Helper()
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
}

// A process is a running host.
type process struct {
	name    string
	command *exec.Cmd
	input   io.Closer // it ends when this is closed
	started chan struct{}
	ended   chan struct{}
	err     error // once ended

	mu        sync.Mutex
	log       []string
	snapshots int    // that have replaced its state
	errands   int    // of a client
	output    string // the last line of the output
}

// startProcess starts a host.
func startProcess(t *testing.T, program string, s settings) *process {
	t.Helper()
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{name: s.ID, command: exec.Command(program), started: make(chan struct{}), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), hostEnv+"="+string(encoded))
	input, err := p.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.input = input
	output, outErr := p.command.StdoutPipe()
	logged, logErr := p.command.StderrPipe()
	if err := errors.Join(outErr, logErr, p.command.Start()); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { p.readLines(output, p.readOutput) })
	reading.Go(func() { p.readLines(logged, p.readLog) })
	go func() {
		reading.Wait()
		p.err = p.command.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("log of %s:\n%s", p.name, strings.Join(p.log[max(0, len(p.log)-40):], "\n"))
		}
	})
	return p
}

func (p *process) readLines(from io.Reader, line func(string)) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		p.mu.Lock()
		line(scanner.Text())
		p.mu.Unlock()
	}
}

func (p *process) readOutput(line string) {
	if p.output = line; line == "started" {
		close(p.started)
	}
}

func (p *process) readLog(line string) {
	if _, err := fmt.Sscanf(line, "errands: %d", &p.errands); err == nil {
		return
	}
	p.log = append(p.log, line)
	if strings.Contains(line, "state replaced by snapshot") {
		p.snapshots++
	}
}

// end ends the process and returns its error.
func (p *process) end(t *testing.T) error {
	t.Helper()
	_ = p.input.Close()
	return p.await(t)
}

// await waits for the end of the process and returns its error.
func (p *process) await(t *testing.T) error {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(waitMax):
		t.Fatalf("%s does not end", p.name)
	}
	return p.err
}

// progress returns how many errands a client has had done.
func (p *process) progress(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
		t.Fatalf("%s has ended by itself: %v", p.name, p.err)
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errands
}

// A fleet is a cluster of three processes, and two clients that keep it busy.
type fleet struct {
	*testing.T
	builds builds
	nodes  map[string]*process
	of     map[string]settings
	speaks map[string]int // the protocol of each node's build
	loads  []*process
	client *cluster.Client
	// snapshots counts, by the protocol of the receiving build, states replaced by that of a
	// leader.
	snapshots map[int]int
}

func startFleet(t *testing.T) *fleet {
	f := &fleet{T: t, builds: buildHosts(t), nodes: make(map[string]*process), of: make(map[string]settings), speaks: make(map[string]int), snapshots: make(map[int]int)}
	var peers []cluster.Peer
	var addresses []string
	for i := range 3 {
		addresses = append(addresses, addresstest.Free(t))
		peers = append(peers, cluster.Peer{NodeID: fmt.Sprint("n", i+1), Address: addresses[i]})
	}
	for _, peer := range peers {
		f.of[peer.NodeID] = settings{ID: peer.NodeID, Address: peer.Address, Dir: filepath.Join(t.TempDir(), peer.NodeID), Peers: peers}
		f.start(peer.NodeID, oldProtocol)
	}
	for id := range f.nodes {
		f.awaitStarted(id)
	}
	client, err := cluster.Dial(t.Context(), cluster.DialConfig{Addresses: addresses})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	f.client = client
	f.loads = []*process{
		startProcess(t, f.builds[oldProtocol], settings{ID: "old-client", Load: addresses, First: 1}),
		startProcess(t, f.builds[newProtocol], settings{ID: "new-client", Load: addresses, First: 1_000_000}),
	}
	return f
}

func (f *fleet) start(id string, protocol int) {
	f.Helper()
	f.nodes[id], f.speaks[id] = startProcess(f.T, f.builds[protocol], f.of[id]), protocol
}

func (f *fleet) awaitStarted(id string) {
	f.Helper()
	select {
	case <-f.nodes[id].started:
	case <-f.nodes[id].ended:
		f.Fatalf("%s does not start: %v", id, f.nodes[id].err)
	case <-time.After(waitMax):
		f.Fatalf("%s does not start", id)
	}
}

// replace restarts a node with another build, with its directory: stopped, or killed.
func (f *fleet) replace(id string, protocol int, kill bool) {
	f.Helper()
	f.Logf("%s: protocol %d to %d, killed: %v, leader: %s", id, f.speaks[id], protocol, kill, f.leader())
	if kill {
		_ = f.nodes[id].command.Process.Kill()
		_ = f.nodes[id].await(f.T)
	} else if err := f.nodes[id].end(f.T); err != nil {
		f.Errorf("%s stopped: %v", id, err)
	}
	f.snapshots[f.speaks[id]] += f.nodes[id].snapshots
	f.start(id, protocol)
	f.awaitStarted(id)
	f.awaitProgress()
}

// awaitProgress waits until each client has had 10 more errands done, and all nodes answer and have
// caught up.
func (f *fleet) awaitProgress() {
	f.Helper()
	for _, load := range f.loads {
		goal := load.progress(f.T) + 10
		f.eventually(load.name+" proceeds", func() bool { return load.progress(f.T) >= goal })
	}
	f.eventually("all nodes answer and have caught up", func() bool {
		members, err := f.client.Members(f.Context())
		return err == nil && len(members) == 3 && !slices.ContainsFunc(members, func(m cluster.Member) bool {
			return !m.Voter || m.Liveness != cluster.MemberAlive || !m.BehindKnown || m.Behind > 1000
		})
	})
}

func (f *fleet) eventually(what string, holds func() bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), waitMax)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Fatalf("not in %v: %s", waitMax, what)
		}
	}
}

// leader returns the node that leads the first partition.
func (f *fleet) leader() (id string) {
	f.Helper()
	f.eventually("a node leads", func() bool {
		members, _ := f.client.Members(f.Context())
		for _, m := range members {
			if m.Leader {
				id = m.NodeID
			}
		}
		return id != ""
	})
	return id
}

// order returns the nodes in an order in which the leader has that place.
func (f *fleet) order(places [3]int) []string {
	f.Helper()
	nodes := []string{f.leader()}
	for _, id := range []string{"n1", "n2", "n3"} {
		if id != nodes[0] {
			nodes = append(nodes, id)
		}
	}
	return []string{nodes[places[0]], nodes[places[1]], nodes[places[2]]}
}

// Every order of three, where 0 is the leader.
var orders = [][3]int{{0, 1, 2}, {1, 0, 2}, {1, 2, 0}, {0, 2, 1}, {2, 0, 1}, {2, 1, 0}}

// Two builds form one cluster in every order of replacement, forward and back, under load from
// clients of both builds. When the protocol is confirmed, the old build is refused. No step is
// lost.
func TestUpgrades_EveryOrder(t *testing.T) {
	f := startFleet(t)
	f.awaitProgress()
	for i, places := range orders {
		for _, protocol := range []int{newProtocol, oldProtocol} {
			for n, id := range f.order(places) {
				f.replace(id, protocol, i%2 == 1)
				if n < 2 {
					f.expectNotFinalized()
				}
			}
		}
	}
	for _, id := range f.order(orders[2]) {
		f.replace(id, newProtocol, false)
	}
	if t.Logf("snapshots received, by protocol of the receiver: %v", f.snapshots); f.snapshots[oldProtocol] == 0 || f.snapshots[newProtocol] == 0 {
		t.Errorf("no node of a build got a snapshot: %v", f.snapshots)
	}
	f.eventually("all speak the new protocol", func() bool {
		p, err := operate.GetProtocols(t.Context(), f.client)
		return err == nil && p.Used == oldProtocol && p.Next == newProtocol
	})
	if used, err := operate.Finalize(t.Context(), f.client, "the matrix is complete"); err != nil || used != newProtocol {
		t.Fatalf("finalized: %d, %v", used, err)
	}
	f.awaitProgress()
	f.expectRefused("n1")
	f.awaitProgress()
	f.expectNothingLost()
}

// expectNotFinalized fails the test unless the protocol cannot be confirmed because a node speaks
// only the old one, and that is said.
func (f *fleet) expectNotFinalized() {
	f.Helper()
	_, err := operate.Finalize(f.Context(), f.client, "too early")
	var rejected *cluster.VersionError
	switch {
	case !errors.Is(err, cluster.ErrProtocol):
	case !errors.As(err, &rejected): // the leader has the old build, which does not know the request
		return
	case rejected.Newest == oldProtocol && f.speaks[rejected.Node] == oldProtocol:
		return
	}
	f.Errorf("confirmed too early, or refused for another reason: %v, %+v", err, rejected)
}

// expectRefused fails the test unless the old build cannot run a node, and says why.
func (f *fleet) expectRefused(id string) {
	f.Helper()
	if err := f.nodes[id].end(f.T); err != nil {
		f.Errorf("%s stopped: %v", id, err)
	}
	refused := startProcess(f.T, f.builds[oldProtocol], f.of[id])
	err := refused.await(f.T)
	want := fmt.Sprintf("%s speaks protocols %d to %d, but %d is required", id, oldProtocol-1, oldProtocol, newProtocol)
	if log := strings.Join(refused.log, "\n"); err == nil || !strings.Contains(log, want) {
		f.Errorf("the old build ended with %v and says\n%s\nwant: %s", err, log, want)
	}
	f.start(id, newProtocol)
	f.awaitStarted(id)
}

// expectNothingLost ends the clients and fails the test unless the cluster has all that it has
// confirmed to them, on each node.
func (f *fleet) expectNothingLost() {
	f.Helper()
	want := make(map[int]bool)
	for _, load := range f.loads {
		if err := load.end(f.T); err != nil {
			f.Fatalf("%s: %v", load.name, err)
		}
		var done struct {
			Errands []string
			Added   []int
		}
		if err := json.Unmarshal([]byte(load.output), &done); err != nil {
			f.Fatal(err)
		}
		f.Logf("%s: %d errands, %d numbers", load.name, len(done.Errands), len(done.Added))
		for _, id := range done.Errands {
			f.expectErrand(id)
		}
		for _, n := range done.Added {
			want[n] = true
		}
	}
	if err := cluster.Send(f.Context(), f.client, "counter", added, -1); err != nil {
		f.Fatal(err)
	}
	var counted []int
	status, err := f.client.Wait(f.Context(), "counter")
	if err == nil {
		err = status.Output(&counted)
	}
	if err != nil {
		f.Fatalf("the counter: %v", err)
	}
	for _, n := range counted {
		delete(want, n)
	}
	if len(want) > 0 {
		f.Errorf("%d numbers are lost of those that the cluster has confirmed, it has %d: %v", len(want), len(counted), want)
	}
}

// expectErrand fails the test unless an errand has ended as it should, and its history has each
// step once.
func (f *fleet) expectErrand(id string) {
	f.Helper()
	status, err := f.client.Get(f.Context(), id)
	var got string
	if err == nil {
		err = status.Output(&got)
	}
	if err != nil || got != id+"..." {
		f.Errorf("%s: %q, %v", id, got, err)
		return
	}
	recorded, err := f.client.History(f.Context(), id)
	if err != nil {
		f.Errorf("%s: %v", id, err)
		return
	}
	types := make(map[history.EventType]int)
	for _, event := range recorded.Events {
		types[event.Type]++
	}
	for _, kind := range []history.EventType{"ActivityScheduled", "ActivityCompleted"} {
		if types[kind] != 2 {
			f.Errorf("%s has %v", id, types)
		}
	}
}
