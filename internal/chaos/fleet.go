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
)

// fleetSize is how many nodes there are mostly.
const fleetSize = 3

// A fleet is the cluster under stress: nodes in processes of their own, a network
// between them, and the ledger that their activities write to.
type fleet struct {
	dir     string // where everything of the run lies
	doors   string // and the sockets of nodes and ledger, which have short names
	log     *evidence.Log
	nodes   []*process
	remote  *process // nil before it is started
	size    int      // how many nodes it began with
	guests  int      // how many nodes were added and removed
	network network
	pattern host.Config // what all nodes are told alike
	// Where the nodes reach each other, whoever is there.
	addresses []string
	keys      *keys
	ledger    *ledger
	disks     *disks // nil when the nodes have plain directories
	http      *http.Client
}

// newFleet prepares so many nodes, with a disk for each if disks is not nil, and
// starts none. pattern says of groups and snapshots what they are to do. The network
// is closed with the fleet.
func newFleet(dir string, log *evidence.Log, network network, disks *disks, size int, pattern host.Config) (*fleet, error) {
	f := &fleet{dir: dir, log: log, network: network, disks: disks, size: size, pattern: pattern}
	f.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DialContext: f.dialDoor}}
	if err := f.furnish(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// furnish prepares the ledger, the keys and the nodes.
func (f *fleet) furnish() error {
	var err error
	if f.doors, err = os.MkdirTemp("", "tenuto-doors-"); err != nil {
		return err
	}
	if f.ledger, err = openLedger(f.log, filepath.Join(f.doors, "ledger")); err != nil {
		return err
	}
	if f.keys, err = newKeys(filepath.Join(f.dir, "keys")); err != nil {
		return err
	}
	var configs []host.Config
	var peers []cluster.Peer
	for i := range f.size {
		config, advertised, err := f.place(fmt.Sprintf("n%d", i+1))
		if err != nil {
			return err
		}
		configs = append(configs, config)
		peers = append(peers, cluster.Peer{NodeID: config.NodeID, Address: advertised})
		f.addresses = append(f.addresses, advertised)
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

// place makes room for a node: a place in the network, keys.
func (f *fleet) place(id string) (config host.Config, advertised string, err error) {
	listen, advertised, err := f.network.Add(id)
	if err != nil {
		return config, "", err
	}
	config = f.pattern
	config.NodeID, config.Listen, config.Dir, config.Ledger = id, listen, f.dataDir(id), f.ledger.socket()
	config.Keys, err = f.keys.issue(id)
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

// start starts every node that does not run, all at once.
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

// close ends everything, and unmounts the disks.
func (f *fleet) close() error {
	var errs []error
	for _, process := range f.processes() {
		errs = append(errs, process.kill(), process.stderr.Close())
	}
	if f.disks != nil {
		errs = append(errs, f.disks.unmount())
	}
	f.http.CloseIdleConnections()
	if f.ledger != nil {
		errs = append(errs, f.ledger.close())
	}
	errs = append(errs, f.network.Close(), os.RemoveAll(f.doors))
	return errors.Join(errs...)
}

// processes returns those of the nodes and, once it was started, the remote client's.
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

// others returns the IDs of the other nodes.
func (f *fleet) others(ids ...string) []string {
	var others []string
	for _, node := range f.nodes {
		if !slices.Contains(ids, node.id) {
			others = append(others, node.id)
		}
	}
	return others
}

// askLimit bounds a question about the node itself.
const askLimit = 500 * time.Millisecond

// states asks every node about itself. The zero value stands for one that has not
// answered.
func (f *fleet) states(ctx context.Context) []host.Node {
	states := make([]host.Node, len(f.nodes))
	var asking sync.WaitGroup
	for i, node := range f.nodes {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askLimit)
			defer cancel()
			_ = f.post(ctx, node, host.NodePath, struct{}{}, &states[i])
		})
	}
	asking.Wait()
	return states
}

// notReady says which nodes are not ready, and why; "" if all are.
func (f *fleet) notReady(ctx context.Context) string {
	var reasons []string
	for i, state := range f.states(ctx) {
		switch {
		case state.ID == "":
			reasons = append(reasons, f.nodes[i].id+" does not answer")
		case state.NotReady != "":
			reasons = append(reasons, state.ID+": "+state.NotReady)
		}
	}
	return strings.Join(reasons, "; ")
}

// leaders returns the node that leads each group: that says so itself, and that a
// majority follows. "" while there is none.
func (f *fleet) leaders(ctx context.Context) []string { return f.leadersAmong(f.states(ctx)) }

func (f *fleet) leadersAmong(states []host.Node) []string {
	leaders := make([]string, f.pattern.Groups)
	for group := range leaders {
		for i, candidate := range states {
			follow := 0
			for _, state := range states {
				if state.ID != "" && state.In(group).Leader == candidate.ID {
					follow++
				}
			}
			if candidate.In(group).Leading && follow > len(f.nodes)/2 {
				leaders[group] = f.nodes[i].id
			}
		}
	}
	return leaders
}

// awaitLeaders waits until every group has a leader, and returns them.
func (f *fleet) awaitLeaders(ctx context.Context) ([]string, error) {
	return f.awaitThat(ctx, func(leaders []string) bool { return !slices.Contains(leaders, "") })
}

// awaitLeader waits for a leader of a group that is not one of some nodes.
func (f *fleet) awaitLeader(ctx context.Context, group int, not ...string) (string, error) {
	leaders, err := f.awaitThat(ctx, func(leaders []string) bool {
		return leaders[group] != "" && !slices.Contains(not, leaders[group])
	})
	if err != nil {
		return "", err
	}
	return leaders[group], nil
}

// awaitThat waits until the leaders of all groups are as they should be.
func (f *fleet) awaitThat(ctx context.Context, hold func(leaders []string) bool) ([]string, error) {
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

// errNoDoor: there is no process to ask.
var errNoDoor = errors.New("the node does not run")

// post puts a question to a node and decodes the answer.
func (f *fleet) post(ctx context.Context, node *process, path string, question, answer any) error {
	return f.ask(ctx, node, path, question, func(body io.Reader) error { return json.NewDecoder(body).Decode(answer) })
}

// ask puts a question to a node and has its answer read.
func (f *fleet) ask(ctx context.Context, node *process, path string, question any, read func(io.Reader) error) error {
	body, err := f.open(ctx, node, path, question)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := read(body); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	_, _ = io.Copy(io.Discard, body) // so that the connection is used again
	return nil
}

// dialDoor connects to the node whose door is at an address: the name of a socket, with
// a port that says nothing. No fault of the network comes between.
func (f *fleet) dialDoor(ctx context.Context, _, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(f.doors, name))
}

// open puts a question to a node and returns what it answers.
func (f *fleet) open(ctx context.Context, node *process, path string, question any) (io.ReadCloser, error) {
	address, _ := node.door()
	if address == "" {
		return nil, errNoDoor
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
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s: %s", path, response.Status)
	}
	return response.Body, nil
}
