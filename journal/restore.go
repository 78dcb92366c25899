package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Restore is the directory of a partition whose only member continues from a checkpoint.
type Restore struct {
	// Config supplies Node, Address, Cluster, Partitions, Partition, Dir, Identity and Logger, as for
	// Open. Dir must not belong to a node.
	Config Config
	From   *Checkpoint
	// Fill writes the files of From into a directory, verified and synced.
	Fill func(dir string) error
	// Lineage begins with the restored partition. Its index is set.
	Lineage *journalpb.Lineage
	// Elapsed is how long ago the checkpoint was made. The cluster time continues as after an outage of
	// that duration.
	Elapsed time.Duration
}

// Run writes the directory. After an error, or a crash, it must not be used. It returns the identity of
// the directory, which those of the other partitions must have.
//
// Errors: an *IdentityError or a *LockedError for a directory in use; one that wraps state.ErrCorrupt if
// the files are not what From says; a *FormatError if another version wrote them; a system error.
func (r *Restore) Run() (identity string, err error) {
	c := r.Config.withDefaults()
	if HasOwner(c.Dir) {
		return "", &IdentityError{Dir: c.Dir, Want: "an empty directory", Have: "one of a node"}
	}
	d, err := openDirectory(c.Dir, directoryOwner{c.Node, c.Cluster, c.Partitions, c.Partition}, c.Identity)
	if err != nil {
		return "", withFileErrors(err)
	}
	defer func() { err = withFileErrors(errors.Join(err, d.close())) }()
	snapshots, err := snapshot.Open(pebblestore.OwnerOnly, c.Dir, c.Node, c.Cluster, c.Logger)
	if err != nil {
		return "", err
	}
	snapshots.Partition = c.Partition
	if err := r.writeState(&c, d, snapshots); err != nil {
		return "", fmt.Errorf("restore partition %d: %w", c.Partition, err)
	}
	return d.self.Identity, r.writeTerm(&c, d)
}

// writeState installs the checkpoint, begins the lineage in it, and takes a snapshot of that.
func (r *Restore) writeState(c *Config, d *directory, snapshots *snapshot.Store) (err error) {
	path := pebblestore.OwnerOnly.PathJoin(c.Dir, stateDir)
	machine, err := openMachine(pebblestore.Options{Dir: path, FS: noLockFS{snapshots.FS}, Logger: c.Logger, CacheBytes: c.StateCacheBytes}, c.stateOptions())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	if err := machine.Install(r.Fill); err != nil {
		return err
	}
	if index, term := machine.Applied(); index != r.From.Index || term != r.From.Term {
		return fmt.Errorf("the state ends at entry %d of term %d, not at %d of %d: %w", index, term, r.From.Index, r.From.Term, state.ErrCorrupt)
	}
	if err := r.beginLineage(machine, c.Node); err != nil {
		return err
	}
	index, term := machine.Applied()
	members := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(c.Node), Address: peer.Address(c.Address, d.self.Identity)}}}
	sink, err := snapshots.Create(raft.SnapshotVersionMax, index, term, members, index, nil)
	if err != nil {
		return err
	}
	if err := snapshot.New(machine, index).Persist(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// beginLineage applies, as the entry after the last one, a new epoch and the lineage.
func (r *Restore) beginLineage(machine *state.Machine, node string) error {
	index, term := machine.Applied()
	lineage := proto.CloneOf(r.Lineage)
	lineage.Index = index
	latest, err := latestUpdate(machine)
	if err != nil {
		return err
	}
	// Events may be later than the recorded clock. The lineage begins after all of them.
	clock := max(machine.Clock().UnixNano()+int64(max(r.Elapsed, 0)), latest+1)
	epoch := &journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: &journalpb.Epoch{Node: node, Clock: clock}}}
	begun := &journalpb.Record{Command: &journalpb.Record_MetadataChange{MetadataChange: &journalpb.MetadataChange{
		Epoch: machine.Epoch() + 1, Lineage: lineage,
	}}}
	for _, record := range []*journalpb.Record{epoch, begun} {
		encoded, err := proto.Marshal(record)
		if err != nil {
			return fmt.Errorf("encode record: %w", err)
		}
		if _, err := machine.Apply(encoded); err != nil {
			return err
		}
	}
	return machine.Advance(index+1, term+1)
}

// latestUpdate returns the cluster time of the latest event in the state, 0 if there is none.
func latestUpdate(machine *state.Machine) (int64, error) {
	query := &index.Query{Order: index.ByUpdated, Descending: true}
	var after *index.Cursor
	for {
		page, err := machine.Query(context.Background(), query, after, 1)
		if err != nil {
			return 0, fmt.Errorf("find the latest event: %w", err)
		}
		if len(page.Rows) > 0 {
			return page.Rows[0].Updated, nil
		}
		if !page.More {
			return 0, nil
		}
		after = &page.Next
	}
}

// writeTerm creates the log and records the term that the snapshot has.
func (r *Restore) writeTerm(c *Config, d *directory) error {
	logs, stable, err := d.openLogStore(c)
	if err != nil {
		return err
	}
	err = stable.SetUint64([]byte(raftlog.KeyTerm), r.From.Term+1)
	return errors.Join(err, stable.Close(), logs.Close())
}

// Verified counts what VerifyState has read.
type Verified struct{ Instances, Executions, Events uint64 }

// VerifyState recomputes the hash chains of all histories in the state of a partition that Restore has
// written to dir, and compares them with the recorded ones.
//
// Errors: one that wraps state.ErrCorrupt if a history differs or the state cannot be read; a
// *FormatError if another version wrote it; that of ctx.
func VerifyState(ctx context.Context, dir string, logger *slog.Logger) (v Verified, err error) {
	path := pebblestore.OwnerOnly.PathJoin(dir, stateDir)
	c := Config{Dir: dir, Logger: logger}.withDefaults()
	machine, err := openMachine(pebblestore.Options{Dir: path, FS: noLockFS{pebblestore.OwnerOnly}, Logger: c.Logger, CacheBytes: c.StateCacheBytes}, c.stateOptions())
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	for in := range machine.Instances() {
		executions, events, err := state.VerifyHistories(machine, in.Instance)
		v.Instances, v.Executions, v.Events = v.Instances+1, v.Executions+executions, v.Events+events
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return v, err
		}
	}
	return v, machine.Err() // of a store that ended the iteration
}

// Publish gives a restored directory of a node its name, as the last step: before it, no node can be
// started there. Both must be in the same directory; to must not exist, or be empty.
func Publish(from, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace the directory, which must be empty: %w", err)
	}
	if err := errors.Join(os.Rename(from, to), diskfile.SyncDir(vfs.Default, filepath.Dir(to))); err != nil {
		return fmt.Errorf("name the restored directory: %w", err)
	}
	return nil
}
