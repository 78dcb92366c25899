package journal

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

const stateDir = "state"

// stateLoader opens the state that a node starts with.
type stateLoader struct {
	config    *Config
	snapshots *snapshot.Store
	logs      raft.LogStore
	inLog     func() []raft.Configuration // those in logs, latest first
	stats     *stats
}

// open opens the state such that it lacks exactly what Raft is going to apply. It uses the state on
// disk; or, if that is damaged or behind, the newest intact snapshot; or, if the log does not
// continue from there, a snapshot of another node. It returns an error if entries are in none of
// them.
func (r *stateLoader) open(ctx context.Context) (*state.Machine, error) {
	if r.config.Dir == "" {
		return state.New(), nil
	}
	machine, err := r.openState()
	if err != nil {
		return nil, err
	}
	if err := r.fillGap(ctx, machine); err != nil {
		return nil, errors.Join(err, machine.Close())
	}
	return machine, nil
}

// openState opens the state, or an empty one in place of a damaged one.
func (r *stateLoader) openState() (*state.Machine, error) {
	c := r.config
	options := pebblestore.Options{
		Dir: r.snapshots.FS.PathJoin(c.Dir, stateDir), FS: noLockFS{r.snapshots.FS}, Logger: c.Logger, CacheBytes: c.StateCacheBytes,
	}
	damagedFile, err := r.snapshots.HasDamagedFile()
	if err != nil {
		return nil, err
	}
	var machine *state.Machine
	if damagedFile {
		err = fmt.Errorf("a snapshot has a damaged file that the state may share: %w", state.ErrCorrupt)
	} else {
		machine, err = openMachine(options, c.stateOptions())
	}
	if errors.Is(err, state.ErrCorrupt) {
		c.Logger.Error("state damaged, rebuilding it", "error", err)
		if err := pebblestore.Discard(options); err != nil {
			return nil, err
		}
		machine, err = openMachine(options, c.stateOptions())
	}
	return machine, err
}

// noLockFS is a file system whose locks have no effect: the directory of the journal is locked
// already. A store that has failed, for example because of a full disk, stays open in memory. Its
// lock would keep this process from opening the journal again.
type noLockFS struct {
	vfs.FS
}

// Lock implements vfs.FS.
func (noLockFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// fillGap brings a machine to where the log continues, if necessary with a snapshot of another
// node.
func (r *stateLoader) fillGap(ctx context.Context, machine *state.Machine) error {
	gap, err := r.installNewest(machine)
	if err != nil || gap == nil {
		return err
	}
	r.config.Logger.Error("no intact snapshot, fetching one from another node", "error", gap, "least", gap.minIndex)
	asking := &snapshot.Fetcher{
		Cluster: r.config.Cluster, Node: r.config.Node, Dial: r.dial, Timeout: r.config.RepairTimeout,
		Snapshots: r.snapshots, MinIndex: gap.minIndex, Logger: r.config.Logger,
	}
	if _, err := asking.Run(ctx, peerAddresses(r.config, r.snapshots, r.inLog())); err != nil {
		return &RepairError{Damage: gap.damagedError(), Err: err}
	}
	r.stats.stateFetches.Add(1)
	if gap, err = r.installNewest(machine); err == nil && gap != nil {
		err = gap.damagedError()
	}
	return err
}

func (r *stateLoader) dial(address string, timeout time.Duration) (net.Conn, error) {
	return r.config.Network.Dial(address, timeout)
}

// flushSpread is the fraction of the flush size that varies from node to node.
const flushSpread = 0.3

// stateOptions returns the options of this node's state. All nodes apply the same entries and would
// begin each flush at the same moment. So the flush size depends on the node's name. Most of the
// time, a majority of the nodes is not flushing.
func (c *Config) stateOptions() state.Options {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(c.Node))
	const parts = 1024 // names with consecutive numbers differ most in the lowest bits
	return state.Options{
		MemoryBytes: c.StateMemoryBytes,
		FlushShare:  1 - flushSpread*float64(hash.Sum32()%parts)/parts,
	}
}

// openMachine opens a machine with a store. The error is a *FormatError if another version wrote
// it.
func openMachine(o pebblestore.Options, options state.Options) (*state.Machine, error) {
	s, err := pebblestore.Open(o)
	if err != nil {
		return nil, err
	}
	machine, err := state.Open(s, options)
	return machine, withStateFormat(o.Dir, err)
}

// withStateFormat returns a *FormatError with the path of a state if err says that the state has
// another format, otherwise err.
func withStateFormat(path string, err error) error {
	var format *state.FormatError
	if !errors.As(err, &format) {
		return err
	}
	return &FormatError{Path: path, Want: fmt.Sprint(format.Kind, " ", format.Want), Have: fmt.Sprint(format.Kind, " ", format.Format)}
}

// installNewest installs the newest intact snapshot in a machine that is behind it, and checks that
// the log has the rest. It returns the gap between the two, nil if there is none.
func (r *stateLoader) installNewest(machine *state.Machine) (*logGap, error) {
	all, err := r.snapshots.Manifests()
	if err != nil {
		return nil, err
	}
	applied, _ := machine.Applied()
	for len(all) > 0 && applied < all[0].Applied {
		m := all[0]
		err := machine.Install(func(dir string) error { return r.snapshots.Install(m, dir) })
		if err == nil {
			r.config.Logger.Info("state rebuilt from snapshot", "index", m.Applied)
			r.stats.stateRebuilds.Add(1)
			applied = m.Applied
			break
		}
		var damaged *diskfile.DamagedError
		if !errors.As(err, &damaged) && !errors.Is(err, state.ErrCorrupt) {
			return nil, fmt.Errorf("rebuild state: %w", withStateFormat(r.snapshots.FS.PathJoin(r.snapshots.Dir, m.ID), err))
		}
		if err := r.snapshots.Quarantine(m.ID, err); err != nil {
			return nil, err
		}
		all = all[1:]
	}
	return r.findGap(applied, all)
}

// logGap is the gap between the newest intact snapshot and the log.
type logGap struct {
	dir                     string
	snapshotIndex, minIndex uint64 // the index of that snapshot, and the least that closes the gap
}

func (g *logGap) damagedError() *DamagedError {
	return &DamagedError{Path: g.dir, Index: g.snapshotIndex + 1, Reason: fmt.Sprintf(
		"no intact snapshot has it, nor does the log; a snapshot of entry %d or later is needed", g.minIndex)}
}

// findGap checks the bounds of the log. It must begin no later than the entry after the snapshot
// that Raft starts from. If it ends before the newest snapshot that this node has had, Raft must
// start from that one or a later one. findGap returns the gap if one of these is violated. It
// returns a *DamagedError if the state has applied more than the log and the snapshot
// contain.
func (r *stateLoader) findGap(applied uint64, all []*snapshot.Manifest) (*logGap, error) {
	first, err := r.logs.FirstIndex()
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	last, err := r.logs.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	newest, err := r.snapshots.NewestIndex()
	if err != nil {
		return nil, err
	}
	base, known, least := uint64(0), last, max(first, 1)-1
	if len(all) > 0 {
		base, known = all[0].Index, max(last, all[0].Applied)
	}
	if newest > last {
		least = newest // the snapshot has replaced the log's last entries
	}
	if base < least {
		return &logGap{r.config.Dir, base, least}, nil
	}
	if applied > known {
		return nil, &DamagedError{Path: r.config.Dir, Index: applied, Reason: fmt.Sprintf(
			"the state has applied this entry, but the log ends at %d", last)}
	}
	return nil, nil
}

// otherAddresses returns what peerAddresses does for a node with or without a directory.
func otherAddresses(c *Config, stores *stores, logs *raftlog.Checked) []string {
	if stores.snapshotsOnDisk == nil {
		return nil // it has nothing from before
	}
	return peerAddresses(c, stores.snapshotsOnDisk, logs.Configurations())
}

// peerAddresses returns possible addresses of other nodes of the partition, from everything that
// this one has: the configurations in its log, its snapshots including quarantined ones, and its
// Config.
func peerAddresses(c *Config, snapshots *snapshot.Store, inLog []raft.Configuration) []string {
	var addresses []string
	addAddress := func(node, address string) {
		if node != c.Node && address != "" && address != c.Address && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	for _, members := range append(inLog, snapshots.Configurations()...) {
		for _, server := range members.Servers {
			addAddress(string(server.ID), peer.AddressOf(&server))
		}
	}
	peers, _ := c.Founders()
	for _, p := range peers {
		addAddress(p.Node, p.Address)
	}
	for _, address := range c.Seeds {
		addAddress("", address)
	}
	return addresses
}
