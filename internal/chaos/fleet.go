package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/internal/chaos/keys"
)

// fleetSize is the usual number of nodes.
const fleetSize = 3

// remoteID names the remote client, which has a place in the network like a node.
const remoteID = "remote"

// A fleet is the cluster under test: nodes in their own processes, a network between them, and the
// ledger of their activities.
type fleet struct {
	dir        string // all files of the run
	sockets    string // the sockets of nodes and ledger; short, because socket names are limited
	log        *evidence.Log
	nodes      []*process
	remote     *process // nil before it is started
	size       int      // the initial number of nodes
	nodesAdded int      // how many nodes were added since
	backups    int      // how many backups were begun
	recoveries int      // how many clusters were recovered
	workers    []*process
	places     map[string][2]string // see place
	network    network
	template   host.Config // what all nodes have in common
	// The addresses of the nodes, in the order of nodes. A replacement has the address of the node
	// that it replaces.
	addresses []string
	keys      *keys.Keys
	ledger    *evidence.Ledger
	disks     *disks // nil if the nodes use plain directories
	http      *http.Client
}

// newFleet prepares the given number of nodes, with their own disks if disks is not nil, and starts
// none. template has the configuration that all share. The fleet closes the network.
func newFleet(dir string, log *evidence.Log, network network, disks *disks, size int, template host.Config) (*fleet, error) {
	f := &fleet{dir: dir, log: log, network: network, disks: disks, size: size, template: template, places: make(map[string][2]string)}
	f.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DialContext: f.dialSocket}}
	if err := f.setUp(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// setUp prepares the ledger, the keys and the nodes.
func (f *fleet) setUp() error {
	err := f.openSockets()
	if err != nil {
		return err
	}
	if f.keys, err = keys.New(filepath.Join(f.dir, "keys")); err != nil {
		return err
	}
	var configs []host.Config
	var peers []cluster.Peer
	for i := range f.size {
		config, advertised, err := f.configFor(fmt.Sprintf("n%d", i+1))
		if err != nil {
			return err
		}
		configs = append(configs, config)
		peers = append(peers, cluster.Peer{NodeID: config.NodeID, Address: advertised})
		f.addresses = append(f.addresses, advertised)
	}
	if err := f.publish(); err != nil {
		return err
	}
	for _, config := range configs {
		config.Peers = peers
		node, err := f.process(config)
		if err != nil {
			return err
		}
		f.nodes = append(f.nodes, node)
	}
	return nil
}

// openSockets prepares the sockets and the ledger.
func (f *fleet) openSockets() (err error) {
	if f.sockets, err = os.MkdirTemp("", "tenuto-sockets-"); err != nil {
		return err
	}
	f.ledger, err = evidence.OpenLedger(f.log, filepath.Join(f.sockets, "ledger"))
	return err
}

// place returns the addresses of a place in the network that is used again and again.
func (f *fleet) place(name string) (listen, advertised string, err error) {
	if _, ok := f.places[name]; !ok {
		if listen, advertised, err = f.network.Add(name); err != nil {
			return "", "", err
		}
		f.places[name] = [2]string{listen, advertised}
	}
	return f.places[name][0], f.places[name][1], nil
}

// addressFile is the name of the file with the addresses of the nodes.
func (f *fleet) addressFile() string { return filepath.Join(f.dir, "addresses") }

// publish writes the addresses of the nodes to the file in which remote clients and nodes that were
// moved find them.
func (f *fleet) publish() error {
	name := f.addressFile()
	if err := os.WriteFile(name+".new", []byte(strings.Join(f.addresses, "\n")), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// configFor returns the configuration of a new node, with a place in the network and keys.
func (f *fleet) configFor(id string) (config host.Config, advertised string, err error) {
	listen, advertised, err := f.network.Add(id)
	if err != nil {
		return config, "", err
	}
	config = f.template
	config.NodeID, config.Listen, config.Dir, config.Ledger = id, listen, f.dataDir(id), f.ledger.Socket()
	config.Keys, err = f.keys.Issue(id)
	return config, advertised, err
}

// process prepares the process of a node.
func (f *fleet) process(config host.Config) (*process, error) {
	return newProcess(config.NodeID, config, f)
}

func (f *fleet) dataDir(id string) string {
	if f.disks != nil && isMounted(f.disks.mount(id)) {
		return filepath.Join(f.disks.mount(id), "data")
	}
	return filepath.Join(f.dir, id)
}

// start starts every node that is not running, concurrently.
func (f *fleet) start(ctx context.Context) error {
	var starting sync.WaitGroup
	errs := make([]error, len(f.nodes))
	for i, node := range f.nodes {
		if node.pid() == 0 {
			starting.Go(func() { errs[i] = node.start(ctx) })
		}
	}
	starting.Wait()
	return errors.Join(errs...)
}

// startRemote starts the process that calls the cluster from outside. It is never restarted: its
// client must find the nodes again after every fault.
func (f *fleet) startRemote(ctx context.Context) error {
	remote, err := f.newRemote(host.Config{NodeID: remoteID})
	if err != nil {
		return err
	}
	f.remote = remote
	return remote.start(ctx)
}

// newRemote prepares a process without a node, with a place in the network and keys.
func (f *fleet) newRemote(config host.Config) (*process, error) {
	if _, _, err := f.network.Add(config.NodeID); err != nil {
		return nil, err
	}
	config.Dial, config.Discover, config.Ledger = f.addresses, f.addressFile(), f.ledger.Socket()
	var err error
	if config.Keys, err = f.keys.IssueClient(config.NodeID); err != nil {
		return nil, err
	}
	return f.process(config)
}

// close ends all processes and unmounts the disks.
func (f *fleet) close() error {
	var errs []error
	for _, process := range append(f.processes(), f.workers...) {
		errs = append(errs, process.kill(), process.stderr.Close())
	}
	if f.disks != nil {
		errs = append(errs, f.disks.unmount())
	}
	f.http.CloseIdleConnections()
	if f.ledger != nil {
		errs = append(errs, f.ledger.Close())
	}
	errs = append(errs, f.network.Close(), os.RemoveAll(f.sockets))
	return errors.Join(errs...)
}

// processes returns the processes of the nodes and, after it was started, of the remote client.
func (f *fleet) processes() []*process {
	if f.remote == nil {
		return f.nodes
	}
	return append(slices.Clone(f.nodes), f.remote)
}

// node returns a node by its ID.
func (f *fleet) node(id string) *process {
	return f.nodes[slices.IndexFunc(f.nodes, func(p *process) bool { return p.id == id })]
}

// nodeIDsExcept returns the IDs of all nodes except the given ones.
func (f *fleet) nodeIDsExcept(ids ...string) []string {
	var others []string
	for _, node := range f.nodes {
		if !slices.Contains(ids, node.id) {
			others = append(others, node.id)
		}
	}
	return others
}

// statusTimeout bounds a status request.
const statusTimeout = 500 * time.Millisecond

// statuses returns the status of every node, the zero value for a node that did not answer.
func (f *fleet) statuses(ctx context.Context) []host.NodeStatus {
	states := make([]host.NodeStatus, len(f.nodes))
	var asking sync.WaitGroup
	for i, node := range f.nodes {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, statusTimeout)
			defer cancel()
			_ = f.post(ctx, node, host.NodePath, struct{}{}, &states[i])
		})
	}
	asking.Wait()
	return states
}

// unreadyNodes returns a line for each node that is not ready.
func (f *fleet) unreadyNodes(ctx context.Context) (reasons []string) {
	for i, state := range f.statuses(ctx) {
		switch {
		case state.ID == "":
			reasons = append(reasons, f.nodes[i].id+" does not answer")
		case state.NotReady != "":
			reasons = append(reasons, state.ID+": "+state.NotReady)
		}
	}
	return reasons
}

// leaders returns the leader of each partition, "" while there is none. The leader is the node that
// reports that it leads and that a majority of the nodes report as their leader.
func (f *fleet) leaders(ctx context.Context) []string { return f.leadersAmong(f.statuses(ctx)) }

func (f *fleet) leadersAmong(states []host.NodeStatus) []string {
	leaders := make([]string, f.template.Partitions)
	for partition := range leaders {
		for i, candidate := range states {
			follow := 0
			for _, state := range states {
				if state.ID != "" && state.Partition(partition).Leader == candidate.ID {
					follow++
				}
			}
			if candidate.Partition(partition).IsLeader && follow > len(f.nodes)/2 {
				leaders[partition] = f.nodes[i].id
			}
		}
	}
	return leaders
}

// awaitLeaders waits until every partition has a leader, and returns them.
func (f *fleet) awaitLeaders(ctx context.Context) ([]string, error) {
	return f.awaitLeadersUntil(ctx, func(leaders []string) bool { return !slices.Contains(leaders, "") })
}

// awaitLeader waits for a leader of a partition that is none of the given nodes.
func (f *fleet) awaitLeader(ctx context.Context, partition int, not ...string) (string, error) {
	leaders, err := f.awaitLeadersUntil(ctx, func(leaders []string) bool {
		return leaders[partition] != "" && !slices.Contains(not, leaders[partition])
	})
	if err != nil {
		return "", err
	}
	return leaders[partition], nil
}

// awaitLeadersUntil waits until hold returns true for the leaders of all partitions.
func (f *fleet) awaitLeadersUntil(ctx context.Context, hold func(leaders []string) bool) ([]string, error) {
	for {
		leaders := f.leaders(ctx)
		if hold(leaders) {
			return leaders, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no leader: %q: %w", leaders, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// errNotRunning is returned for a request to a node that has no process.
var errNotRunning = errors.New("the node is not running")

// post sends a request to a node and decodes the answer.
func (f *fleet) post(ctx context.Context, node *process, path string, question, answer any) error {
	return f.ask(ctx, node, path, question, func(body io.Reader) error { return json.NewDecoder(body).Decode(answer) })
}

// ask sends a request to a node and calls read with the answer.
func (f *fleet) ask(ctx context.Context, node *process, path string, question any, read func(io.Reader) error) error {
	body, err := f.open(ctx, node, path, question)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := read(body); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	_, _ = io.Copy(io.Discard, body) // so that the connection is reused
	return nil
}

// dialSocket connects to a node's Unix socket; the address is its name with a meaningless port. No
// network fault affects it.
func (f *fleet) dialSocket(ctx context.Context, _, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(f.sockets, name))
}

// open sends a request to a node and returns the body of the answer.
func (f *fleet) open(ctx context.Context, node *process, path string, question any) (io.ReadCloser, error) {
	address, _ := node.socket()
	if address == "" {
		return nil, errNotRunning
	}
	encoded, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	response, err := f.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", path, response.Status, bytes.TrimSpace(reason))
	}
	return response.Body, nil
}
