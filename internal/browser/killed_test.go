package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
)

// nodeEnv makes a process of the test binary a node, which the variable configures.
const nodeEnv = "TENUTO_BROWSER_NODE"

type nodeConfig struct {
	Peer  cluster.Peer
	Peers []cluster.Peer
	Dir   string
}

// runNode runs a node and serves its dashboard until the standard input ends. It writes the URL of
// the dashboard when the node runs.
func runNode(encoded string) error {
	var config nodeConfig
	if err := json.Unmarshal([]byte(encoded), &config); err != nil {
		return err
	}
	node, err := cluster.Start(context.Background(), cluster.Config{
		NodeID: config.Peer.NodeID, Listen: config.Peer.Address, Peers: config.Peers, Dir: config.Dir,
		Definitions: new(lab).definitions(config.Peer.NodeID, nil), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer node.Close()
	server := serve(node.Client(), slog.New(slog.DiscardHandler))
	defer server.Close()
	defer server.CloseClientConnections() // before: streams do not end by themselves
	fmt.Println(server.URL + prefix)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// A nodeProcess is a node in a process of its own.
type nodeProcess struct {
	id      string
	url     string // of its dashboard
	command *exec.Cmd
	out     *bufio.Reader
}

// startProcess starts a node; awaitURL returns when it runs.
func startProcess(t *testing.T, config nodeConfig) *nodeProcess {
	t.Helper()
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &nodeProcess{id: config.Peer.NodeID, command: exec.Command(os.Args[0])}
	p.command.Env = append(os.Environ(), nodeEnv+"="+string(encoded))
	p.command.Stderr = os.Stderr
	if _, err := p.command.StdinPipe(); err != nil { // ends with this process
		t.Fatal(err)
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

func (p *nodeProcess) awaitURL(t *testing.T) {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%s has not started: %v", p.id, err)
	}
	p.url = strings.TrimSpace(line)
}

// kill ends the process with SIGKILL and waits until it is gone.
func (p *nodeProcess) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

func (p *nodeProcess) wasKilled() bool {
	status, ok := p.command.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signal() == syscall.SIGKILL
}

// startProcesses starts a cluster of three processes.
func startProcesses(t *testing.T) (*cluster.Client, map[string]*nodeProcess) {
	t.Helper()
	peers, err := freePeers(3)
	if err != nil {
		t.Fatal(err)
	}
	nodes, addresses := map[string]*nodeProcess{}, []string{}
	for _, peer := range peers {
		nodes[peer.NodeID] = startProcess(t, nodeConfig{peer, peers, t.TempDir()})
		addresses = append(addresses, peer.Address)
	}
	for _, node := range nodes {
		node.awaitURL(t)
	}
	client, err := cluster.Dial(t.Context(), cluster.DialConfig{Addresses: addresses})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client, nodes
}

// TestLeader_KilledWhilePagesAreOpen kills the process of the leader. The pages that another node
// serves show the new leader and go on to show changes, without being loaded again.
func TestLeader_KilledWhilePagesAreOpen(t *testing.T) {
	if shared.browser == nil {
		t.Skip(`run with "make browser"`)
	}
	client, nodes := startProcesses(t)
	l := &lab{client: client}
	about := &user{tab: openTabOf(t, l), id: "survivor-1"}
	startOwn(about, waiter, "order", waitingEvents)
	killed := about.leader()
	survivors := survivorsOf(nodes, killed)
	l.url = survivors[0].url
	about.show("cluster")
	about.badge(cardOf(killed), "alive")
	instance := &user{tab: openTabOf(t, l), id: about.id}
	instance.show("instances/" + about.id + "?tab=history")
	instance.badge("main", "running")

	for _, page := range []*user{about, instance} {
		page.expect("responded with a status of 503") // to a request during the election
	}
	nodes[killed].kill()
	if !nodes[killed].wasKilled() {
		t.Fatalf("the leader has ended: %v", nodes[killed].command.ProcessState)
	}
	about.until("a new leader", func(ctx context.Context) (bool, error) {
		members, err := client.Members(ctx)
		for _, m := range members {
			if m.Leader && m.NodeID != killed {
				return true, nil
			}
		}
		return false, err
	})
	leader := about.leader()
	about.showsLeader(leader)
	about.await("no answer of "+killed, fmt.Sprintf(`document.querySelector(%q).textContent.includes('no answer')`, cardOf(killed)+" .badge"))
	about.check(cluster.Send(about.context(), client, about.id, goAhead, "after the leader"))
	instance.becomes(cluster.Completed)

	for _, survivor := range survivors {
		if survivor.id != leader { // a change after the new leader is known
			_, err := operate.TransferLeadership(about.context(), client, leader, survivor.id)
			about.check(err)
			about.showsLeader(survivor.id)
		}
	}
	for _, page := range []*user{about, instance} {
		page.shows(".connection", "Live")
		page.kept()
	}
}

func survivorsOf(nodes map[string]*nodeProcess, killed string) (survivors []*nodeProcess) {
	for id, node := range nodes {
		if id != killed {
			survivors = append(survivors, node)
		}
	}
	return survivors
}
