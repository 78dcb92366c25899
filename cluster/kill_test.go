package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/comparison"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The tests of this file run nodes in separate processes: this test binary, started again as a node
// that reads commands.
const nodeEnv = "TENUTO_TEST_NODE"

func TestMain(m *testing.M) {
	if config := os.Getenv(nodeEnv); config != "" {
		if err := runNodeProcess(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	before := countGoroutines()
	code := shorttest.Main(m)
	if stacks := goroutinesLeft(before); code == 0 && stacks != "" {
		fmt.Fprintf(os.Stderr, "goroutines left by parallel tests:\n%s\n", stacks)
		code = 1
	}
	os.Exit(code)
}

type nodeProcessConfig struct {
	NodeID string
	Dir    string
	Peers  []Peer

	Effects string // the file that logs what activities of a journey do
	HangAt  string // the activity that hangs after its begin

	HeartbeatTimeout time.Duration // default 0: that of a node

	WorkerOf []string // addresses of nodes: the process is a worker named NodeID, and no node
}

// An instanceReport is what a node process reports about an instance of its replica.
type instanceReport struct {
	ID      string
	Hash    string
	Problem string // of the history, "" if it is valid
}

// runNodeProcess runs a node until its input ends. It takes the commands
//
//	start PREFIX N   starts N instances of fifth; says "done ID" for each result
//	leader [ID]      says which node it knows as leader, of the partition of an instance
//	report           says what its replica has, as JSON
//	journey ID       starts a journey
//	cancel ID        cancels an instance
//	end ID           says "end" and how an instance has ended
//	history ID       says "history" and what it is, as JSON
//	alter ID         changes an event of its replica of an instance; says "altered"
//	verify           compares all replicas; says "verified" and what was found, as JSON
//	crash STEP       kills the process at a step of a repair; says "crashes"
func runNodeProcess(encoded string) error {
	var config nodeProcessConfig
	if err := json.Unmarshal([]byte(encoded), &config); err != nil {
		return err
	}
	if config.WorkerOf != nil {
		return runWorkerProcess(config)
	}
	listen := ""
	for _, peer := range config.Peers {
		if peer.NodeID == config.NodeID {
			listen = peer.Address
		}
	}
	var crashAt atomic.Pointer[string]
	repairStep := func(step string) {
		if at := crashAt.Load(); at != nil && *at == step {
			if self, err := os.FindProcess(os.Getpid()); err == nil {
				_ = self.Kill()
			}
			select {}
		}
	}
	ctx := harness.NewContext(context.Background(), harness.Overrides{
		CompareInterval: 1000 * time.Hour, RepairStep: repairStep, HeartbeatTimeout: config.HeartbeatTimeout,
	})
	node, err := Start(ctx, Config{
		NodeID: config.NodeID, Dir: config.Dir, Peers: config.Peers, Listen: listen, Partitions: testPartitionsDefault,
		Definitions: append(definitionsWith(slowDoubleBody), journeyDefinitions(config.Effects, config.HangAt)...),
		Logger:      slog.New(slog.DiscardHandler), CallTimeout: testTimeout,
	})
	if err != nil {
		return err
	}
	defer node.Close()
	out := &lineWriter{}
	out.writeLine("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		command := strings.Fields(in.Text())
		switch command[0] {
		case "start":
			var n int
			fmt.Sscan(command[2], &n)
			go startMany(node, out, command[1], n)
		case "leader":
			leader := node.Leader()
			if len(command) > 1 {
				leader = node.partitionOf(command[1]).leader()
			}
			out.writeLine("leader " + leader)
		case "report":
			err = out.writeJSON("report", reportReplica(node))
		case "crash":
			crashAt.Store(&command[1])
			out.writeLine("crashes")
		case "verify":
			go func() { _ = out.writeJSON("verified", verifyPartitions(node)) }()
		default:
			err = execCommand(node, out, command)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runWorkerProcess runs a worker with four slots until its input ends. It says "begin" and the
// event_id of each attempt that begins. Attempts end after the first line of input.
func runWorkerProcess(config nodeProcessConfig) error {
	out, released := &lineWriter{}, make(chan struct{})
	client, err := Dial(context.Background(), DialConfig{
		Addresses: config.WorkerOf, WorkerName: config.NodeID, ActivitiesMax: 4, Logger: slog.New(slog.DiscardHandler),
		Definitions: []replay.Definition{workerActivity.Bind(func(ctx context.Context, _ string) (string, error) {
			out.writeLine(fmt.Sprint("begin ", replay.ActivityInfo(ctx).EventID))
			select {
			case <-released:
				return config.NodeID, nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		})},
	})
	if err != nil {
		return err
	}
	out.writeLine("ready")
	in := bufio.NewScanner(os.Stdin)
	if in.Scan() {
		close(released)
	}
	for in.Scan() {
	}
	return client.Close()
}

// execCommand executes a command that concerns one instance.
func execCommand(node *Node, out *lineWriter, command []string) error {
	ctx, client, id := context.Background(), node.Client(), command[1]
	switch command[0] {
	case "journey":
		return errOf(StartRun(ctx, client, journey, id, ""))
	case "cancel":
		return client.Cancel(ctx, id, "as wanted")
	case "alter":
		for !alterOwn(ctx, node, id) {
			time.Sleep(10 * time.Millisecond)
		}
		out.writeLine("altered")
		return nil
	case "end":
		status, err := client.Wait(ctx, id)
		if err == nil {
			out.writeLine("end " + string(status.State))
		}
		return err
	case "history":
		history, err := client.History(ctx, id)
		if err != nil {
			return err
		}
		var events []string
		for _, event := range history.Events {
			events = append(events, event.String())
		}
		return out.writeJSON("history", events)
	}
	return fmt.Errorf("command %q is not known", command)
}

// A verification is what a node process has found.
type verification struct {
	Differences, Quarantines []string
	ReplicasMin              int
	Err                      string
}

// verifyPartitions compares all replicas of all partitions.
func verifyPartitions(node *Node) verification {
	v := verification{ReplicasMin: math.MaxInt}
	for _, pa := range node.partitions {
		for round := uint64(0); ; time.Sleep(10 * time.Millisecond) {
			response, err := node.Client().call(context.Background(), &clusterpb.Request{Partition: uint32(pa.number + 1), Call: &clusterpb.Request_Verify{
				Verify: &clusterpb.VerifyRequest{Round: round},
			}})
			if err != nil {
				v.Err = err.Error()
				return v
			}
			status := response.GetVerify()
			if round = status.Round; !status.Done {
				continue // of another leadership, round is 0
			}
			v.ReplicasMin = min(v.ReplicasMin, int(status.Replicas))
			for _, d := range status.Differences {
				v.Differences = append(v.Differences, fmt.Sprintf("%s/%d/%d on %s", d.Instance, d.Execution, d.EventId, d.Node))
			}
			break
		}
		for _, q := range pa.journal.Quarantines() {
			v.Quarantines = append(v.Quarantines, q.Instance+" on "+q.Node)
		}
	}
	return v
}

// alterOwn changes the time of the third event of an instance in this node's replica, at a
// comparison that a round of the leader records. It reports whether it could.
func alterOwn(ctx context.Context, node *Node, id string) bool {
	pa := node.partitionOf(id)
	number, _ := pa.journal.Comparison()
	pending, err := pa.journal.PrepareView(ctx, number+1, true)
	if err != nil {
		return false
	}
	defer pending.Close()
	verify := &clusterpb.Request{Partition: uint32(pa.number + 1), Call: &clusterpb.Request_Verify{Verify: new(clusterpb.VerifyRequest)}}
	if _, err := node.Client().call(ctx, verify); err != nil {
		return false
	}
	view, err := pending.Wait(ctx)
	if err != nil {
		return false
	}
	encoded, err := view.Export(id)
	instance, event := new(journalpb.InstanceSnapshot), new(journalpb.Event)
	if err != nil || proto.Unmarshal(encoded, instance) != nil || proto.Unmarshal(instance.Executions[0].Events[2], event) != nil {
		return false
	}
	event.Timestamp += 12345
	if instance.Executions[0].Events[2], err = proto.Marshal(event); err != nil {
		return false
	}
	if encoded, err = proto.Marshal(instance); err != nil {
		return false
	}
	return pending.ReplaceInstance(id, encoded) == nil
}

// slowDoubleBody takes a while, so that a node can be killed during it.
func slowDoubleBody(ctx context.Context, n int) (int, error) {
	select {
	case <-time.After(20 * time.Millisecond):
		return doubleBody(ctx, n)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// lineWriter writes whole lines to the standard output.
type lineWriter struct{ mu sync.Mutex }

func (l *lineWriter) writeLine(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Println(line)
}

func (l *lineWriter) writeJSON(what string, value any) error {
	encoded, err := json.Marshal(value)
	if err == nil {
		l.writeLine(what + " " + string(encoded))
	}
	return err
}

// callUntilAdmitted retries a call while the cluster is busy, as a user would.
func callUntilAdmitted(node *Node, id string, n int) (int, error) {
	for {
		got, err := Call(context.Background(), node.Client(), fiveActivities, id, n, RequestID(id))
		var busy *BusyError
		if !errors.As(err, &busy) {
			return got, err
		}
		time.Sleep(busy.RetryAfter)
	}
}

func startMany(node *Node, out *lineWriter, prefix string, n int) {
	for i := range n {
		go func() {
			id := fmt.Sprintf("%s-%d", prefix, i)
			got, err := callUntilAdmitted(node, id, i)
			if err != nil || got != 32*i {
				out.writeLine(fmt.Sprintf("failed %s: %d, %v", id, got, err))
				return
			}
			out.writeLine("done " + id)
		}()
	}
}

func reportReplica(node *Node) []instanceReport {
	var all []instanceReport
	for _, g := range node.partitions {
		for instance := range g.journal.Instances() {
			r := instanceReport{ID: instance.Instance}
			hash, err := g.journal.Hash(instance.Instance)
			r.Hash = fmt.Sprintf("%x", hash)
			if err == nil {
				err = checkFiveActivities(node, instance)
			}
			if err != nil {
				r.Problem = err.Error()
			}
			all = append(all, r)
		}
	}
	return all
}

// checkFiveActivities checks that a history of fifth is gapless and complete, with one completion
// for each of its five activities.
func checkFiveActivities(node *Node, instance *journalpb.Instance) error {
	completions := map[uint64]int{}
	last := uint64(0)
	for event, err := range node.partitionOf(instance.Instance).journal.Events(instance.Instance, 1, 1) {
		if err != nil {
			return err
		}
		if event.EventId != last+1 {
			return fmt.Errorf("event %d after %d", event.EventId, last)
		}
		last++
		switch event.TypeNumber() {
		case journalpb.TypeActivityScheduled:
			completions[event.EventId] = 0
		case journalpb.TypeActivityCompleted:
			completions[event.SourceEventId]++
		}
	}
	for source, n := range completions {
		if n != 1 {
			return fmt.Errorf("activity %d has %d completions", source, n)
		}
	}
	if len(completions) != 5 || last != 12 || instance.Status != journalpb.Status_STATUS_COMPLETED {
		return fmt.Errorf("%d activities, %d events, status %v", len(completions), last, instance.Status)
	}
	return nil
}

// A nodeProcess is a node that can be killed.
type nodeProcess struct {
	t       *testing.T
	id      string
	command *exec.Cmd
	in      io.WriteCloser
	out     chan string
}

func startNodeProcess(t *testing.T, config nodeProcessConfig) *nodeProcess {
	t.Helper()
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &nodeProcess{t: t, id: config.NodeID, out: make(chan string, 10_000)}
	p.command = exec.Command(os.Args[0], "-test.run=^$")
	p.command.Env = append(os.Environ(), nodeEnv+"="+string(encoded))
	p.command.Stderr = os.Stderr
	p.in, err = p.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.out)
		reader := bufio.NewScanner(out)
		reader.Buffer(nil, 16<<20)
		for reader.Scan() {
			p.out <- reader.Text()
		}
	}()
	t.Cleanup(p.kill)
	p.awaitLine("ready")
	return p
}

// kill ends the process as kill -9 does, and waits until it is gone.
func (p *nodeProcess) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

func (p *nodeProcess) send(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatalf("%s: %v", p.id, err)
	}
}

// awaitLine returns the rest of the next line that begins with prefix.
func (p *nodeProcess) awaitLine(prefix string) string {
	p.t.Helper()
	ctx := testContext(p.t)
	for {
		select {
		case line, ok := <-p.out:
			if !ok {
				p.t.Fatalf("%s ended before it wrote %q", p.id, prefix)
			}
			if strings.HasPrefix(line, "failed") {
				p.t.Fatalf("%s: %s", p.id, line)
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return strings.TrimSpace(rest)
			}
		case <-ctx.Done():
			p.t.Fatalf("%s never wrote %q", p.id, prefix)
		}
	}
}

func (p *nodeProcess) leader() string {
	p.send("leader")
	return p.awaitLine("leader")
}

func (p *nodeProcess) report() []instanceReport {
	p.send("report")
	var all []instanceReport
	if err := json.Unmarshal([]byte(p.awaitLine("report")), &all); err != nil {
		p.t.Fatal(err)
	}
	return all
}

// history returns the history of an instance, each event described.
func (p *nodeProcess) history(id string) (events []string) {
	p.send("history " + id)
	if err := json.Unmarshal([]byte(p.awaitLine("history")), &events); err != nil {
		p.t.Fatal(err)
	}
	return events
}

func TestKilledLeader_ThousandInstancesFinish(t *testing.T) {
	t.Parallel()
	const instances = 1000
	peers := loopbackPeers(t, 3)
	processes := map[string]*nodeProcess{}
	configs := map[string]nodeProcessConfig{}
	for _, peer := range peers {
		configs[peer.NodeID] = nodeProcessConfig{NodeID: peer.NodeID, Dir: t.TempDir(), Peers: peers}
		processes[peer.NodeID] = startNodeProcess(t, configs[peer.NodeID])
	}
	var leader string
	eventually(t, "a node leads", func() bool {
		leader = processes["n1"].leader()
		return leader != ""
	})
	var others []*nodeProcess
	for _, peer := range peers {
		if peer.NodeID != leader {
			others = append(others, processes[peer.NodeID])
		}
	}

	caller := others[0]
	caller.send(fmt.Sprintf("start five %d", instances))
	done := 0
	for ; done < instances/10; done++ {
		caller.awaitLine("done")
	}
	processes[leader].kill()
	if unfinished := countProblems(others[1].report()); unfinished == 0 {
		t.Fatal("the leader was killed too late to show anything")
	} else {
		t.Logf("killed %s with %d of %d unfinished", leader, unfinished, instances)
	}
	for ; done < instances; done++ {
		caller.awaitLine("done")
	}

	want := expectReports(t, others, instances)
	back := startNodeProcess(t, configs[leader])
	eventually(t, "the killed node has caught up", func() bool { return len(back.report()) == instances && sameReports(back.report(), want) })
}

// expectReports waits until the nodes have applied the same and checks their reports. It returns
// the report.
func expectReports(t *testing.T, nodes []*nodeProcess, instances int) []instanceReport {
	t.Helper()
	var reports []instanceReport
	eventually(t, "the survivors have the same histories", func() bool {
		reports = nodes[0].report()
		for _, node := range nodes[1:] {
			if !sameReports(reports, node.report()) {
				return false
			}
		}
		return true
	})
	if len(reports) != instances {
		t.Fatalf("%d instances; want %d", len(reports), instances)
	}
	for _, r := range reports {
		if r.Problem != "" {
			t.Errorf("%s: %s", r.ID, r.Problem)
		}
	}
	return reports
}

func countProblems(reports []instanceReport) int {
	n := 0
	for _, r := range reports {
		if r.Problem != "" {
			n++
		}
	}
	return n
}

func sameReports(a, b []instanceReport) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// A node that is killed at any step of a repair is repaired after its restart, or by the next
// leader; meanwhile, calls go on. The leader must not change before the step at which it is killed.
func TestRepair_NodeIsKilledAtEachStep(t *testing.T) {
	t.Parallel()
	const loadOfStep = 20
	peers := loopbackPeers(t, 3)
	processes, configs := map[string]*nodeProcess{}, map[string]nodeProcessConfig{}
	for _, peer := range peers {
		configs[peer.NodeID] = nodeProcessConfig{NodeID: peer.NodeID, Dir: t.TempDir(), Peers: peers, HeartbeatTimeout: 2 * time.Second}
		processes[peer.NodeID] = startNodeProcess(t, configs[peer.NodeID])
	}
	verify := func(at *nodeProcess) (v verification) {
		at.send("verify")
		if err := json.Unmarshal([]byte(at.awaitLine("verified")), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	load := func(at *nodeProcess, name string) func() {
		at.send(fmt.Sprintf("start %s %d", name, loadOfStep))
		return func() {
			for range loadOfStep {
				at.awaitLine("done")
			}
		}
	}
	load(processes["n1"], "five")()
	instances := loadOfStep
	for i, c := range []struct {
		step  string
		leads bool // the node that is killed
	}{
		{comparison.StepQuarantined, true}, {comparison.StepPaused, true}, {comparison.StepAsked, false}, {comparison.StepRead, false},
		{comparison.StepReplaced, false}, {comparison.StepRepaired, true}, {comparison.StepCompared, true}, {comparison.StepLifted, true},
	} {
		id := fmt.Sprintf("five-%d", i)
		leader, victim, third := rolesIn(t, processes, id)
		killed, asked := victim, leader
		if c.leads {
			killed, asked = leader, victim
		}
		killed.send("crash " + c.step)
		killed.awaitLine("crashes")
		victim.send("alter " + id)
		victim.awaitLine("altered")
		finish := load(third, c.step)
		eventually(t, "the node is killed at the step "+c.step, func() bool {
			verify(asked)
			return killed.hasEnded()
		})
		processes[killed.id] = startNodeProcess(t, configs[killed.id])
		finish()
		instances += loadOfStep
		eventually(t, "all replicas agree after a kill at the step "+c.step, func() bool {
			v := verify(asked)
			return v.Err == "" && len(v.Differences)+len(v.Quarantines) == 0 && v.ReplicasMin == len(peers)
		})
	}
	var all []*nodeProcess
	for _, p := range processes {
		all = append(all, p)
	}
	expectReports(t, all, instances)
}

// rolesIn returns the leader of the partition of an instance and the other two.
func rolesIn(t *testing.T, processes map[string]*nodeProcess, id string) (leader, victim, third *nodeProcess) {
	t.Helper()
	eventually(t, "a node leads", func() bool {
		processes["n1"].send("leader " + id)
		leader = processes[processes["n1"].awaitLine("leader")]
		return leader != nil
	})
	for _, p := range processes {
		switch {
		case p == leader:
		case victim == nil:
			victim = p
		default:
			third = p
		}
	}
	return leader, victim, third
}

// hasEnded reports whether the process has ended by itself. It drops what the process has written.
func (p *nodeProcess) hasEnded() bool {
	for {
		select {
		case _, more := <-p.out:
			if !more {
				p.kill()
				return true
			}
		default:
			return false
		}
	}
}
