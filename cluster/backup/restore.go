package backup

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/backup"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Target is the first node of a restored cluster.
type Target struct {
	// Dir becomes the directory of the node. It must not exist, or be empty. Required.
	Dir string
	// NodeID is that of the node's Config, and not that of a node that was removed from the
	// cluster. Required.
	NodeID string
	// Address is where other nodes reach the node: Config.Advertise, or Config.Listen. "" for a
	// node without either.
	Address string
	// ClusterID is that of the Config. Defaults to the one in the backup.
	ClusterID string
	// Until is the point up to which entries are restored. Defaults to the end of the last backup.
	Until Point
	// Logger gets what the state store reports. Defaults to slog.Default().
	Logger *slog.Logger
}

// restoringSuffix ends the name of a directory that is being written.
const restoringSuffix = ".restoring"

// Restore writes the directory of the first node of a new cluster, from a full backup and the
// incremental ones after it, in the order in which they were made. The cluster continues from the
// last of them, or from an earlier point ([Target.Until]). Start the node with that directory; then
// start the other nodes with empty directories and Config.Join. With the same node IDs as before,
// too: the restored cluster refuses their old directories.
//
// The Info is that of the restored state. Restore needs room for all files that any of the backups
// has. Errors: [ErrDamaged], also for bytes after the end of a backup; a [*replay.InvalidError] for
// an invalid Target, or for backups that do not continue each other; a [*cluster.VersionError] for
// one of a cluster with a newer protocol than this build speaks; [cluster.ErrRemoved] for the ID of
// a removed node; a *journal.LockedError while another process restores to Dir; a system error, or
// one of the state store; that of ctx. After an error the directory does not exist.
func Restore(ctx context.Context, to Target, backups ...io.Reader) (*Info, error) {
	info, err := restore(ctx, to, backups)
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	return info, nil
}

func restore(ctx context.Context, to Target, backups []io.Reader) (info *Info, err error) {
	target := &backup.Target{Dir: to.Dir, NodeID: to.NodeID, ClusterID: to.ClusterID, Address: to.Address}
	if to.NodeID == "" {
		return nil, invalid("Target.NodeID", "is empty")
	}
	if err := errors.Join(target.Check(), to.Until.check()); err != nil {
		return nil, err
	}
	stage, err := target.OpenStage(restoringSuffix)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	pool := &filePool{dir: stage.Path("files"), node: to.NodeID}
	if info, err = pool.addUntil(ctx, to.Until, backups); err != nil {
		return nil, err
	}
	if err := to.write(ctx, stage.Path("node"), info, pool); err != nil {
		return nil, err
	}
	return info, stage.Publish("node")
}

// A Verification is what [Verify] has read.
type Verification struct {
	// Info describes the last of the backups.
	Info *Info
	// Instances, Executions and Events are counted over all partitions.
	Instances, Executions, Events uint64
}

// Verify restores backups, as [Restore] does, into a new directory in the directory scratch,
// recomputes the chain hash of each history of each instance, and compares it with the recorded
// one. It removes what it has written. An empty scratch means the default directory for temporary
// files.
//
// It needs the room that Restore needs. Errors: those of Restore; [ErrDamaged] if a history
// differs.
func Verify(ctx context.Context, scratch string, backups ...io.Reader) (*Verification, error) {
	return verify(ctx, scratch, Point{}, backups)
}

func verify(ctx context.Context, scratch string, until Point, backups []io.Reader) (v *Verification, err error) {
	dir, err := os.MkdirTemp(scratch, "tenuto-verify-")
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The ID is the name of the new directory, which has a random number: no removed node has it.
	to := Target{Dir: filepath.Join(dir, "node"), NodeID: filepath.Base(dir), Until: until, Logger: slog.New(slog.DiscardHandler)}
	info, err := restore(ctx, to, backups)
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	v = &Verification{Info: info}
	for i := range info.Partitions {
		of, err := journal.VerifyState(ctx, journal.PartitionDir(to.Dir, i), to.Logger)
		if errors.Is(err, state.ErrCorrupt) {
			err = damaged(err)
		}
		if err != nil {
			return nil, fmt.Errorf("verify partition %d: %w", i, err)
		}
		v.Instances, v.Executions, v.Events = v.Instances+of.Instances, v.Executions+of.Executions, v.Events+of.Events
	}
	return v, nil
}

// VerifyAt verifies, like [Verify], what [RestoreAt] restores.
func VerifyAt(ctx context.Context, scratch string, from Sink, at time.Time) (*Verification, error) {
	readers, closeAll, err := openAt(ctx, from, at)
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	v, err := verify(ctx, scratch, Point{Time: at}, readers)
	return v, errors.Join(err, closeAll())
}

// write writes the directories of all partitions.
func (t *Target) write(ctx context.Context, dir string, info *Info, pool *filePool) error {
	lineage := &journalpb.Lineage{
		Id: backup.NewID(), Kind: journalpb.Lineage_KIND_RESTORED, Source: info.ID, Time: time.Now().UnixNano(),
	}
	identity := ""
	for i, p := range info.Partitions {
		if err := ctx.Err(); err != nil {
			return err
		}
		index, term := p.state()
		r := &journal.Restore{
			From: &journal.Checkpoint{Index: index, Term: term},
			Config: journal.Config{
				Node: t.NodeID, Address: t.Address, Cluster: cmp.Or(t.ClusterID, info.Cluster), Identity: identity,
				Partitions: len(info.Partitions), Partition: i, Dir: journal.PartitionDir(dir, i), Logger: cmp.Or(t.Logger, slog.Default()),
			},
			Fill:    func(to string) error { return pool.moveTo(to, i, p.Files, info.ID) },
			Entries: pool.entries(i, &p, info.ID),
			Lineage: lineage, Elapsed: time.Since(info.Time), Latest: time.Now(),
		}
		var err error
		if identity, err = r.Run(); err != nil {
			return err
		}
	}
	return nil
}

// A filePool has the files of the backups that were read, in a directory for each backup and
// partition.
type filePool struct{ dir, node string } // node is that of the target

func (p *filePool) path(backup string, partition int, name string) string {
	return filepath.Join(p.dir, backup, fmt.Sprint(partition), name)
}

// add reads a stream that continues the backup before, nil for the first.
func (p *filePool) add(from io.Reader, before *Info) (*Info, error) {
	var id string
	accept := func(info *Info) error {
		id = info.ID
		switch {
		case before == nil && info.Base != "":
			return invalid("first", "is an incremental one: a full backup must come first")
		case before != nil && info.Base != "" && info.Base != before.ID:
			return invalid("order", fmt.Sprintf("has %s, which continues %q, after %s", info.ID, info.Base, before.ID))
		case before != nil && info.Base != "" && !info.isAfter(before):
			return invalid("order", fmt.Sprintf("has %s, which continues %s, but has an earlier state, or one of another cluster", info.ID, before.ID))
		}
		if err := info.checkProtocol(p.node); err != nil {
			return err
		}
		return os.MkdirAll(filepath.Join(p.dir, info.ID), 0o700)
	}
	return readStream(from, accept, func(partition int, f *File) (io.WriteCloser, error) {
		path := p.path(id, partition, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		return &syncedFile{file}, nil
	})
}

// syncedFile is synced when it is closed.
type syncedFile struct{ *os.File }

// Close implements io.Closer.
func (f *syncedFile) Close() error { return errors.Join(f.Sync(), f.File.Close()) }

// addUntil reads streams until they have a point, and returns the description of the state there.
func (p *filePool) addUntil(ctx context.Context, until Point, backups []io.Reader) (info *Info, err error) {
	for i, from := range backups {
		if from == nil {
			return nil, invalid("backups", fmt.Sprintf("have nil at index %d", i))
		}
		before := info
		if info, err = p.add(&contextReader{ctx, from}, before); err != nil {
			return nil, fmt.Errorf("backup %d of %d: %w", i+1, len(backups), err)
		}
		if until.isIn(info) {
			return p.shorten(info, before, until)
		}
	}
	switch {
	case info == nil:
		return nil, invalid("backups", "are missing")
	case until.Index > 0:
		return nil, invalid("Target.Until.Index", fmt.Sprintf("is %d: the last backup ends at entry %d of the first partition", until.Index, info.Partitions[0].Index))
	}
	return info, nil
}

// entries yields the entries of a partition in the backup id, up to those in of.
func (p *filePool) entries(partition int, of *Partition, id string) iter.Seq2[*journal.Entry, error] {
	return func(yield func(*journal.Entry, error) bool) {
		index, term := of.state()
		for i := range of.Log {
			for e, err := range p.readLog(partition, &of.Log[i], id) {
				if err == nil && e.Index > of.Index {
					break
				}
				if err == nil && e.Index <= index {
					err = damaged(fmt.Errorf("entry %d follows %d", e.Index, index))
				}
				if !yield(e, err) || err != nil {
					return
				}
				index, term = e.Index, e.Term
			}
		}
		if index != of.Index || term != of.Term {
			yield(nil, damaged(fmt.Errorf("the log ends at entry %d of term %d, not at %d of %d", index, term, of.Index, of.Term)))
		}
	}
}

// readLog yields the entries of a file of the log of a partition in the backup id.
func (p *filePool) readLog(partition int, f *File, id string) iter.Seq2[*journal.Entry, error] {
	return func(yield func(*journal.Entry, error) bool) {
		file, err := os.Open(p.path(cmp.Or(f.In, id), partition, f.Name))
		if errors.Is(err, os.ErrNotExist) {
			err = damaged(fmt.Errorf("no backup before it has the file %s", f.Name))
		}
		if err != nil {
			yield(nil, err)
			return
		}
		defer file.Close() // it was only read
		for e, err := range journal.ReadEntries(bufio.NewReaderSize(file, partBytes), f.Size) {
			if errors.Is(err, state.ErrCorrupt) {
				err = damaged(err)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// moveTo moves the files of a partition in the backup id to a directory.
func (p *filePool) moveTo(dir string, partition int, files []File, id string) error {
	for _, f := range files {
		from := p.path(cmp.Or(f.In, id), partition, f.Name)
		if info, err := os.Stat(from); err != nil || info.Size() != f.Size {
			return errors.Join(damaged(fmt.Errorf("no backup before it has the file %s", f.Name)), err)
		}
		if err := os.Rename(from, filepath.Join(dir, f.Name)); err != nil {
			return err
		}
	}
	return nil
}
