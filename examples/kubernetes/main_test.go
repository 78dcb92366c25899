package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/internal/dnstest"
)

// argumentsEnv holds the arguments with which a process of the test binary is the command.
const argumentsEnv = "TENUTO_EXAMPLE_KUBERNETES"

// The pods in these tests are processes of the test binary.
func TestMain(m *testing.M) {
	if arguments := os.Getenv(argumentsEnv); arguments != "" {
		set := flag.NewFlagSet("kubernetes", flag.ExitOnError)
		o := flags(set)
		_ = set.Parse(strings.Split(arguments, "\n"))
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := run(ctx, *o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const waitMax = 2 * time.Minute

// deployments counts the deployments of this process, which have networks of their own.
var deployments atomic.Int64

// A deployment is a set of pods: processes with addresses of their own on loopback, all with the
// same port, and a DNS server with the records of a headless Service.
type deployment struct {
	t       *testing.T
	dns     *dnstest.Server
	port    string
	network string // the first three bytes of all addresses
	dirs    []string
	hosts   []string // by pod; "" for one that the StatefulSet does not have now
	pods    []*exec.Cmd
	next    int // number of the next host
	orders  []string
	secret  *secret // nil: without TLS
}

func newDeployment(t *testing.T, nodes int) *deployment {
	if testing.Short() {
		t.Skip("slow: it runs several processes")
	}
	listener, err := net.Listen("tcp", "127.8.0.1:0")
	if err != nil {
		t.Skipf("the addresses 127.x.x.x cannot be used here: %v", err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	d := &deployment{
		t: t, dns: dnstest.Start(t), port: port, network: fmt.Sprintf("127.%d.%d", 8+deployments.Add(1)%200, os.Getpid()%250),
		pods: make([]*exec.Cmd, nodes), hosts: make([]string, nodes),
	}
	for i := range nodes {
		d.dirs = append(d.dirs, filepath.Join(t.TempDir(), fmt.Sprint("tenuto-", i)))
		d.move(i)
	}
	t.Cleanup(func() {
		for i := range d.pods {
			d.end(i, syscall.SIGKILL)
		}
	})
	return d
}

// move gives a pod an address that no pod had before, in the DNS at once.
func (d *deployment) move(i int) {
	d.next++
	d.hosts[i] = fmt.Sprintf("%s.%d", d.network, d.next)
	d.publish()
}

func (d *deployment) publish() {
	d.dns.Set(slices.DeleteFunc(slices.Clone(d.hosts), func(host string) bool { return host == "" })...)
}

func (d *deployment) at(i int) string { return net.JoinHostPort(d.hosts[i], d.port) }

// zone returns the value of -zone of a pod. The machine of every other pod has no zone.
func (d *deployment) zone(i int) string {
	if i%2 == 1 {
		return ""
	}
	return fmt.Sprint("zone-", i)
}

func (d *deployment) start(i int) {
	d.t.Helper()
	arguments := []string{"-id", fmt.Sprint("tenuto-", i), "-zone=" + d.zone(i), "-dir", d.dirs[i], "-listen", d.at(i), "-advertise", d.at(i),
		"-port", d.port, "-resolver", d.dns.Address(), "-probes", d.hosts[i] + ":0", "-replace-after", "5s"}
	if d.secret != nil {
		arguments = append(arguments, d.secret.arguments(fmt.Sprint("tenuto-", i))...)
	}
	d.pods[i] = d.run(arguments...)
}

func (d *deployment) run(arguments ...string) *exec.Cmd {
	d.t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), argumentsEnv+"="+strings.Join(arguments, "\n"))
	if testing.Verbose() {
		command.Stderr = os.Stderr
	}
	if err := command.Start(); err != nil {
		d.t.Fatal(err)
	}
	return command
}

// end ends a pod with a signal.
func (d *deployment) end(i int, how syscall.Signal) {
	if d.pods[i] == nil {
		return
	}
	_ = d.pods[i].Process.Signal(how)
	if err := d.pods[i].Wait(); err != nil && how == syscall.SIGTERM {
		d.t.Errorf("tenuto-%d after SIGTERM: %v", i, err)
	}
	d.pods[i] = nil
}

func (d *deployment) dial() *cluster.Client {
	d.t.Helper()
	o := options{service: "tenuto.", resolver: d.dns.Address()}
	if d.secret != nil {
		o.cert, o.key, o.authorities = d.secret.file("worker.crt"), d.secret.file("worker.key"), d.secret.file("ca.crt")
	}
	_, _ = fmt.Sscan(d.port, &o.port)
	ctx, cancel := context.WithTimeout(d.t.Context(), waitMax)
	defer cancel()
	config := o.dialConfig()
	config.CallTimeout = waitMax
	config.Definitions = nil // not a worker
	client, err := cluster.Dial(ctx, config)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = client.Close() })
	return client
}

// awaitMembers waits until all pods have a vote, with their present addresses and zones, and
// answer. It returns the identities of their directories.
func (d *deployment) awaitMembers(client *cluster.Client) (identities []string) {
	d.t.Helper()
	var last string
	eventually(d.t, func() string { return "all pods vote, at their addresses; last: " + last }, func() bool {
		members, err := client.Members(d.t.Context())
		last, identities = fmt.Sprintf("%+v, %v", members, err), nil
		for i, m := range members {
			if i >= len(d.hosts) || m.Address != d.at(i) || m.Zone != d.zone(i) || !m.Voter || m.Liveness != cluster.MemberAlive {
				return false
			}
			identities = append(identities, m.Identity)
		}
		return len(members) == len(d.hosts)
	})
	return identities
}

// order starts an order, and remembers that it was accepted.
func (d *deployment) order(client *cluster.Client) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), waitMax)
	defer cancel()
	id := fmt.Sprint("order-", len(d.orders))
	if _, err := cluster.StartRun(ctx, client, Fulfill, id, Order{id, "book"}, cluster.Attach()); err != nil {
		d.t.Fatal(err)
	}
	d.orders = append(d.orders, id)
}

// resultPattern matches the result of an order: the order, and the pods that ran its activities.
var resultPattern = regexp.MustCompile(`^book for (\S+), reserved by (\S+), shipped by (\S+)$`)

// await waits for the end of an accepted order, and returns the pods that ran its activities.
func (d *deployment) await(client *cluster.Client, id string) (reserved, shipped string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), waitMax)
	defer cancel()
	got, err := cluster.Call(ctx, client, Fulfill, id, Order{id, "book"}, cluster.Attach())
	parts := resultPattern.FindStringSubmatch(got)
	if err != nil || parts == nil || parts[1] != id {
		d.t.Fatalf("%s: %q, %v", id, got, err)
	}
	return parts[2], parts[3]
}

// checkOrders waits for all accepted orders. Nodes have run their activities: there are no workers.
func (d *deployment) checkOrders(client *cluster.Client) {
	d.t.Helper()
	for _, id := range d.orders {
		if reserved, shipped := d.await(client, id); !strings.HasPrefix(reserved, "tenuto-") || !strings.HasPrefix(shipped, "tenuto-") {
			d.t.Errorf("%s was reserved by %s and shipped by %s", id, reserved, shipped)
		}
	}
}

func eventually(t *testing.T, what func() string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitMax); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what())
		}
	}
}

// Pods found a cluster by the DNS alone. Then they are replaced one after another, and all at once,
// each time with other addresses; one loses its disk.
func TestPods_MoveAndLoseDisk(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, 3)
	for i := range d.pods {
		d.start(i)
	}
	client := d.dial()
	identities := d.awaitMembers(client)
	d.order(client)

	for i := range d.pods { // a rolling update
		d.end(i, syscall.SIGTERM)
		d.move(i)
		d.start(i)
		d.awaitMembers(client)
		d.order(client)
	}
	for i := range d.pods { // all at once
		d.end(i, syscall.SIGKILL)
	}
	for i := range d.pods {
		d.move(i)
	}
	for i := range d.pods {
		d.start(i)
	}
	if now := d.awaitMembers(client); !slices.Equal(now, identities) {
		t.Errorf("the directories were %v, and are %v", identities, now)
	}
	d.order(client)
	// Each pod gets the address that another had.
	for i := range d.pods {
		d.end(i, syscall.SIGKILL)
	}
	d.hosts = append(d.hosts[1:], d.hosts[0])
	d.publish()
	for i := range d.pods {
		d.start(i)
	}
	d.awaitMembers(client)
	d.order(client)

	d.end(1, syscall.SIGKILL)
	if err := os.RemoveAll(d.dirs[1]); err != nil {
		t.Fatal(err)
	}
	d.move(1)
	d.start(1)
	if now := d.awaitMembers(client); now[1] == identities[1] || now[0] != identities[0] || now[2] != identities[2] {
		t.Errorf("the directories were %v, and are %v: only that of tenuto-1 is lost", identities, now)
	}
	d.order(client)
	d.checkOrders(client)
}

// A StatefulSet of five is scaled down to three, and up again. Meanwhile the three survive the loss
// of one, and the disk of a pod that is not there is deleted.
func TestPods_ScaleDownAndUp(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, 5)
	for i := range d.pods {
		d.start(i)
	}
	client := d.dial()
	d.awaitMembers(client)
	d.order(client)
	for i := 4; i >= 3; i-- {
		d.setRole(client, i, operate.RoleStandby)
	}
	d.awaitVoters(client, 0, 1, 2)
	for i := 4; i >= 3; i-- {
		d.end(i, syscall.SIGTERM)
		d.hosts[i] = ""
	}
	d.publish()
	d.end(2, syscall.SIGKILL)
	d.order(client) // two of three voters; with five voters, they would be no majority
	d.move(2)
	d.start(2)

	if err := os.RemoveAll(d.dirs[4]); err != nil {
		t.Fatal(err)
	}
	for i := 3; i <= 4; i++ {
		d.move(i)
		d.start(i)
		d.setRole(client, i, operate.RoleAuto)
	}
	d.awaitMembers(client)
	d.order(client)
	d.checkOrders(client)
}

func (d *deployment) setRole(client *cluster.Client, i int, role string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), waitMax)
	defer cancel()
	if err := operate.SetRole(ctx, client, fmt.Sprint("tenuto-", i), role, "scaling"); err != nil {
		d.t.Fatal(err)
	}
}

// awaitVoters waits until exactly these pods have a vote.
func (d *deployment) awaitVoters(client *cluster.Client, pods ...int) {
	d.t.Helper()
	eventually(d.t, func() string { return fmt.Sprint("exactly these vote: ", pods) }, func() bool {
		members, err := client.Members(d.t.Context())
		var voters []int
		for i, m := range members {
			if m.Voter {
				voters = append(voters, i)
			}
		}
		return err == nil && slices.Equal(voters, pods)
	})
}

// A worker finds the nodes, is ready then, takes orders, and runs their activities. The nodes run
// them again after its end.
func TestWorker_TakesOrdersAndRunsActivities(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, 3)
	probesAt, ordersAt := d.hosts[0]+":"+freePort(t), d.hosts[0]+":"+freePort(t)
	worker := d.run("-worker", "-id", "worker-0", "-port", d.port, "-resolver", d.dns.Address(), "-probes", probesAt, "-orders", ordersAt)
	t.Cleanup(func() { _ = worker.Process.Kill() })
	status := func(path string) int {
		response, err := http.Get("http://" + probesAt + path)
		if err != nil {
			return 0
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	eventually(t, func() string { return "the worker is alive before there are nodes" }, func() bool { return status("/healthz") == 200 })
	if code := status("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz without nodes: %d", code)
	}
	for i := range d.pods {
		d.start(i)
	}
	eventually(t, func() string { return "the worker is ready" }, func() bool { return status("/readyz") == 200 })
	client, orders := d.dial(), 0
	var reserved, shipped string
	eventually(t, func() string {
		return fmt.Sprintf("the worker runs both activities of an order; %d orders, the last reserved by %s, shipped by %s", orders, reserved, shipped)
	}, func() bool {
		id := fmt.Sprint("posted-", orders)
		orders++
		for range 2 { // a repeated request starts nothing
			post(t, "http://"+ordersAt+"/orders", Order{id, "book"})
		}
		reserved, shipped = d.await(client, id)
		return reserved == "worker-0" && shipped == "worker-0"
	})
	_ = worker.Process.Signal(syscall.SIGTERM)
	if err := worker.Wait(); err != nil {
		t.Errorf("the worker after SIGTERM: %v", err)
	}
	d.order(client)
	d.checkOrders(client)
}

// post sends an order, which must be accepted.
func post(t *testing.T, url string, order Order) {
	t.Helper()
	body, _ := json.Marshal(order)
	response, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil || response.StatusCode != http.StatusAccepted {
		t.Fatalf("an order: %+v, %v", response, err)
	}
	_ = response.Body.Close()
}

func freePort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}
