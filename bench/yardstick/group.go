package yardstick

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// What package journal sets; but the heartbeat's limit, which is longer, so that
// on a busy machine no election comes between.
const (
	heartbeatTimeout = time.Second
	aloneTimeout     = 10 * time.Millisecond // of a group of one
	commitTimeout    = 10 * time.Millisecond
	maxAppendEntries = 64
	logCacheEntries  = 128
	ioTimeout        = 5 * time.Second
	poolMax          = 3
)

// A group is a Raft group in this process, with everything synced to disk and
// state machines that do nothing.
type group struct {
	nodes  []*raft.Raft
	closes []func() error
}

// newGroup starts a group of n nodes with their stores in dir, and waits until
// one leads.
func newGroup(ctx context.Context, dir string, n int) (*group, error) {
	g := &group{}
	if err := g.open(dir, n); err != nil {
		return nil, errors.Join(err, g.close())
	}
	if _, err := g.leader(ctx); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (g *group) open(dir string, n int) error {
	transports := make([]*raft.NetworkTransport, n)
	var servers []raft.Server
	for i := range transports {
		transport, err := raft.NewTCPTransport("127.0.0.1:0", nil, poolMax, ioTimeout, io.Discard)
		if err != nil {
			return err
		}
		transports[i] = transport
		g.closes = append(g.closes, transport.Close)
		servers = append(servers, raft.Server{ID: serverID(i), Address: transport.LocalAddr()})
	}
	for i, transport := range transports {
		if err := g.openNode(filepath.Join(dir, string(serverID(i))), config(i, n), transport, servers); err != nil {
			return err
		}
	}
	return nil
}

func serverID(i int) raft.ServerID { return raft.ServerID(fmt.Sprintf("n%d", i+1)) }

func config(i, n int) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = serverID(i)
	c.HeartbeatTimeout = heartbeatTimeout
	if n == 1 {
		c.HeartbeatTimeout = aloneTimeout
	}
	c.ElectionTimeout = heartbeatTimeout
	c.LeaderLeaseTimeout = c.HeartbeatTimeout / 2
	c.CommitTimeout = commitTimeout
	c.MaxAppendEntries = maxAppendEntries
	c.NoLegacyTelemetry = true
	c.Logger = hclog.NewNullLogger()
	return c
}

func (g *group) openNode(dir string, c *raft.Config, transport raft.Transport, servers []raft.Server) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path:        filepath.Join(dir, "raft.db"),
		BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	g.closes = append(g.closes, bolt.Close)
	cache, err := raft.NewLogCache(logCacheEntries, bolt)
	if err != nil {
		return err
	}
	snapshots := raft.NewDiscardSnapshotStore()
	if err := raft.BootstrapCluster(c, cache, bolt, snapshots, transport, raft.Configuration{Servers: servers}); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	node, err := raft.NewRaft(c, idle{}, cache, bolt, snapshots, transport)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	g.nodes = append(g.nodes, node)
	return nil
}

// leader waits until a node leads.
func (g *group) leader(ctx context.Context) (*raft.Raft, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		for _, node := range g.nodes {
			if node.State() == raft.Leader {
				return node, nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a leader: %w", ctx.Err())
		}
	}
}

// close ends the nodes, then what they stand on.
func (g *group) close() error {
	var errs []error
	for _, node := range g.nodes {
		errs = append(errs, node.Shutdown().Error())
	}
	for _, stop := range g.closes {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// idle is a state machine that does nothing.
type idle struct{}

func (idle) Apply(*raft.Log) any                 { return nil }
func (idle) Snapshot() (raft.FSMSnapshot, error) { return nil, raft.ErrNothingNewToSnapshot }
func (idle) Restore(io.ReadCloser) error         { return nil }
