package journal

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

const stateDir = "state"

// recovery is how a node comes by the state that it starts with.
type recovery struct {
	config    *Config
	snapshots *checkpoints
	logs      raft.LogStore
	stats     *stats
}

// open opens the state of a node, such that what Raft is going to apply is all
// that it lacks: as it was left; or if it is damaged or behind, from the newest
// snapshot that can be believed; or if the log does not go on from there, from one
// that another node has. It refuses to go on without entries that are in none of
// them.
func (r *recovery) open(ctx context.Context) (*state.Machine, error) {
	if r.config.Dir == "" {
		return state.New(), nil
	}
	machine, err := r.openState()
	if err != nil {
		return nil, err
	}
	if err := r.complete(ctx, machine); err != nil {
		return nil, errors.Join(err, machine.Close())
	}
	return machine, nil
}

// openState opens the state, or an empty one in the place of one that is damaged.
func (r *recovery) openState() (*state.Machine, error) {
	c := r.config
	options := pebblestore.Options{
		Dir: r.snapshots.fs.PathJoin(c.Dir, stateDir), FS: lockedFS{r.snapshots.fs}, Logger: c.Logger, CacheBytes: c.StateCacheBytes,
	}
	suspicious, err := r.snapshots.suspicious()
	if err != nil {
		return nil, err
	}
	var machine *state.Machine
	if suspicious {
		err = fmt.Errorf("a snapshot has a file that is damaged, and the state may share it: %w", state.ErrCorrupt)
	} else {
		machine, err = openStored(options, c.stateOptions())
	}
	if errors.Is(err, state.ErrCorrupt) {
		c.Logger.Error("the state is damaged and will be rebuilt", "error", err)
		if err := pebblestore.Discard(options); err != nil {
			return nil, err
		}
		machine, err = openStored(options, c.stateOptions())
	}
	return machine, err
}

// lockedFS is a file system whose locks lock nothing: the directory of the journal
// is locked already. A store that has failed, because the disk was full for one, is
// left behind with what it holds, and a lock would keep this process from opening
// the journal again.
type lockedFS struct {
	vfs.FS
}

// Lock implements vfs.FS.
func (lockedFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// complete brings a machine to where the log goes on, with the help of others if
// need be.
func (r *recovery) complete(ctx context.Context, machine *state.Machine) error {
	gap, err := r.catchUp(machine)
	if err != nil || gap == nil {
		return err
	}
	r.config.Logger.Error("no snapshot here can be believed, the other nodes are asked for one", "error", gap, "least", gap.least)
	asking := &asking{config: r.config, snapshots: r.snapshots, least: gap.least}
	if _, err := asking.run(ctx, othersOf(r.config, r.snapshots, r.logs)); err != nil {
		return &RepairError{Damage: gap.damage(), Err: err}
	}
	r.stats.stateFetches.Add(1)
	if gap, err = r.catchUp(machine); err == nil && gap != nil {
		err = gap.damage()
	}
	return err
}

// flushSpread is by how much of what may come together between two flushes of the state
// that differs from node to node.
const flushSpread = 0.3

// stateOptions returns those of this node's state. All nodes apply the same, and would
// begin each flush at the same moment; so each has a share of its own of what comes
// together before, by its name. Then a majority is busy with nothing else most of the time.
func (c *Config) stateOptions() state.Options {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(c.Node))
	const parts = 1024 // names that are counted on are far apart in the lowest bits
	return state.Options{
		MemoryBytes: c.StateMemoryBytes,
		FlushShare:  1 - flushSpread*float64(hash.Sum32()%parts)/parts,
	}
}

// openStored opens a machine with a store.
func openStored(o pebblestore.Options, options state.Options) (*state.Machine, error) {
	s, err := pebblestore.Open(o)
	if err != nil {
		return nil, err
	}
	return state.Open(s, options)
}

// catchUp installs the newest snapshot that can be believed in a machine that is
// behind it, and checks that the log has the rest. It returns the gap between the
// two, nil if there is none.
func (r *recovery) catchUp(machine *state.Machine) (*gap, error) {
	all, err := r.snapshots.manifests()
	if err != nil {
		return nil, err
	}
	applied, _ := machine.Applied()
	for len(all) > 0 && applied < all[0].Applied {
		m := all[0]
		err := machine.Install(func(dir string) error { return r.snapshots.install(m, dir) })
		if err == nil {
			r.config.Logger.Info("the state was rebuilt from a snapshot", "index", m.Applied)
			r.stats.stateRebuilds.Add(1)
			applied = m.Applied
			break
		}
		var damaged *DamagedError
		if !errors.As(err, &damaged) && !errors.Is(err, state.ErrCorrupt) {
			return nil, fmt.Errorf("rebuild state: %w", err)
		}
		if err := r.snapshots.disbelieve(m.ID, err); err != nil {
			return nil, err
		}
		all = all[1:]
	}
	return r.reaches(applied, all)
}

// gap is what lies between the newest snapshot that can be believed and the log.
type gap struct {
	dir         string
	base, least uint64 // the index of that snapshot, and the least that would do
}

func (g *gap) damage() *DamagedError {
	return &DamagedError{Path: g.dir, Index: g.base + 1, Reason: fmt.Sprintf(
		"no snapshot that can be believed has it, nor has the log; one of entry %d or later is needed", g.least)}
}

// reaches checks that a log begins and ends where it has to: right behind the
// snapshot from which Raft counts, and not before what the state has already, nor
// before what was in a snapshot. It returns the gap if there is one.
func (r *recovery) reaches(applied uint64, all []*manifest) (*gap, error) {
	first, err := r.logs.FirstIndex()
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	last, err := r.logs.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	newest, err := r.snapshots.newest()
	if err != nil {
		return nil, err
	}
	base, known, least := uint64(0), last, max(first, 1)-1
	if len(all) > 0 {
		base, known = all[0].Index, max(last, all[0].Applied)
	}
	if newest > last {
		least = newest // what the log ends with, it has replaced
	}
	if base < least {
		return &gap{r.config.Dir, base, least}, nil
	}
	if applied > known {
		return nil, &DamagedError{Path: r.config.Dir, Index: applied, Reason: fmt.Sprintf(
			"it was applied, and the log ends with %d", last)}
	}
	return nil, nil
}
