package cases

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// A deployment is the nodes of one run.
type deployment struct {
	env  *Env
	tune func(*cluster.Config)
	code *code
	// Empty with a single node.
	peers []cluster.Peer
	// By index in peers. nil if the node runs in another process or is down.
	nodes     []*cluster.Node
	processes []*process
	nextNode  atomic.Uint64
	// The client of the node that was started last in this process. Activities use it, because the
	// other nodes may be closed before they end.
	activityClient atomic.Pointer[cluster.Client]
}

// deploy starts the nodes of the environment and warms them up. tune may change their
// configuration. The caller closes the deployment.
func deploy(ctx context.Context, e *Env, tune func(*cluster.Config)) (*deployment, error) {
	n := e.Nodes.count()
	d := &deployment{env: e, tune: tune, nodes: make([]*cluster.Node, n), processes: make([]*process, n)}
	d.code = &code{client: d.activityClient.Load}
	if n > 1 {
		peers, err := loopbackPeers(n)
		if err != nil {
			return nil, err
		}
		d.peers = peers
	}
	if err := d.start(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// loopbackPeers returns peers on free ports.
func loopbackPeers(n int) ([]cluster.Peer, error) {
	var peers []cluster.Peer
	for i := range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		peers = append(peers, cluster.Peer{NodeID: nodeID(i), Address: listener.Addr().String()})
	}
	return peers, nil
}

func nodeID(i int) string { return fmt.Sprintf("n%d", i+1) }

// start starts the nodes that are down.
func (d *deployment) start(ctx context.Context) error {
	for i := range d.nodes {
		if err := d.startNode(ctx, i); err != nil {
			return err
		}
	}
	if err := d.placeLeader(ctx, true); err != nil {
		return err
	}
	return d.warmUpNodes(ctx)
}

func (d *deployment) startNode(ctx context.Context, i int) error {
	if d.nodes[i] != nil || d.processes[i] != nil {
		return nil
	}
	config := d.config(i)
	if d.env.Nodes == ThreeProcesses && i > 0 {
		process, err := startProcess(config)
		d.processes[i] = process
		return err
	}
	config.Definitions = d.code.definitions()
	config.Logger = d.env.Logger
	node, err := cluster.Start(context.WithoutCancel(ctx), config)
	if err != nil {
		return err
	}
	d.nodes[i] = node
	d.activityClient.Store(node.Client())
	return nil
}

func (d *deployment) config(i int) cluster.Config {
	config := cluster.Config{NodeID: nodeID(i), Dir: filepath.Join(d.env.Dir, nodeID(i)), Peers: d.peers, Partitions: d.env.Partitions}
	if len(d.peers) > 0 {
		config.Listen = d.peers[i].Address
	}
	if d.tune != nil {
		d.tune(&config)
	}
	return config
}

// client returns the client of a node in this process, round-robin. At least one must be up.
// It must not be called while nodes are started or closed.
func (d *deployment) client() *cluster.Client {
	for {
		if node := d.nodes[d.nextNode.Add(1)%uint64(len(d.nodes))]; node != nil {
			return node.Client()
		}
	}
}

// warmUpNodes runs an orchestration through every node in this process.
func (d *deployment) warmUpNodes(ctx context.Context) error {
	for i, node := range d.nodes {
		if node == nil {
			continue
		}
		id := fmt.Sprintf("greeting-%d-%d", i, time.Now().UnixNano())
		if _, err := cluster.Call(ctx, node.Client(), inSequence, id, 1); err != nil {
			return fmt.Errorf("warm up %s: %w", nodeID(i), err)
		}
	}
	return nil
}

// leader waits for a leader and returns its index.
func (d *deployment) leader(ctx context.Context) (int, error) {
	return poll(ctx, "a leader", func() (int, bool) {
		for _, node := range d.nodes {
			if node == nil {
				continue
			}
			for i := range d.nodes {
				up := d.nodes[i] != nil || d.processes[i] != nil
				if up && node.Leader() == nodeID(i) {
					return i, true
				}
			}
		}
		return 0, false
	})
}

// placeLeader makes a node in this process lead (here) or one in another process, if there are
// both, by restarting other leaders. It also waits until partitions are balanced.
func (d *deployment) placeLeader(ctx context.Context, here bool) error {
	for d.env.Nodes == ThreeProcesses {
		i, err := d.leader(ctx)
		if err != nil || (d.nodes[i] != nil) == here {
			return err
		}
		if node := d.nodes[i]; node != nil {
			err = node.Stop(ctx)
		} else {
			err = d.processes[i].stop()
		}
		d.nodes[i], d.processes[i] = nil, nil
		if err := errors.Join(err, d.startNode(ctx, i)); err != nil {
			return err
		}
	}
	_, err := d.leader(ctx)
	if err == nil && d.env.Partitions > 1 {
		_, err = poll(ctx, "balanced leaders", func() (none struct{}, ok bool) { return none, d.isBalanced() })
	}
	return err
}

// isBalanced reports whether all partitions have leaders, and no node leads two more than
// another.
func (d *deployment) isBalanced() bool {
	least, most, all := d.env.Partitions, 0, 0
	for _, node := range d.nodes {
		led := 0
		for _, partition := range node.Health().Partitions {
			if partition.Role == cluster.RoleLeader {
				led++
			}
		}
		least, most, all = min(least, led), max(most, led), all+led
	}
	return all == d.env.Partitions && most-least <= 1
}

// kill ends a node abruptly: it kills its process, or closes the node if it shares this
// process.
func (d *deployment) kill(i int) error {
	node, process := d.nodes[i], d.processes[i]
	d.nodes[i], d.processes[i] = nil, nil
	if process != nil {
		process.kill()
	}
	if node != nil {
		return node.Close()
	}
	return nil
}

// close ends all nodes.
func (d *deployment) close() error {
	var errs []error
	for i := range d.nodes {
		errs = append(errs, d.kill(i))
	}
	return errors.Join(errs...)
}

// poll calls look every millisecond until it succeeds.
func poll[T any](ctx context.Context, what string, try func() (T, bool)) (T, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if found, ok := try(); ok {
			return found, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			var none T
			return none, fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}
