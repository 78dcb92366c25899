package journal

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

const stateDir = "state"

// openMachine opens the state of a node, such that what Raft is going to apply
// is all that it lacks: as it was left, or if it is damaged or behind, from the
// newest snapshot that can be believed. It refuses to go on without entries that
// are in neither.
func openMachine(c *Config, snapshots *checkpoints, logs raft.LogStore) (*state.Machine, error) {
	if c.Dir == "" {
		return state.New(), nil
	}
	options := pebblestore.Options{
		Dir: snapshots.fs.PathJoin(c.Dir, stateDir), FS: snapshots.fs, Logger: c.Logger, CacheBytes: c.StateCacheBytes,
	}
	machine, err := openStored(options, c.StateMemoryBytes)
	if errors.Is(err, state.ErrCorrupt) {
		c.Logger.Error("the state is damaged and will be rebuilt", "error", err)
		if err := pebblestore.Discard(options); err != nil {
			return nil, err
		}
		machine, err = openStored(options, c.StateMemoryBytes)
	}
	if err != nil {
		return nil, err
	}
	if err := catchUp(c, machine, snapshots, logs); err != nil {
		return nil, errors.Join(err, machine.Close())
	}
	return machine, nil
}

// openStored opens a machine with a store.
func openStored(o pebblestore.Options, memoryBytes int) (*state.Machine, error) {
	s, err := pebblestore.Open(o)
	if err != nil {
		return nil, err
	}
	return state.Open(s, state.Options{MemoryBytes: memoryBytes})
}

// catchUp installs the newest snapshot that can be believed in a machine that is
// behind it, and checks that the log has the rest.
func catchUp(c *Config, machine *state.Machine, snapshots *checkpoints, logs raft.LogStore) error {
	all, err := snapshots.manifests()
	if err != nil {
		return err
	}
	applied, _ := machine.Applied()
	for len(all) > 0 && applied < all[0].Applied {
		m := all[0]
		err := machine.Install(func(dir string) error { return snapshots.install(m, dir) })
		if err == nil {
			c.Logger.Info("the state was rebuilt from a snapshot", "index", m.Applied)
			applied = m.Applied
			break
		}
		var damaged *DamagedError
		if !errors.As(err, &damaged) && !errors.Is(err, state.ErrCorrupt) {
			return fmt.Errorf("rebuild state: %w", err)
		}
		if err := snapshots.disbelieve(m.ID, err); err != nil {
			return err
		}
		all = all[1:]
	}
	lost, err := snapshots.lost()
	if err != nil {
		return err
	}
	return reaches(c, applied, all, lost, logs)
}

// reaches checks that a log begins and ends where it has to: right behind the
// snapshot from which Raft counts, and not before what the state has already. lost
// says that there was a snapshot which cannot be believed.
func reaches(c *Config, applied uint64, all []*manifest, lost bool, logs raft.LogStore) error {
	first, err := logs.FirstIndex()
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	last, err := logs.LastIndex()
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	base, known := uint64(0), last
	if len(all) > 0 {
		base, known = all[0].Index, max(last, all[0].Applied)
	}
	if last > 0 && first > base+1 || len(all) == 0 && lost && first != 1 {
		return &DamagedError{Path: c.Dir, Index: base + 1, Reason: fmt.Sprintf(
			"no snapshot that can be believed has it, and the log begins with %d", first)}
	}
	if applied > known {
		return &DamagedError{Path: c.Dir, Index: applied, Reason: fmt.Sprintf(
			"it was applied, and the log ends with %d", last)}
	}
	return nil
}
