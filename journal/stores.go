package journal

import (
	"errors"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

// stores hold Raft's log, votes and snapshots, without verification and failStop.
type stores struct {
	logs      *raftlog.Raw
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	// snapshotsOnDisk is the same store as snapshots; nil if everything is in memory.
	snapshotsOnDisk *snapshot.Store
	close           func() error
}

// openStores opens the stores in c.Dir, the directory d. If c.Dir is empty, they are in memory.
func openStores(c *Config, d *directory, logger hclog.Logger) (*stores, error) {
	s, err := openRawStores(c, d, logger)
	if err == nil && c.tests.wrapStores != nil {
		c.tests.wrapStores(s)
	}
	return s, err
}

func openRawStores(c *Config, d *directory, logger hclog.Logger) (*stores, error) {
	if c.Dir == "" {
		memory := raft.NewInmemStore()
		noClose := func() error { return nil }
		return &stores{raftlog.NewRaw(memory, "memory", noClose), memory, raft.NewInmemSnapshotStore(), nil, noClose}, nil
	}
	logs, stable, err := d.openLogStore(c)
	if err != nil {
		return nil, err
	}
	closeLogs := func() error {
		return errors.Join(logs.Close(), stable.Close())
	}
	snapshots, err := snapshot.Open(pebblestore.OwnerOnly, c.Dir, c.Node, c.Cluster, c.Logger)
	if err != nil {
		return nil, errors.Join(err, closeLogs())
	}
	snapshots.Partition = c.Partition
	return &stores{logs, stable, snapshots, snapshots, closeLogs}, nil
}

// openLogStore opens or creates the log and the stable file in c.Dir, the directory d, and records
// the creation in d. Both files are on disk before the record, and the record is on disk before the
// node votes or acknowledges anything. So a recorded file that is missing was lost.
func (d *directory) openLogStore(c *Config) (*raftlog.Raw, *raftlog.StableFile, error) {
	raw, stable, err := raftlog.OpenFiles(c.Dir, d.created&createdLog != 0, c.tests.noSync)
	if err != nil {
		return nil, nil, err
	}
	if err := d.recordCreated(createdLog); err != nil {
		return nil, nil, errors.Join(err, raw.Close(), stable.Close())
	}
	return raw, stable, nil
}
