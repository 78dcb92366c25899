package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/prometheus"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay"
)

// With asNode set, the test binary runs the node of a cluster.Config as JSON, until it is killed.
const asNode = "TENUTO_TEST_AS_NODE"

var (
	approval = replay.Event[string]("approval")
	order    = replay.Orchestration[string, string]("order")
	later    = replay.Orchestration[time.Duration, string]("later")
)

// A nodeConfig is the part of a cluster.Config that nodes of runbooks have.
type nodeConfig struct {
	NodeID, Dir, Listen string
	Peers               []cluster.Peer
	Join                []string
	ClusterID           string
	Certs               string // directory of the keys; "" for none
	HTTP                string // address of the health and metrics handlers; "" for none
	Orders              int    // how many orders the application starts by itself, once
	Backups             string // directory of a plan that makes a backup each second; "" for none
}

// buildProtocol is the variable with the newest protocol that the node speaks, if it is not that of
// this module; see machine.addBuild.
const buildProtocol = "TENUTO_TEST_BUILD_PROTOCOL"

// clockFile is the file in the directory of a machine whose text is the error of its wall clock.
const clockFile = "clock-error"

// wallClock returns the time of a machine.
func wallClock() time.Time {
	text, _ := os.ReadFile(clockFile) // usually there is none
	by, _ := time.ParseDuration(string(text))
	return time.Now().Add(by)
}

// runNode runs a node and never returns. It stops the node on SIGTERM.
func runNode(encoded string) {
	var c nodeConfig
	if err := json.Unmarshal([]byte(encoded), &c); err != nil {
		panic(err)
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	var keys cluster.KeySource
	if c.Certs != "" {
		keys = cluster.KeyFiles(filepath.Join(c.Certs, "node-"+c.NodeID+".crt"), filepath.Join(c.Certs, "node-"+c.NodeID+".key"), filepath.Join(c.Certs, "ca.crt"))
	}
	protocol, _ := strconv.ParseUint(os.Getenv(buildProtocol), 10, 32) // usually there is none
	ctx := harness.NewContext(context.Background(), harness.Overrides{WallClock: wallClock, Protocol: uint32(protocol)})
	config := cluster.Config{
		NodeID: c.NodeID, Dir: c.Dir, Listen: c.Listen, Peers: c.Peers, Join: c.Join, ClusterID: c.ClusterID, TLS: keys,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Definitions: []replay.Definition{
			order.Bind(func(ctx *replay.Context, name string) (string, error) {
				by, err := approval.Wait(ctx)
				return name + " approved by " + by, err
			}),
			later.Bind(func(ctx *replay.Context, d time.Duration) (string, error) { return "done", ctx.Sleep(d) }),
		},
	}
	if c.Backups != "" {
		config.Backups = backup.Plan{To: backup.Directory(c.Backups), Every: time.Second, Points: true}
	}
	node, err := cluster.Start(ctx, config)
	if err != nil {
		panic(err)
	}
	if c.HTTP != "" {
		mux := http.NewServeMux()
		mux.Handle("/", node.HealthHandler())
		mux.Handle("GET /metrics", prometheus.Handler(node))
		go func() { panic(http.ListenAndServe(c.HTTP, mux)) }()
	}
	for i := range c.Orders {
		if _, err := cluster.StartRun(ctx, node.Client(), order, fmt.Sprint("order-", i), "tea", cluster.Attach()); err != nil {
			panic(err)
		}
	}
	select {
	case <-node.Failed():
		os.Exit(1)
	case <-terminated:
	}
	if err := node.Stop(ctx); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// A machine is where a node of the application runs. Its directory is "data" in dir.
type machine struct {
	t       *testing.T
	dir     string
	config  nodeConfig
	program string // of the node; "": this one
	process *exec.Cmd
	ended   <-chan struct{}   // closed when the process has ended
	names   *strings.Replacer // of the addresses in runbooks; nil: 10.0.0.1:7000 is this machine
}

// newMachines prepares machines whose nodes found a cluster.
func newMachines(t *testing.T, count int) []*machine {
	var all []*machine
	var peers []cluster.Peer
	for i := range count {
		m := &machine{t: t, dir: t.TempDir(), config: nodeConfig{NodeID: fmt.Sprint("n", i+1), Dir: "data", Listen: addresstest.Free(t)}}
		peers = append(peers, cluster.Peer{NodeID: m.config.NodeID, Address: m.config.Listen})
		all = append(all, m)
	}
	for _, m := range all {
		m.config.Peers = peers
	}
	return all
}

// addBuild writes a program in the directory of the machine whose nodes speak protocols up to that
// one; 0: up to the newest of this module.
func (m *machine) addBuild(name string, protocol uint32) {
	m.t.Helper()
	executable, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexport %s=%d\nexec '%s'\n", buildProtocol, protocol, executable)
	syscall.ForkLock.RLock() // a process that another test starts must not inherit the open file
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(script), 0o700); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) start() {
	m.t.Helper()
	encoded, err := json.Marshal(m.config)
	if err != nil {
		m.t.Fatal(err)
	}
	m.process = exec.Command(cmp.Or(m.program, os.Args[0]))
	m.process.Dir, m.process.Env = m.dir, append(os.Environ(), asNode+"="+string(encoded))
	log, err := os.OpenFile(filepath.Join(m.dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	m.process.Stderr = log
	if err := m.process.Start(); err != nil {
		m.t.Fatal(err)
	}
	process, ended := m.process, make(chan struct{})
	m.ended = ended
	go func() {
		_ = process.Wait()
		close(ended)
	}()
	m.t.Cleanup(func() {
		_ = process.Process.Kill()
		<-ended
	})
}

// logFile is the file in the directory of a machine with all that its nodes have logged.
const logFile = "log"

// log returns what the nodes of the machine have logged.
func (m *machine) log() string {
	m.t.Helper()
	content, err := os.ReadFile(filepath.Join(m.dir, logFile))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(content)
}

// hasEnded reports whether the process has ended.
func (m *machine) hasEnded() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

// kill ends the node as a crash does.
func (m *machine) kill() {
	_ = m.process.Process.Kill()
	<-m.ended
}

// run runs the commands of a runbook on the machine, with its address for the one in the text.
func (m *machine) run(commands string) string {
	m.t.Helper()
	out, err := m.try(commands)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	return out
}

// try is run for commands that may fail. They have three minutes.
func (m *machine) try(commands string) (out string, err error) {
	m.t.Helper()
	bin := m.t.TempDir()
	self, err := filepath.Abs(os.Args[0])
	if err == nil {
		err = os.Symlink(self, filepath.Join(bin, "tenuto"))
	}
	if err != nil {
		m.t.Fatal(err)
	}
	if m.names != nil {
		commands = m.names.Replace(commands)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), 3*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-e", "-c", strings.ReplaceAll(commands, "10.0.0.1:7000", m.config.Listen))
	shell.Dir = m.dir
	shell.Env = append(os.Environ(), asCommand+"=1", "XDG_CONFIG_HOME="+filepath.Join(m.dir, "config"), "PATH="+bin+":"+os.Getenv("PATH"))
	if m.config.Certs == "" { // otherwise the profile has these
		shell.Env = append(shell.Env, addressVariable+"="+m.config.Listen, variable("cluster")+"="+m.config.ClusterID)
	}
	output, err := shell.CombinedOutput()
	return string(output), err
}

// runbook returns the blocks of commands in a section of a guide.
func runbook(t *testing.T, guide, title string) (blocks []string) {
	t.Helper()
	content, err := os.ReadFile("../../cluster/docs/" + guide)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(content), "\n## "+title+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", guide, title)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, block := range shellBlock.FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, block[1])
	}
	return blocks
}

// dial connects to a machine's node, once it serves calls.
func (m *machine) dial() *cluster.Client {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	for {
		client, err := cluster.Dial(ctx, cluster.DialConfig{Addresses: []string{m.config.Listen}, ClusterID: m.config.ClusterID})
		if err == nil {
			m.t.Cleanup(func() { _ = client.Close() })
			return client
		}
		if ctx.Err() != nil {
			m.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitVoters waits until the cluster has that many voters that all answer. A new cluster then also
// uses the newest protocol: its leader serves without waiting long for the other founders.
func awaitVoters(t *testing.T, client *cluster.Client, count int) {
	t.Helper()
	await(t, fmt.Sprint(count, " voters"), func(ctx context.Context) bool {
		voters := 0
		members, err := client.Members(ctx)
		for _, m := range members {
			if m.Voter && m.Liveness == cluster.MemberAlive {
				voters++
			}
		}
		if err != nil || voters != count || len(members) != count {
			return false
		}
		protocols, err := operate.GetProtocols(ctx, client)
		return err == nil && protocols.Used > 1
	})
}

func await(t *testing.T, what string, holds func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("timeout: ", what)
		}
	}
}

// An orderLoad places orders one after the other until it is stopped, and knows which were
// acknowledged.
type orderLoad struct {
	stop context.CancelFunc
	done chan struct{}

	mu           sync.Mutex
	acknowledged []string
}

// startLoad begins to place orders at any of the machines.
func startLoad(t *testing.T, machines []*machine) *orderLoad {
	t.Helper()
	var addresses []string
	for _, m := range machines {
		addresses = append(addresses, m.config.Listen)
	}
	client, err := cluster.Dial(t.Context(), cluster.DialConfig{Addresses: addresses, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	l := &orderLoad{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		defer client.Close()
		for i := 0; ctx.Err() == nil; i++ {
			id := fmt.Sprint("load-", i)
			if _, err := cluster.StartRun(ctx, client, order, id, "tea"); err == nil {
				l.mu.Lock()
				l.acknowledged = append(l.acknowledged, id)
				l.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() { l.end() })
	return l
}

func (l *orderLoad) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acknowledged)
}

// end stops the load and returns the orders that were acknowledged.
func (l *orderLoad) end() []string {
	l.stop()
	<-l.done
	return l.acknowledged
}

// lose ends a machine's node, and keeps its directory as "found".
func (m *machine) lose() {
	m.t.Helper()
	m.kill()
	if err := os.Rename(filepath.Join(m.dir, "data"), filepath.Join(m.dir, "found")); err != nil {
		m.t.Fatal(err)
	}
}

// The runbook for a lost majority, to the letter: two of three machines are lost while orders
// arrive.
func TestRunbook_MajorityIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("starts seven processes")
	}
	blocks := runbook(t, "operating.md", "A majority is lost")
	if len(blocks) != 3 {
		t.Fatalf("%d blocks of commands", len(blocks))
	}
	machines := newMachines(t, 3)
	for _, m := range machines {
		m.start()
	}
	client := machines[0].dial()
	awaitVoters(t, client, 3)
	if _, err := cluster.StartRun(t.Context(), client, later, "later", 3*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := schedule.Create(t.Context(), client, "reminders", schedule.Spec{Every: time.Second}, later, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	load := startLoad(t, machines)
	await(t, "orders arrive", func(context.Context) bool { return load.count() >= 30 })
	survivor := machines[0]
	machines[1].lose()
	// From now on the first machine acknowledges everything, so it has all that was acknowledged
	// before.
	before := load.count()
	await(t, "orders arrive after the loss of one machine", func(context.Context) bool { return load.count() >= before+10 })
	machines[2].lose()
	started := load.end()
	survivor.kill() // stopped: it cannot work anyway

	if report := survivor.run(blocks[0]); !strings.Contains(report, "may be lost: from entry ") || !strings.Contains(report, "members n1, n2, n3") {
		t.Errorf("the report says %s", report)
	}
	checkRecoverAsks(t, survivor)
	expect(t, survivor.run(blocks[1]), "data.recovered is recovered as lineage ", "; start n1 with it, ")
	survivor.start()
	client = survivor.dial()
	checkOrders(t, client, started)
	if status, err := client.Wait(t.Context(), "later"); err != nil || status.State != cluster.Completed {
		t.Errorf("the timer: %+v, %v", status, err)
	}
	checkScheduleGoesOn(t, client)
	checkOldNodesAreRefused(t, machines[1:], client)
	if text := survivor.run("tenuto health"); !strings.Contains(text, "recovered from n1") {
		t.Errorf("tenuto health says %s", text)
	}
	for _, m := range machines[1:] {
		m.config.Peers, m.config.Join = nil, []string{survivor.config.Listen}
		m.start()
	}
	awaitVoters(t, client, 3)
	if text := survivor.run("tenuto get load-0"); !strings.Contains(text, "cluster-recovered") {
		t.Errorf("tenuto get says %s", text)
	}
}

// checkRecoverAsks checks the question before a directory is made from that of the machine. Without
// a terminal, or with another answer than y, nothing changes.
func checkRecoverAsks(t *testing.T, m *machine) {
	t.Helper()
	data, made := filepath.Join(m.dir, "data"), filepath.Join(m.dir, "asked")
	answer := func(text string, terminal bool, line ...string) outcome {
		var out, stderr bytes.Buffer
		s := streams{in: strings.NewReader(text), out: &out, err: &stderr, env: func(string) string { return "" }, interactive: terminal, written: new(*output.Documents)}
		return outcome{run(t.Context(), line, s), out.String(), stderr.String()}
	}
	before, files := answer("", false, "recover", data), namesIn(t, m.dir)
	for _, c := range []struct {
		text     string
		terminal bool
		status   int
		want     []string
	}{
		{"y\n", false, statusUsage, []string{"recover with -to needs -yes"}},
		{"n\n", true, statusRejected, []string{"recover cluster tenuto? [y/N]", "nothing was done"}},
		{"\n", true, statusRejected, []string{"recover cluster tenuto? [y/N]", "nothing was done"}},
	} {
		answer(c.text, c.terminal, "recover", data, "-to", made).expect(t, c.status, c.want...)
		if after := namesIn(t, m.dir); !slices.Equal(after, files) {
			t.Errorf("after %q there are %q, and were %q", c.text, after, files)
		}
		if after := answer("", false, "recover", data); after != before {
			t.Errorf("after %q the directory has\n%s\nand had\n%s", c.text, after.out, before.out)
		}
	}
	answer("y\n", true, "recover", data, "-to", made).expect(t, statusOK, "recover cluster tenuto? [y/N]", made+" is recovered as lineage ")
	answer("", false, "recover", made).expect(t, statusOK, "partition 0, members n1\n")
}

// namesIn returns the names of what is in a directory.
func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Two of five machines are left. The one with the latest entries is not the one of the new cluster,
// which had joined the old one.
func TestRunbook_MajorityIsLost_SeveralAreLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six processes")
	}
	blocks := runbook(t, "operating.md", "A majority is lost")
	machines := newMachines(t, 5)
	for _, m := range machines {
		m.start()
	}
	awaitVoters(t, machines[0].dial(), 5)
	load := startLoad(t, machines)
	await(t, "orders arrive", func(context.Context) bool { return load.count() >= 30 })
	first, second := machines[0], machines[1]
	first.kill()
	machines[2].lose()
	// From now on the second machine acknowledges everything.
	before := load.count()
	await(t, "orders arrive without two machines", func(context.Context) bool { return load.count() >= before+10 })
	machines[3].lose()
	machines[4].lose()
	started := load.end()
	second.kill()

	if err := os.CopyFS(filepath.Join(first.dir, "data.n2"), os.DirFS(filepath.Join(second.dir, "data"))); err != nil {
		t.Fatal(err)
	}
	report := first.run(blocks[2])
	expect(t, report, "data of node n1 ends at entry ", "; start n1 with it, ")
	if line := lineWith(report, "data.n2 of node n2 ends at entry "); !strings.HasSuffix(line, ", the best") {
		t.Errorf("the report says %s", report)
	}
	_, moves, _ := strings.Cut(blocks[1], "\n")
	first.run(moves)
	first.config.Peers, first.config.Join = nil, []string{machines[3].config.Listen}
	first.start()
	client := first.dial()
	checkOrders(t, client, started)
	awaitVoters(t, client, 1)
}

// lineWith returns the first line that contains the text.
func lineWith(lines, text string) string {
	for line := range strings.Lines(lines) {
		if strings.Contains(line, text) {
			return strings.TrimSuffix(line, "\n")
		}
	}
	return ""
}

func startOrders(t *testing.T, client *cluster.Client, count int) (ids []string) {
	t.Helper()
	for i := range count {
		ids = append(ids, startOrder(t, client, fmt.Sprint("order-", i)))
	}
	return ids
}

func startOrder(t *testing.T, client *cluster.Client, id string) string {
	t.Helper()
	if _, err := cluster.StartRun(t.Context(), client, order, id, "tea"); err != nil {
		t.Fatal(err)
	}
	return id
}

// checkOrders checks that orders of the cluster before are there, and approves them.
func checkOrders(t *testing.T, client *cluster.Client, ids []string) {
	t.Helper()
	for _, status := range approve(t, client, ids) {
		if status.Continued == "" {
			t.Fatalf("%+v", status)
		}
	}
}

// checkScheduleGoesOn checks that a schedule starts runs that complete.
func checkScheduleGoesOn(t *testing.T, client *cluster.Client) {
	t.Helper()
	began := time.Now()
	await(t, "the schedule goes on", func(ctx context.Context) bool {
		d, err := schedule.Describe(ctx, client, "reminders")
		if err != nil {
			return false
		}
		for _, start := range d.Recent {
			status, err := client.Get(ctx, start.InstanceID)
			if err == nil && start.StartedAt.After(began) && status.State == cluster.Completed && status.Continued == "" {
				return true
			}
		}
		return false
	})
}

// checkOldNodesAreRefused starts nodes with the directories that they had before the recovery,
// which have a majority of the old cluster. They must end by themselves, and not become members.
func checkOldNodesAreRefused(t *testing.T, old []*machine, client *cluster.Client) {
	t.Helper()
	ended := make(chan *machine, len(old))
	for _, m := range old {
		returned := *m
		returned.config.Dir = "found"
		returned.start()
		go func() {
			<-returned.ended
			ended <- &returned
		}()
	}
	for range old {
		select {
		case m := <-ended:
			if text := m.log(); !strings.Contains(text, "continued as another lineage") {
				t.Errorf("the old node %s says %s", m.config.NodeID, text)
			}
		case <-time.After(time.Minute):
			t.Fatal("timeout: the old nodes have ended")
		}
	}
	for i := range 20 {
		if _, err := cluster.StartRun(t.Context(), client, order, fmt.Sprint("new-", i), "milk"); err != nil {
			t.Fatal(err)
		}
	}
	if members, err := client.Members(t.Context()); err != nil || len(members) != 1 {
		t.Errorf("members %+v, %v", members, err)
	}
}

// The runbook for a lost cluster, to the letter. The first node keeps its Config.Peers.
func TestRunbook_ClusterIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	blocks := runbook(t, "operating.md", "The cluster is lost")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of commands", len(blocks))
	}
	backups, restore, ok := strings.Cut(blocks[0], "tenuto restore")
	if !ok {
		t.Fatal("no restore")
	}
	machines := newMachines(t, 3)
	for _, m := range machines {
		m.start()
	}
	first := machines[0]
	client := first.dial()
	awaitVoters(t, client, 3)
	started := startOrders(t, client, 10)
	first.run(backups)
	for _, m := range machines {
		m.lose()
	}
	expect(t, first.run("tenuto restore"+restore), "data is restored to ", "; start n1 with it, ")
	first.start()
	client = first.dial()
	checkOrders(t, client, started)
	for _, m := range machines[1:] {
		m.config.Peers, m.config.Join = nil, []string{first.config.Listen}
		m.start()
	}
	awaitVoters(t, client, 3)
}

// awaitBackup waits until the plan of the machine has made a backup with all that is recorded by
// now, and returns how -list shows it.
func (m *machine) awaitBackup(list string) (last listedBackup) {
	m.t.Helper()
	since := time.Now()
	await(m.t, "a backup of the plan", func(context.Context) bool {
		out, err := m.try(strings.TrimSpace(list) + " -json")
		if err != nil {
			return false // there is no backup yet
		}
		for line := range strings.Lines(out) {
			if err := json.Unmarshal([]byte(line), &last); err != nil {
				m.t.Fatal(err)
			}
		}
		return last.Time.After(since)
	})
	return last
}

// A node is restored from the directory of a plan to a time between two backups, and to an entry.
func TestRunbook_ClusterIsLost_PlanWithPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	list, restore, ok := strings.Cut(runbook(t, "operating.md", "The cluster is lost")[1], "\n")
	if !ok {
		t.Fatal("no restore")
	}
	m := newMachines(t, 1)[0]
	m.config.Backups = "backups"
	m.start()
	client := m.dial()
	early := startOrders(t, client, 5)
	entry := m.awaitBackup(list).Entry
	startOrder(t, client, "at-that-time")
	at := time.Now()
	startOrder(t, client, "later")
	m.awaitBackup(list)
	m.destroy()
	expect(t, m.run(list), "TIME", " any ")
	m.run(strings.ReplaceAll(restore, "-at 2026-11-24T08:00:00Z", "-at "+at.UTC().Format(time.RFC3339Nano)))
	m.checkRestored(append(early, "at-that-time"), "later")
	m.destroy()
	expect(t, m.run(strings.ReplaceAll(restore, "-at 2026-11-24T08:00:00Z", fmt.Sprint("-index ", entry))), fmt.Sprintf("entry %d,", entry))
	m.checkRestored(early, "at-that-time", "later")
}

// destroy ends a machine's node and deletes its directory.
func (m *machine) destroy() {
	m.t.Helper()
	m.kill()
	if err := os.RemoveAll(filepath.Join(m.dir, "data")); err != nil {
		m.t.Fatal(err)
	}
}

// checkRestored starts the node and checks that it has some orders, and lacks others.
func (m *machine) checkRestored(has []string, lacks ...string) {
	m.t.Helper()
	m.config.Backups = "" // the directory is still needed as it is
	m.start()
	client := m.dial()
	checkOrders(m.t, client, has)
	for _, id := range lacks {
		if _, err := client.Get(m.t.Context(), id); !errors.Is(err, cluster.ErrNotFound) {
			m.t.Errorf("%s: %v", id, err)
		}
	}
}
