package baseline

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

// The settings of package journal, except for the heartbeat timeout. It is longer, to avoid
// elections on a busy machine.
const (
	heartbeatTimeout  = time.Second
	singleNodeTimeout = 10 * time.Millisecond // with one node
	commitTimeout     = 10 * time.Millisecond
	maxAppendEntries  = 64
	logCacheEntries   = 128
	ioTimeout         = 5 * time.Second
	poolMax           = 3
)

// A raftCluster is a Raft group in this process, with synced writes and empty state machines.
type raftCluster struct {
	nodes   []*raft.Raft
	closers []func() error
}

// newRaftCluster starts n nodes with their stores in dir and waits for a leader.
func newRaftCluster(ctx context.Context, dir string, n int) (*raftCluster, error) {
	g := &raftCluster{}
	if err := g.open(dir, n); err != nil {
		return nil, errors.Join(err, g.close())
	}
	if _, err := g.awaitLeader(ctx); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (r *raftCluster) open(dir string, n int) error {
	transports := make([]*raft.NetworkTransport, n)
	var servers []raft.Server
	for i := range transports {
		transport, err := raft.NewTCPTransport("127.0.0.1:0", nil, poolMax, ioTimeout, io.Discard)
		if err != nil {
			return err
		}
		transports[i] = transport
		r.closers = append(r.closers, transport.Close)
		servers = append(servers, raft.Server{ID: serverID(i), Address: transport.LocalAddr()})
	}
	for i, transport := range transports {
		if err := r.openNode(filepath.Join(dir, string(serverID(i))), config(i, n), transport, servers); err != nil {
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
		c.HeartbeatTimeout = singleNodeTimeout
	}
	c.ElectionTimeout = heartbeatTimeout
	c.LeaderLeaseTimeout = c.HeartbeatTimeout / 2
	c.CommitTimeout = commitTimeout
	c.MaxAppendEntries = maxAppendEntries
	c.NoLegacyTelemetry = true
	c.Logger = hclog.NewNullLogger()
	return c
}

func (r *raftCluster) openNode(dir string, c *raft.Config, transport raft.Transport, servers []raft.Server) error {
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
	r.closers = append(r.closers, bolt.Close)
	cache, err := raft.NewLogCache(logCacheEntries, bolt)
	if err != nil {
		return err
	}
	snapshots := raft.NewDiscardSnapshotStore()
	if err := raft.BootstrapCluster(c, cache, bolt, snapshots, transport, raft.Configuration{Servers: servers}); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	node, err := raft.NewRaft(c, noopFSM{}, cache, bolt, snapshots, transport)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	r.nodes = append(r.nodes, node)
	return nil
}

// awaitLeader waits for a leader and returns it.
func (r *raftCluster) awaitLeader(ctx context.Context) (*raft.Raft, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		for _, node := range r.nodes {
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

// close closes the nodes, then their stores and transports.
func (r *raftCluster) close() error {
	var errs []error
	for _, node := range r.nodes {
		errs = append(errs, node.Shutdown().Error())
	}
	for _, stop := range r.closers {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// noopFSM is an empty state machine.
type noopFSM struct{}

func (noopFSM) Apply(*raft.Log) any                 { return nil }
func (noopFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, raft.ErrNothingNewToSnapshot }
func (noopFSM) Restore(io.ReadCloser) error         { return nil }
