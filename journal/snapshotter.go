package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// The Raft library takes a snapshot after a number of entries. Entries differ in size by a factor
// of thousands. So the journal also takes a snapshot by bytes, and sets how many entries are
// retained after it.

// snapshotRetryInterval is the pause after a snapshot that could not be taken.
const snapshotRetryInterval = 5 * time.Second

// snapshotByBytes takes a snapshot whenever the log has grown by SnapshotBytes since the last one,
// until ctx ends.
func (j *Journal) snapshotByBytes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.failStop.failed:
			return
		case <-j.logs.Checked.SnapshotDue():
		}
		err := j.snapshot()
		if err == nil {
			continue
		}
		j.stats.snapshotFailures.Add(1)
		j.config.Logger.Warn("cannot take snapshot, trying again", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(snapshotRetryInterval):
			j.logs.Checked.RequestSnapshot()
		}
	}
}

// snapshot takes one snapshot and truncates the log before it.
func (j *Journal) snapshot() error {
	started := time.Now()
	if err := j.setTrailingLogs(); err != nil {
		return err
	}
	err := j.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take snapshot: %w", err)
	}
	j.stats.snapshotTime.observe(uint64(time.Since(started)))
	return nil
}

// setTrailingLogs sets how many entries Raft retains after the next snapshot: at most TrailingLogs,
// and at most half of SnapshotBytes.
func (j *Journal) setTrailingLogs() error {
	entries := min(j.config.TrailingLogs, j.logs.Checked.CountWithin(j.config.SnapshotBytes/2))
	if j.raft.ReloadableConfig().TrailingLogs == entries {
		return nil
	}
	return j.reloadRaftConfig(func(c *raft.ReloadableConfig) { c.TrailingLogs = entries })
}

// A Checkpoint describes files that hold the state of a partition after one entry.
type Checkpoint struct {
	Index, Term uint64 // of the entry
	// Database names the database. Immutable files of the same name in two checkpoints of one database
	// are identical.
	Database string
	Files    []CheckpointFile
}

// A CheckpointFile is a file of a checkpoint.
type CheckpointFile struct {
	Name   string
	Size   int64
	CRC32C uint32
	// Immutable says that the file is written once; see Checkpoint.Database.
	Immutable bool
}

// ErrCutMissed means that there is no checkpoint at a cut. Another cut may succeed.
var ErrCutMissed = state.ErrCutMissed

// PrepareCheckpoint writes to the state store what is applied, so that a checkpoint soon after has
// little to write and is not prevented by a flush. The error is ctx's or that of the store.
func (j *Journal) PrepareCheckpoint(ctx context.Context) error {
	index, _ := j.machine.Applied()
	return j.machine.Flush(ctx, index)
}

// CheckpointAtCut waits until this node applies a cut (RecordCut), and writes the state right after
// that entry to the directory dir, which must not exist and must be on the file system of Config.Dir.
// Most of the files are links to files in use: they stay on disk until dir is removed. Records are
// applied meanwhile. The files are flushed, but not synced.
//
// Errors: ErrCutMissed; errors.ErrUnsupported without Config.Dir; that of ctx if it ends before the
// cut; that of the store.
func (j *Journal) CheckpointAtCut(ctx context.Context, cut uint64, dir string) (*Checkpoint, error) {
	if j.snapshotsOnDisk == nil {
		return nil, fmt.Errorf("make a checkpoint of a state in memory: %w", errors.ErrUnsupported)
	}
	at, err := j.machine.CheckpointAtCut(ctx, cut, dir)
	if err != nil {
		return nil, fmt.Errorf("make a checkpoint: %w", err)
	}
	files, err := j.snapshotsOnDisk.Checksums(dir, at.Database)
	if err != nil {
		return nil, fmt.Errorf("read the checkpoint: %w", err)
	}
	c := &Checkpoint{Index: at.Index, Term: at.Term, Database: at.Database}
	for _, f := range files {
		c.Files = append(c.Files, CheckpointFile{f.Name, f.Size, f.CRC32C, snapshot.IsImmutable(f.Name)})
	}
	return c, nil
}
