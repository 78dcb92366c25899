package cluster

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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The tests of this file run nodes in processes of their own: this test binary,
// started again as a node that takes commands.
const nodeEnv = "TENUTO_TEST_NODE"

func TestMain(m *testing.M) {
	if config := os.Getenv(nodeEnv); config != "" {
		if err := runNodeProcess(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

type nodeProcessConfig struct {
	NodeID string
	Dir    string
	Peers  []Peer

	Effects string // the file that tells what activities of a journey do
	Hold    string // the one of them that goes no further than its beginning
}

// A report is what a node process says about one instance of its replica.
type report struct {
	ID      string
	Hash    string
	Problem string // of the history, "" if it is as it must be
}

// runNodeProcess runs a node until its input ends. It takes the commands
//
//	start PREFIX N   starts N instances of fifth; says "done ID" for each result
//	leader           says which node leads, as far as it knows
//	report           says what its replica has, as JSON
//	journey ID       starts a journey
//	cancel ID        cancels an instance
//	end ID           says "end" and how an instance has ended
//	history ID       says "history" and what it is, as JSON
func runNodeProcess(encoded string) error {
	var config nodeProcessConfig
	if err := json.Unmarshal([]byte(encoded), &config); err != nil {
		return err
	}
	listen := ""
	for _, peer := range config.Peers {
		if peer.NodeID == config.NodeID {
			listen = peer.Address
		}
	}
	node, err := Start(context.Background(), Config{
		NodeID: config.NodeID, Dir: config.Dir, Peers: config.Peers, Listen: listen, Groups: testGroups,
		Definitions: append(definitionsWith(workOnDouble), journeyDefinitions(config.Effects, config.Hold)...),
		Logger:      slog.New(slog.DiscardHandler), CallTimeout: patience,
	})
	if err != nil {
		return err
	}
	defer node.Close()
	out := &lines{}
	out.say("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		command := strings.Fields(in.Text())
		switch command[0] {
		case "start":
			var n int
			fmt.Sscan(command[2], &n)
			go startMany(node, out, command[1], n)
		case "leader":
			out.say("leader " + node.Leader())
		case "report":
			err = out.sayJSON("report", replicaReport(node))
		default:
			err = obey(node, out, command)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// obey carries out a command that concerns one instance.
func obey(node *Node, out *lines, command []string) error {
	ctx, client, id := context.Background(), node.Client(), command[1]
	switch command[0] {
	case "journey":
		return second(StartRun(ctx, client, journey, id, ""))
	case "cancel":
		return client.Cancel(ctx, id, "as wanted")
	case "end":
		status, err := client.Wait(ctx, id)
		if err == nil {
			out.say("end " + string(status.State))
		}
		return err
	case "history":
		history, err := client.History(ctx, id)
		if err != nil {
			return err
		}
		var events []string
		for _, event := range history.Events {
			events = append(events, replay.Describe(event))
		}
		return out.sayJSON("history", events)
	}
	return fmt.Errorf("command %q is not known", command)
}

// workOnDouble takes a while, as work does, so that a node can be killed in the
// middle of it.
func workOnDouble(ctx context.Context, n int) (int, error) {
	select {
	case <-time.After(20 * time.Millisecond):
		return doubleBody(ctx, n)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// lines writes whole lines to the standard output.
type lines struct{ mu sync.Mutex }

func (l *lines) say(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Println(line)
}

func (l *lines) sayJSON(what string, value any) error {
	encoded, err := json.Marshal(value)
	if err == nil {
		l.say(what + " " + string(encoded))
	}
	return err
}

// callPatiently repeats a call that finds the cluster busy, as its user would.
func callPatiently(node *Node, id string, n int) (int, error) {
	for {
		got, err := Call(context.Background(), node.Client(), fifth, id, n, RequestID(id))
		var busy *BusyError
		if !errors.As(err, &busy) {
			return got, err
		}
		time.Sleep(busy.RetryAfter)
	}
}

func startMany(node *Node, out *lines, prefix string, n int) {
	for i := range n {
		go func() {
			id := fmt.Sprintf("%s-%d", prefix, i)
			got, err := callPatiently(node, id, i)
			if err != nil || got != 32*i {
				out.say(fmt.Sprintf("failed %s: %d, %v", id, got, err))
				return
			}
			out.say("done " + id)
		}()
	}
}

func replicaReport(node *Node) []report {
	var all []report
	for _, g := range node.groups {
		for instance := range g.journal.Instances() {
			r := report{ID: instance.Instance}
			hash, err := g.journal.Hash(instance.Instance)
			r.Hash = fmt.Sprintf("%x", hash)
			if err == nil {
				err = checkFifth(node, instance)
			}
			if err != nil {
				r.Problem = err.Error()
			}
			all = append(all, r)
		}
	}
	return all
}

// checkFifth checks that a history of fifth is gapless and complete, with one
// completion for each of its five activities.
func checkFifth(node *Node, instance *journalpb.Instance) error {
	completions := map[uint64]int{}
	last := uint64(0)
	for event, err := range node.of(instance.Instance).journal.Events(instance.Instance, 1, 1) {
		if err != nil {
			return err
		}
		if event.EventId != last+1 {
			return fmt.Errorf("event %d after %d", event.EventId, last)
		}
		last++
		switch event.Arm() {
		case journalpb.ArmActivityScheduled:
			completions[event.EventId] = 0
		case journalpb.ArmActivityCompleted:
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
	p.expect("ready")
	return p
}

// kill ends the process as kill -9 does, and waits until it is gone.
func (p *nodeProcess) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

func (p *nodeProcess) tell(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatalf("%s: %v", p.id, err)
	}
}

// expect returns the rest of the next line that begins so.
func (p *nodeProcess) expect(prefix string) string {
	p.t.Helper()
	ctx := testContext(p.t)
	for {
		select {
		case line, ok := <-p.out:
			if !ok {
				p.t.Fatalf("%s ended while it was to say %q", p.id, prefix)
			}
			if strings.HasPrefix(line, "failed") {
				p.t.Fatalf("%s: %s", p.id, line)
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return strings.TrimSpace(rest)
			}
		case <-ctx.Done():
			p.t.Fatalf("%s never said %q", p.id, prefix)
		}
	}
}

func (p *nodeProcess) leader() string {
	p.tell("leader")
	return p.expect("leader")
}

func (p *nodeProcess) report() []report {
	p.tell("report")
	var all []report
	if err := json.Unmarshal([]byte(p.expect("report")), &all); err != nil {
		p.t.Fatal(err)
	}
	return all
}

// history returns the history of an instance, each event described.
func (p *nodeProcess) history(id string) (events []string) {
	p.tell("history " + id)
	if err := json.Unmarshal([]byte(p.expect("history")), &events); err != nil {
		p.t.Fatal(err)
	}
	return events
}

func TestAThousandOrchestrationsFinishWhenTheLeaderIsKilled(t *testing.T) {
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
	caller.tell(fmt.Sprintf("start five %d", instances))
	done := 0
	for ; done < instances/10; done++ {
		caller.expect("done")
	}
	processes[leader].kill()
	if unfinished := countProblems(others[1].report()); unfinished == 0 {
		t.Fatal("the leader was killed too late to show anything")
	} else {
		t.Logf("killed %s with %d of %d unfinished", leader, unfinished, instances)
	}
	for ; done < instances; done++ {
		caller.expect("done")
	}

	want := expectReports(t, others, instances)
	back := startNodeProcess(t, configs[leader])
	eventually(t, "the killed node has caught up", func() bool { return len(back.report()) == instances && sameReports(back.report(), want) })
}

// expectReports waits until the nodes have applied the same and checks what
// they have. It returns the report.
func expectReports(t *testing.T, nodes []*nodeProcess, instances int) []report {
	t.Helper()
	var reports []report
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

func countProblems(reports []report) int {
	n := 0
	for _, r := range reports {
		if r.Problem != "" {
			n++
		}
	}
	return n
}

func sameReports(a, b []report) bool {
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
