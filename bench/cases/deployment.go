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
	// Of a cluster; none of a single node.
	peers []cluster.Peer
	// By the place in peers; nil where the node is in a process, or is down.
	nodes     []*cluster.Node
	processes []*process
	turn      atomic.Uint64
	// For activities, which may still run when nodes are closed: of the node in
	// this process that was started last.
	own atomic.Pointer[cluster.Client]
}

// deploy starts the nodes of the environment, with their configuration tuned,
// and waits until they have done something. The caller closes the deployment.
func deploy(ctx context.Context, e *Env, tune func(*cluster.Config)) (*deployment, error) {
	n := e.Nodes.count()
	d := &deployment{env: e, tune: tune, nodes: make([]*cluster.Node, n), processes: make([]*process, n)}
	d.code = &code{client: d.own.Load}
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

// loopbackPeers finds ports that are free.
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
	if err := d.settle(ctx, true); err != nil {
		return err
	}
	return d.greet(ctx)
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
	d.own.Store(node.Client())
	return nil
}

func (d *deployment) config(i int) cluster.Config {
	config := cluster.Config{NodeID: nodeID(i), Dir: filepath.Join(d.env.Dir, nodeID(i)), Peers: d.peers, Groups: d.env.Groups}
	if len(d.peers) > 0 {
		config.Listen = d.peers[i].Address
	}
	if d.tune != nil {
		d.tune(&config)
	}
	return config
}

// client returns one of a node in this process, of each in turn; there has to be
// one. Not to be called while nodes are started or closed.
func (d *deployment) client() *cluster.Client {
	for {
		if node := d.nodes[d.turn.Add(1)%uint64(len(d.nodes))]; node != nil {
			return node.Client()
		}
	}
}

// greet has every node in this process do something.
func (d *deployment) greet(ctx context.Context) error {
	for i, node := range d.nodes {
		if node == nil {
			continue
		}
		id := fmt.Sprintf("greeting-%d-%d", i, time.Now().UnixNano())
		if _, err := cluster.Call(ctx, node.Client(), inSequence, id, 1); err != nil {
			return fmt.Errorf("greet %s: %w", nodeID(i), err)
		}
	}
	return nil
}

// leader waits until a node leads and returns its place.
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

// settle has a node lead that is in this process, or one that is not, if there
// are both: it stops the leader gently and starts it again until that is so.
func (d *deployment) settle(ctx context.Context, here bool) error {
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
	if err == nil && d.env.Groups > 1 {
		_, err = poll(ctx, "leaders that are spread", func() (none struct{}, ok bool) { return none, d.isSpread() })
	}
	return err
}

// isSpread tells whether all groups are led, and no node leads two more than another.
func (d *deployment) isSpread() bool {
	least, most, all := d.env.Groups, 0, 0
	for _, node := range d.nodes {
		led := 0
		for _, group := range node.Health().Groups {
			if group.Standing == cluster.Leading {
				led++
			}
		}
		least, most, all = min(least, led), max(most, led), all+led
	}
	return all == d.env.Groups && most-least <= 1
}

// kill ends a node without a word: by its process, or as near to that as can be
// where others live in the same.
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

// poll looks every millisecond until there is something.
func poll[T any](ctx context.Context, what string, look func() (T, bool)) (T, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if found, ok := look(); ok {
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
