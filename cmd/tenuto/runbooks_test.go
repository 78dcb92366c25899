package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
)

// These tests run the commands of runbooks.md to the letter. Addresses, and names of nodes where a
// step is done for each node, are replaced.

// A site is the machines of a cluster.
type site struct {
	t        *testing.T
	machines []*machine
	blocks   []string // the commands of the runbook, in order
}

// newSite prepares machines for a runbook: founders whose nodes found a cluster, and more, whose
// nodes join it.
func newSite(t *testing.T, title string, blocks, founders, more int) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("starts several processes")
	}
	installed(t, "sh")
	t.Parallel()
	s := &site{t: t, blocks: runbook(t, "runbooks.md", title)}
	if len(s.blocks) != blocks {
		t.Fatalf("%d blocks of commands; want %d", len(s.blocks), blocks)
	}
	var peers []cluster.Peer
	var names []string
	for i := range founders + more {
		m := &machine{t: t, dir: t.TempDir(), config: nodeConfig{
			NodeID: fmt.Sprint("n", i+1), Dir: "data", Listen: addresstest.Free(t), HTTP: addresstest.Free(t), ClusterID: "shop",
		}}
		names = append(names, fmt.Sprintf("10.0.0.%d:7000", i+1), m.config.Listen, fmt.Sprintf("10.0.0.%d:8080", i+1), m.config.HTTP)
		if i < founders {
			peers = append(peers, cluster.Peer{NodeID: m.config.NodeID, Address: m.config.Listen})
		}
		s.machines = append(s.machines, m)
	}
	for i, m := range s.machines {
		m.names = strings.NewReplacer(names...)
		if i >= founders {
			m.config.Join = []string{peers[0].Address}
		} else if founders > 1 {
			m.config.Peers = peers
		}
	}
	return s
}

// start starts the nodes of machines.
func (s *site) start(machines ...*machine) {
	s.t.Helper()
	for _, m := range machines {
		m.start()
	}
}

// runFor runs the commands that the runbook shows for n1 on a machine, for the node there.
func (m *machine) runFor(commands string) string {
	m.t.Helper()
	id := m.config.NodeID
	commands = strings.NewReplacer("10.0.0.1:", "10.0.0."+id[1:]+":", "node-n1.", "node-"+id+".", " n1; ", " "+id+"; ").Replace(commands)
	return m.run(commands)
}

// stop ends the process of the node gracefully.
func (m *machine) stop() {
	m.t.Helper()
	if err := m.process.Process.Signal(syscall.SIGTERM); err != nil {
		m.t.Fatal(err)
	}
	select {
	case <-m.ended:
		if state := m.process.ProcessState; !state.Success() {
			m.t.Fatalf("%s: %v\n%s", m.config.NodeID, state, m.log())
		}
	case <-time.After(time.Minute):
		m.t.Fatalf("%s does not stop:\n%s", m.config.NodeID, m.log())
	}
}

// expect checks that text contains others.
func expect(t *testing.T, text string, others ...string) {
	t.Helper()
	for _, other := range others {
		if !strings.Contains(text, other) {
			t.Errorf("%q is missing in\n%s", other, text)
		}
	}
}

// warningsMax is how many warnings a node may log in a healthy operation, mostly of a slow disk.
const warningsMax = 8

// checkLogs checks that the nodes have logged no errors and few warnings.
func (s *site) checkLogs() {
	s.t.Helper()
	for _, m := range s.machines {
		warnings := 0
		for line := range strings.Lines(m.log()) {
			switch {
			case strings.Contains(line, "disk write stalled"): // the disk of the machine that runs the test
			case strings.Contains(line, "level=WARN"):
				warnings++
				s.t.Logf("%s: %s", m.config.NodeID, line)
			case !strings.Contains(line, "level=INFO"): // also what libraries write to standard error
				s.t.Errorf("%s: %s", m.config.NodeID, line)
			}
		}
		if warnings > warningsMax {
			s.t.Errorf("%s: %d warnings; want %d at most", m.config.NodeID, warnings, warningsMax)
		}
	}
}

// approve approves orders, checks that they end, and returns their statuses.
func approve(t *testing.T, client *cluster.Client, ids []string) []*cluster.Status {
	t.Helper()
	ended := make([]*cluster.Status, len(ids))
	var approving errgroup.Group
	approving.SetLimit(16) // on a slow machine there are many orders
	for i, id := range ids {
		approving.Go(func() error {
			if err := cluster.Send(t.Context(), client, id, approval, "Ada"); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
			var text string
			status, err := client.Wait(t.Context(), id)
			if err == nil {
				err = status.Output(&text)
			}
			if err != nil || text != "tea approved by Ada" {
				return fmt.Errorf("%s: %q, %+v, %v", id, text, status, err)
			}
			ended[i] = status
			return nil
		})
	}
	if err := approving.Wait(); err != nil {
		t.Fatal(err)
	}
	return ended
}

// dialAll returns a client of all nodes of the cluster, once one serves calls.
func (s *site) dialAll() *cluster.Client {
	s.t.Helper()
	config := cluster.DialConfig{ClusterID: "shop"}
	for _, m := range s.machines {
		config.Addresses = append(config.Addresses, m.config.Listen)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for {
		client, err := cluster.Dial(ctx, config)
		if err == nil {
			s.t.Cleanup(func() { _ = client.Close() })
			return client
		}
		if ctx.Err() != nil {
			s.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// keepOrdering starts orders until stop is called, which returns their IDs. Each start must
// succeed.
func keepOrdering(t *testing.T, client *cluster.Client) (stop func() []string) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan []string, 1)
	go func() {
		var ids []string
		for i := 0; ctx.Err() == nil; i++ {
			id := fmt.Sprint("kept-", i)
			if _, err := cluster.StartRun(ctx, client, order, id, "tea"); err == nil {
				ids = append(ids, id)
			} else if ctx.Err() == nil {
				t.Errorf("%s: %v", id, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		ended <- ids
	}()
	return func() []string {
		cancel()
		return <-ended
	}
}

// copyFiles copies files from the directory of one machine to that of another.
func copyFiles(t *testing.T, from, to *machine, names ...string) {
	t.Helper()
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(from.dir, name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to.dir, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to.dir, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// startWithTLS follows the runbook "First cluster with TLS". It returns the machine of the
// operator, where certificates are made. No node runs there.
func (s *site) startWithTLS() (operator *machine) {
	s.t.Helper()
	blocks := runbook(s.t, "runbooks.md", "First cluster with TLS")
	if len(blocks) != 2 {
		s.t.Fatalf("%d blocks of commands", len(blocks))
	}
	operator = &machine{t: s.t, dir: s.t.TempDir(), config: nodeConfig{Certs: "certs"}, names: s.machines[0].names}
	operator.run(blocks[0])
	for _, m := range s.machines {
		path := "certs/node-" + m.config.NodeID
		copyFiles(s.t, operator, m, "certs/ca.crt", path+".crt", path+".key")
		m.config.Certs = "certs"
	}
	s.start(s.machines...)
	expect(s.t, operator.run(blocks[1]), "health     ok", "n1 ", "n2 ", "n3 ", "voters     3, alive: 3")
	return operator
}

func TestRunbook_FirstClusterWithTLS(t *testing.T) {
	s := newSite(t, "First cluster with TLS", 2, 3, 0)
	expect(t, s.startWithTLS().run("tenuto start later later-1 1000000"), "later-1")
	for _, m := range s.machines {
		expect(t, m.log(), `msg="node started" node=`+m.config.NodeID+" version=", " address="+m.config.Listen+" role=founder cluster=shop", " tls=true")
		m.stop()
		expect(t, m.log(), `msg="node stopped"`)
	}
	s.checkLogs()
}

func TestRunbook_RollingRestart(t *testing.T) {
	s := newSite(t, "Rolling restart", 2, 3, 0)
	s.start(s.machines...)
	client := s.dialAll()
	stop := keepOrdering(t, client)
	for _, m := range s.machines {
		m.runFor(s.blocks[0])
		m.stop()
		m.start()
		expect(t, m.runFor(s.blocks[1]), "ok: true")
		expect(t, m.log(), " address="+m.config.Listen+" role=voter cluster=shop")
	}
	approve(t, client, stop())
	s.checkLogs()
}

func TestRunbook_RotateCertificates(t *testing.T) {
	s := newSite(t, "Rotate certificates", 6, 3, 0)
	operator := s.startWithTLS()
	operator.run("cp -r certs before")
	operator.run(s.blocks[0])
	for _, m := range s.machines {
		path := "new/node-" + m.config.NodeID
		copyFiles(t, operator, m, "new/ca.crt", path+".crt", path+".key")
	}
	all := slices.Concat(s.machines, []*machine{operator})
	for _, m := range all {
		m.run(s.blocks[1])
	}
	for _, m := range s.machines {
		m.runFor(s.blocks[2])
	}
	operator.run(s.blocks[3])
	for _, m := range all {
		m.run(s.blocks[4])
	}
	expect(t, operator.run(s.blocks[5]), "health     ok")
	// New connections between all nodes, with the new certificates on both sides.
	for _, m := range s.machines {
		m.stop()
		m.start()
		operator.run("until tenuto health; do sleep 1; done")
		expect(t, m.log(), "new TLS keys in use")
	}
	if out, err := operator.try("tenuto health -ca certs/ca.crt -cert before/client-operator.crt -key before/client-operator.key"); err == nil {
		t.Errorf("the old certificate is accepted: %s", out)
	}
	// Later certificates are of the new authority.
	expect(t, operator.run("tenuto cert -cluster shop -clients second"), "client-second.crt")
	expect(t, operator.run("tenuto health -cert certs/client-second.crt -key certs/client-second.key"), "health     ok")
	s.checkLogs()
}

func TestRunbook_ReplaceNode(t *testing.T) {
	s := newSite(t, "Replace a node", 3, 3, 2)
	s.start(s.machines[:3]...)
	client := s.dialAll()
	awaitVoters(t, client, 3)
	stop := keepOrdering(t, client)
	s.machines[2].kill()
	operator := s.machines[0]
	operator.run(s.blocks[0])
	s.start(s.machines[3])
	members := operator.run(s.blocks[1])
	expect(t, members, "voters     3, alive: 3", "n4 ")
	if strings.Contains(members, "n3 ") {
		t.Errorf("n3 is still a member:\n%s", members)
	}
	s.start(s.machines[4])
	expect(t, operator.run(strings.ReplaceAll(s.blocks[1], "10.0.0.4", "10.0.0.5")), "voters     4, alive: 4", "n5 ")
	operator.run(s.blocks[2])
	expect(t, operator.run("until tenuto health; do sleep 1; done"), "voters     3, alive: 3")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.machines[1].log())
		}
	})
	await(t, "n2 knows that it was removed", func(context.Context) bool {
		return strings.Contains(s.machines[1].log(), "this node was removed from the cluster for good")
	})
	<-s.machines[1].ended
	approve(t, client, stop())
	s.machines[2].config.Listen, s.machines[2].config.HTTP = addresstest.Free(t), addresstest.Free(t)
	s.checkLogs()
}

func TestRunbook_GrowFromOneToThree(t *testing.T) {
	s := newSite(t, "Grow from one to three", 1, 1, 2)
	first := s.machines[0]
	listen := first.config.Listen
	first.config.Listen, first.config.Orders = "", 5
	first.start()
	await(t, "the first orders", func(context.Context) bool {
		_, err := first.try("tenuto health -url http://10.0.0.1:8080/readyz")
		return err == nil
	})
	first.stop()
	first.config.Listen = listen
	first.start()
	stop := keepOrdering(t, first.dial())
	s.start(s.machines[1:]...)
	expect(t, first.run(s.blocks[0]), "voters     3, alive: 3", "tolerates  1 more failures", "n3 ")
	ids := append(stop(), "order-0", "order-1", "order-2", "order-3", "order-4")
	first.stop()
	approve(t, s.machines[1].dial(), ids)
	s.checkLogs()
}

// An upgradedSite is a site whose machines have two builds of the application.
type upgradedSite struct {
	*site
	client       *cluster.Client
	older, newer uint32 // the newest protocols of the builds
}

// newUpgradedSite starts the old build on three machines. It speaks the newest protocol of this
// module, which the commands of the runbook need, and the new build one more.
func newUpgradedSite(t *testing.T) *upgradedSite {
	t.Helper()
	u := &upgradedSite{site: newSite(t, "Upgrade", 5, 3, 0)}
	for _, m := range u.machines {
		m.program = "./app"
		m.addBuild("app", 0)
	}
	u.start(u.machines...)
	u.client = u.dialAll()
	awaitVoters(t, u.client, 3)
	older, err := strconv.ParseUint(u.machines[0].startedProtocol(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	u.older, u.newer = uint32(older), uint32(older)+1
	for _, m := range u.machines {
		m.addBuild("app.new", u.newer)
	}
	return u
}

// replace runs commands on a machine that change which build is there, and restarts the node, which
// must become ready with a build of that protocol. The order is that of the runbook: commands for a
// running node first, or after it has stopped.
func (u *upgradedSite) replace(m *machine, running, stopped string, protocol uint32) {
	u.t.Helper()
	m.runFor(running)
	m.stop()
	m.runFor(stopped)
	m.start()
	expect(u.t, m.runFor(u.blocks[2]), "ok: true")
	if got := m.startedProtocol(); got != fmt.Sprint(protocol) {
		u.t.Fatalf("%s runs the build of protocol %s; want %d", m.config.NodeID, got, protocol)
	}
}

// startedProtocol returns the newest protocol of the build that has started last, as it logs it.
func (m *machine) startedProtocol() string {
	m.t.Helper()
	log := m.log()
	_, line, _ := strings.Cut(log[max(strings.LastIndex(log, `msg="node started"`), 0):], " protocol=")
	protocol, _, _ := strings.Cut(line, " ")
	return protocol
}

// expectUsed checks which protocol the cluster uses.
func (u *upgradedSite) expectUsed(protocol uint32) {
	u.t.Helper()
	if p, err := operate.GetProtocols(u.t.Context(), u.client); err != nil || p.Used != protocol {
		u.t.Fatalf("the cluster uses protocol %d, %v; want %d", p.Used, err, protocol)
	}
}

// expectNotFinalized waits until a new build leads, and checks that the upgrade cannot be finalized
// because of one node.
func (u *upgradedSite) expectNotFinalized(old *machine) {
	u.t.Helper()
	await(u.t, "the command names the old build, also while that leads", func(context.Context) bool {
		out, err := u.machines[0].try("tenuto cluster finalize -yes -reason 'too early'")
		return err != nil && strings.Contains(out, old.config.NodeID+" speaks protocols")
	})
	await(u.t, "the old build is named", func(ctx context.Context) bool {
		_, err := operate.Finalize(ctx, u.client, "too early")
		if err == nil { // the old build leads
			_, _ = u.machines[0].try("tenuto drain " + old.config.NodeID)
		}
		var rejected *cluster.VersionError
		return errors.As(err, &rejected) && rejected.Node == old.config.NodeID && rejected.Newest == u.older
	})
	u.expectUsed(u.older)
}

// expectRefused restarts a node with the old build, which must end with an error that names both
// protocols, and then with the new one again.
func (u *upgradedSite) expectRefused(m *machine) {
	u.t.Helper()
	m.stop()
	before := len(m.log())
	m.runFor(u.blocks[3])
	m.start()
	select {
	case <-m.ended:
	case <-time.After(time.Minute):
		u.t.Fatalf("%s takes part", m.config.NodeID)
	}
	expect(u.t, m.log()[before:], fmt.Sprintf("protocol mismatch: %s speaks protocols %d to %d, but %d is required", m.config.NodeID, u.older-1, u.older, u.newer))
	m.run("mv app.new app")
	m.start()
	expect(u.t, m.runFor(u.blocks[2]), "ok: true")
}

func TestRunbook_Upgrade(t *testing.T) {
	u := newUpgradedSite(t)
	stop := keepOrdering(t, u.client)
	operator := u.machines[0]
	operator.run(u.blocks[0])
	expect(t, operator.run("tenuto verify before.backup"), "is intact")
	for _, m := range u.machines {
		u.replace(m, u.blocks[1], "", u.newer)
		u.expectUsed(u.older)
	}
	returned := u.machines[1]
	u.replace(returned, "", u.blocks[3], u.older)
	u.expectNotFinalized(returned)
	u.replace(returned, u.blocks[1], "", u.newer)
	u.expectUsed(u.older)
	expect(t, operator.run(u.blocks[4]), fmt.Sprint("the cluster uses protocol ", u.newer))
	u.expectUsed(u.newer)
	ids := stop()
	u.checkLogs()
	u.expectRefused(u.machines[2])
	approve(t, u.client, ids)
}

// A small disk is filled by another program.
func TestRunbook_DiskFull(t *testing.T) {
	s := newSite(t, "Disk full", 2, 3, 0)
	full := s.machines[0]
	data := filepath.Join(full.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", data).Run(); err != nil {
		t.Skipf("SKIPPED: a small disk cannot be mounted, which needs root: %v", err)
	}
	s.start(s.machines...)
	t.Cleanup(func() {
		full.kill()
		if err := syscall.Unmount(data, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	client := s.dialAll()
	awaitVoters(t, client, 3)
	full.run("until tenuto transfer n1; do sleep 1; done")
	stop := keepOrdering(t, client)
	filler := filepath.Join(data, "other-program.log")
	fill(t, filler)
	await(t, "n1 says that its disk is full", func(context.Context) bool {
		out, _ := full.try(s.blocks[0])
		return strings.Contains(out, "the disk is full") && strings.Contains(out, "100% ")
	})
	await(t, "another node leads", func(ctx context.Context) bool {
		members, err := client.Members(ctx)
		return err == nil && !members[0].Leader
	})
	expect(t, full.log(), "no space left on device")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if full.hasEnded() {
		full.start()
	}
	expect(t, full.run(s.blocks[1]), "ok: true")
	approve(t, client, stop())
	awaitVoters(t, client, 3)
}

// fill writes a file until there is no room for another byte.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		if _, err := f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			chunk = chunk[:len(chunk)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A leader's synced writes take 300 ms.
func TestRunbook_SlowDisk(t *testing.T) {
	s := newSite(t, "Slow disk", 2, 3, 0)
	strace := installed(t, "strace")
	installed(t, "curl")
	s.start(s.machines...)
	client := s.dialAll()
	awaitVoters(t, client, 3)
	slow := s.machines[0]
	slow.run("until tenuto transfer n1; do sleep 1; done")
	tracer := exec.Command(strace, "-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(slow.process.Process.Pid),
		"-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_enter=300000")
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- tracer.Wait() }()
	t.Cleanup(func() {
		_ = tracer.Process.Signal(syscall.SIGINT)
		<-ended
	})
	startOrders(t, client, 5)
	var before float64
	await(t, "the metrics show slow writes", func(context.Context) bool {
		select {
		case err := <-ended:
			ended <- err
			t.Skipf("SKIPPED: strace cannot attach: %v", err)
		default:
		}
		out, err := slow.try(s.blocks[0])
		if err != nil {
			return false // no node leads at this moment
		}
		out, _, _ = strings.Cut(out, "NODE ")
		sum, count := metric(t, out, "tenuto_journal_log_write_duration_seconds_sum"), metric(t, out, "tenuto_journal_log_write_duration_seconds_count")
		grown := sum - before
		before = sum
		return count > 0 && grown > 0.3
	})
	expect(t, slow.log(), "disk write stalled")
	slow.run(s.blocks[1])
	await(t, "another node leads", func(ctx context.Context) bool {
		members, err := client.Members(ctx)
		return err == nil && !members[0].Leader && (members[1].Leader || members[2].Leader)
	})
}

// metric returns the value of a metric, the only one of that name in the text.
func metric(t *testing.T, text, name string) float64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) == 2 && strings.HasPrefix(line, name) {
			value, err := strconv.ParseFloat(words[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("no %s in\n%s", name, text)
	return 0
}

// The clock of a leader jumps by an hour, with a timer of three seconds open.
func TestRunbook_ClockWrong(t *testing.T) {
	s := newSite(t, "Clock wrong", 2, 3, 0)
	installed(t, "curl")
	s.start(s.machines...)
	client := s.dialAll()
	awaitVoters(t, client, 3)
	wrong := s.machines[0]
	wrong.run("until tenuto transfer n1; do sleep 1; done")
	begun := time.Now()
	if _, err := cluster.StartRun(t.Context(), client, later, "later", 3*time.Second); err != nil {
		t.Fatal(err)
	}
	offset := func(m *machine, commands string) float64 {
		t.Helper()
		return metric(t, m.runFor(commands), "tenuto_clock_offset_seconds")
	}
	clock := filepath.Join(wrong.dir, clockFile)
	if err := os.WriteFile(clock, []byte("1h"), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "one clock is an hour ahead", func(context.Context) bool { return math.Abs(offset(wrong, s.blocks[0])-3600) < 60 })
	for _, m := range s.machines[1:] {
		if by := offset(m, s.blocks[0]); math.Abs(by) > 60 {
			t.Errorf("%s: %v s", m.config.NodeID, by)
		}
	}
	status, err := client.Wait(t.Context(), "later")
	if took := time.Since(begun); err != nil || status.State != cluster.Completed || took < 2900*time.Millisecond {
		t.Errorf("a timer of 3 s after %v: %+v, %v", took, status, err)
	}
	if err := os.Remove(clock); err != nil {
		t.Fatal(err)
	}
	await(t, "the clock is right", func(context.Context) bool { return math.Abs(offset(wrong, s.blocks[1])) < 60 })
}
