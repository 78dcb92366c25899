package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// checkpoints makes copies of the state for backups.
type checkpoints struct {
	machine   *state.Machine
	snapshots *snapshot.Store // nil if everything is in memory
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
func (c *checkpoints) PrepareCheckpoint(ctx context.Context) error {
	index, _ := c.machine.Applied()
	return c.machine.Flush(ctx, index)
}

// CheckpointAtCut waits until this node applies a cut (RecordCut), and writes the state right after
// that entry to the directory dir, which must not exist and must be on the file system of Config.Dir.
// Most of the files are links to files in use: they stay on disk until dir is removed. Records are
// applied meanwhile. The files are flushed, but not synced.
//
// Errors: ErrCutMissed; errors.ErrUnsupported without Config.Dir; that of ctx if it ends before the
// cut; that of the store.
func (c *checkpoints) CheckpointAtCut(ctx context.Context, cut uint64, dir string) (*Checkpoint, error) {
	if c.snapshots == nil {
		return nil, fmt.Errorf("make a checkpoint of a state in memory: %w", errors.ErrUnsupported)
	}
	at, err := c.machine.CheckpointAtCut(ctx, cut, dir)
	if err != nil {
		return nil, fmt.Errorf("make a checkpoint: %w", err)
	}
	files, err := c.snapshots.Checksums(dir, at.Database)
	if err != nil {
		return nil, fmt.Errorf("read the checkpoint: %w", err)
	}
	made := &Checkpoint{Index: at.Index, Term: at.Term, Database: at.Database}
	for _, f := range files {
		made.Files = append(made.Files, CheckpointFile{f.Name, f.Size, f.CRC32C, snapshot.IsImmutable(f.Name)})
	}
	return made, nil
}
