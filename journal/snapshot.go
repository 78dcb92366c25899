package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
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

// checkpoints makes checkpoints of the state for backups, and views for comparisons.
type checkpoints struct {
	machine   *state.Machine
	snapshots *snapshot.Store // nil if everything is in memory
	logs      *raftlog.Checked
	dir       string
	bytesMax  uint64 // Config.RetainBytes

	retaining sync.Mutex // held during RetainLog
}

func openCheckpoints(config *Config, machine *state.Machine, snapshots *snapshot.Store, logs *raftlog.Checked) *checkpoints {
	c := &checkpoints{machine: machine, snapshots: snapshots, logs: logs, dir: config.Dir, bytesMax: config.RetainBytes}
	if c.dir == "" {
		return c
	}
	retained, err := readRetained(c.dir)
	if err != nil {
		config.Logger.Warn("cannot read which log entries to keep, so the next backup may be larger", "error", err)
	}
	c.logs.Retain(retained.entries(), c.bytesMax)
	return c
}

// A Checkpoint describes the files that contain the state of a partition right after one entry.
type Checkpoint struct {
	Index, Term uint64 // of that entry
	// AppendedAt is when the leader appended that entry, by its wall clock, or if this node no
	// longer knows that, when it made the checkpoint.
	AppendedAt time.Time
	// Database identifies the node's database. In two checkpoints of one database, immutable files
	// with the same name are identical.
	Database string
	Files    []CheckpointFile
}

// A CheckpointFile is a file of a checkpoint.
type CheckpointFile struct {
	Name   string
	Size   int64
	CRC32C uint32
	// Immutable says that the file is written only once; see Checkpoint.Database.
	Immutable bool
}

// ErrCutMissed means that there is no checkpoint at a cut. Another cut may succeed.
var ErrCutMissed = state.ErrCutMissed

// PrepareCheckpoint flushes what is applied to the state store. A checkpoint soon afterwards has
// little to write, and is less likely to be missed because of a flush in progress. The error is
// that of ctx or of the store.
func (c *checkpoints) PrepareCheckpoint(ctx context.Context) error {
	index, _ := c.machine.Applied()
	return c.machine.Flush(ctx, index)
}

// CheckpointAtCut waits until this node applies a cut (see RecordCut), and writes the state right
// after that entry to the directory dir, which must not exist and must be on the file system of
// Config.Dir. Most of the files are hard links to files of the database, whose disk space is freed
// only after dir is removed. The node applies further records meanwhile. The files are complete,
// but not synced.
//
// Errors: ErrCutMissed; errors.ErrUnsupported without Config.Dir; the error of ctx if it ends
// before the cut is applied; errors of the store and of the log.
func (c *checkpoints) CheckpointAtCut(ctx context.Context, cut uint64, dir string) (*Checkpoint, error) {
	if c.snapshots == nil {
		return nil, fmt.Errorf("make a checkpoint of a journal in memory: %w", errors.ErrUnsupported)
	}
	at, err := c.machine.CheckpointAtCut(ctx, cut, dir)
	if err != nil {
		return nil, fmt.Errorf("make a checkpoint: %w", err)
	}
	var last raft.Log
	err = c.logs.GetLog(at.Index, &last)
	if errors.Is(err, raft.ErrLogNotFound) { // removed during the flush
		last.AppendedAt, err = time.Now(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the last entry of a checkpoint: %w", err)
	}
	files, err := c.snapshots.Checksums(dir, at.Database)
	if err != nil {
		return nil, fmt.Errorf("compute the checksums of a checkpoint: %w", err)
	}
	made := &Checkpoint{Index: at.Index, Term: at.Term, AppendedAt: last.AppendedAt, Database: at.Database}
	for _, f := range files {
		made.Files = append(made.Files, CheckpointFile{f.Name, f.Size, f.CRC32C, snapshot.IsImmutable(f.Name)})
	}
	return made, nil
}

const (
	// retainedFile is the file with what RetainLog keeps, in Config.Dir.
	retainedFile = "retained"
	// retainedFor is how long RetainLog keeps entries: a day longer than the week between weekly
	// backups.
	retainedFor = 8 * 24 * time.Hour
	// retainedMax bounds the indexes that RetainLog has to remember.
	retainedMax = 4
)

// retained are the indexes after which the log is kept, ascending.
type retained []retainedIndex

type retainedIndex struct {
	After uint64    `json:"after"`
	Since time.Time `json:"since"`
}

// readRetained reads the file in a directory, which may be missing.
func readRetained(dir string) (retained, error) {
	encoded, err := os.ReadFile(filepath.Join(dir, retainedFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var r retained
	if err == nil {
		err = json.Unmarshal(encoded, &r)
	}
	return r, err
}

// entries returns the entries to keep.
func (r retained) entries() (kept []raftlog.Retained) {
	for _, i := range r {
		kept = append(kept, raftlog.Retained{After: i.After, Until: i.Since.Add(retainedFor)})
	}
	return kept
}

// RetainLog keeps the entries after an index, so that [Journal.WriteEntries] can copy them later:
// for 8 days, and while they have at most Config.RetainBytes. The index replaces an earlier one,
// instead; each may be 0 for none. The indexes are stored in Config.Dir; of more than four, the
// lowest are dropped. After a write to a full disk nothing is kept until the next call or start.
// The error is a system error; nothing has changed then.
func (c *checkpoints) RetainLog(after, instead uint64) error {
	c.retaining.Lock()
	defer c.retaining.Unlock()
	r, err := readRetained(c.dir)
	if err != nil { // it is replaced
		r = nil
	}
	now := time.Now()
	r = slices.DeleteFunc(r, func(i retainedIndex) bool {
		return i.After == instead || i.After == after || now.Sub(i.Since) >= retainedFor
	})
	if after > 0 {
		r = append(r, retainedIndex{after, now})
	}
	slices.SortFunc(r, func(a, b retainedIndex) int { return cmp.Compare(a.After, b.After) })
	r = r[max(len(r)-retainedMax, 0):]
	encoded, err := json.Marshal(r)
	if err == nil {
		err = diskfile.WriteAtomic(c.dir, retainedFile, encoded)
	}
	if err != nil {
		return fmt.Errorf("keep the log after entry %d: %w", after, err)
	}
	c.logs.Retain(r.entries(), c.bytesMax)
	return nil
}

// ErrViewMissed means that there is no view at a comparison. Another comparison may succeed.
var ErrViewMissed = state.ErrViewMissed

// PrepareView requests a view of the state at a comparison; see state.Machine.PrepareView. Without
// Config.Dir it returns errors.ErrUnsupported.
func (c *checkpoints) PrepareView(ctx context.Context, number uint64, pause bool) (*state.PendingView, error) {
	return c.machine.PrepareView(ctx, number, pause)
}
