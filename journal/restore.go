package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Restore is the directory of a partition whose only member continues from a checkpoint.
type Restore struct {
	// Config supplies Node, Address, Cluster, Partitions, Partition, Dir, Identity and Logger, as
	// for Open. Dir must not belong to a node.
	Config Config
	From   *Checkpoint
	// Fill writes the files of From into a directory, verified and synced.
	Fill func(dir string) error
	// Entries are those after From that are applied to it; nil: none.
	Entries iter.Seq2[*Entry, error]
	// Lineage begins with the restored partition. Its index is set.
	Lineage *journalpb.Lineage
	// Elapsed is how long ago the checkpoint was made. The cluster time continues as after an
	// outage of that duration, but not past Latest, unless it has reached that before. The zero
	// Latest sets no limit.
	Elapsed time.Duration
	Latest  time.Time

	// index and term are those of the last entry of the earlier lineage, at least; those that are
	// applied are known later. The new lineage begins with the next index and the next term.
	index, term uint64
}

// Run writes the directory. After an error, or a crash, it must not be used. It returns the
// identity of the directory, which those of the other partitions must have.
//
// Errors: an *IdentityError or a *LockedError for a directory in use; one that wraps
// state.ErrCorrupt if the files are not what From says; a *FormatError if another version wrote
// them; ErrRemoved if the state says that the node was removed; a system error.
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
	if r.Entries != nil {
		if err := applyEntries(machine, r.Entries); err != nil {
			return err
		}
	}
	index, term := machine.Applied()
	r.index, r.term = max(r.index, index), max(r.term, term)
	if slices.Contains(machine.RemovedNodes(), c.Node) { // a leader would remove it again
		return fmt.Errorf("%w: %s; use another node ID", ErrRemoved, c.Node)
	}
	if err := r.beginLineage(machine, c.Node); err != nil {
		return err
	}
	index, term = machine.Applied()
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
	lineage := proto.CloneOf(r.Lineage)
	lineage.Index = r.index
	latest, err := latestUpdate(machine)
	if err != nil {
		return err
	}
	// Events may be later than the recorded clock. The lineage begins after all of them.
	clock := max(machine.Clock().UnixNano()+int64(r.elapsedAfter(machine.Clock().UnixNano())), latest+1)
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
	return machine.Advance(r.index+1, r.term+1)
}

// elapsedAfter returns by how much to advance a recorded clock.
func (r *Restore) elapsedAfter(clock int64) time.Duration {
	elapsed := r.Elapsed
	if !r.Latest.IsZero() {
		elapsed = min(elapsed, r.Latest.Sub(time.Unix(0, clock)))
	}
	return max(elapsed, 0)
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
	err = stable.SetUint64([]byte(raftlog.KeyTerm), r.term+1)
	return errors.Join(err, stable.Close(), logs.Close())
}

// Verified counts what VerifyState has read.
type Verified struct{ Instances, Executions, Events uint64 }

// VerifyState recomputes the hash chains of all histories in the state of a partition that Restore
// has written to dir, and compares them with the recorded ones.
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

// A Stage is a directory beside the place of a node's new directory, where that one is written. It
// is locked, so one process at a time uses it.
type Stage struct {
	dir, to string
	lock    *os.File
}

// OpenStage creates the stage of the directory to, whose name has the suffix in addition, or
// empties the one that a crash has left. to must not exist, or be empty: it is removed. The caller
// must call Close. The error is a *LockedError while another process uses the stage, or a system
// error.
func OpenStage(to, suffix string) (*Stage, error) {
	s := &Stage{dir: filepath.Clean(to) + suffix, to: filepath.Clean(to)}
	if err := s.open(); err != nil {
		return nil, err
	}
	err := s.empty()
	if err == nil {
		err = s.makeRoom()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open creates and locks the directory.
func (s *Stage) open() (err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(s.dir, lockFile)
	if s.lock, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		_ = os.Remove(s.dir) // fails if it has files
		return err
	}
	held, err := diskfile.TryLock(s.lock)
	if err == nil && !s.isNamed(path) {
		held, err = true, errors.New("removed by another process") // which has just ended
	}
	if held {
		err = &LockedError{Dir: s.dir}
	}
	if err != nil {
		return errors.Join(err, s.lock.Close())
	}
	return nil
}

// isNamed reports whether the lock still is the file of a name.
func (s *Stage) isNamed(path string) bool {
	locked, err := s.lock.Stat()
	named, namedErr := os.Lstat(path)
	return err == nil && namedErr == nil && os.SameFile(locked, named)
}

// empty removes what a crash has left.
func (s *Stage) empty() error {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		if e.Name() != lockFile {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, e.Name())))
		}
	}
	return err
}

// makeRoom removes the empty directory at the place of the new one. For example, a mount point
// cannot be removed: that must not be noticed only when all is written.
func (s *Stage) makeRoom() error {
	if err := os.Remove(s.to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace the directory, which must be empty: %w", err)
	}
	return nil
}

// Path returns the path of a file of the stage.
func (s *Stage) Path(name string) string { return filepath.Join(s.dir, name) }

// Publish gives a directory in the stage its place, as the last step: before it, no node can be
// started there.
func (s *Stage) Publish(name string) error {
	if err := s.makeRoom(); err != nil {
		return err
	}
	if err := errors.Join(os.Rename(s.Path(name), s.to), diskfile.SyncDir(vfs.Default, filepath.Dir(s.to))); err != nil {
		return fmt.Errorf("name the restored directory: %w", err)
	}
	return nil
}

// Close removes the stage.
func (s *Stage) Close() error {
	if runtime.GOOS == "windows" { // which removes no file that is open
		return errors.Join(s.lock.Close(), os.RemoveAll(s.dir))
	}
	return errors.Join(os.RemoveAll(s.dir), s.lock.Close())
}

// A Survivor is the directory of a partition whose node has stopped. It stays locked until Close.
type Survivor struct {
	// The owner of the directory.
	Node, Cluster         string
	Partitions, Partition int
	// Members are the nodes of the partition according to the directory.
	Members []Peer
	// Index and Term are those of the last entry in the directory. Of several survivors, the one
	// with the highest term, and of these with the highest index, has all that the others have.
	Index, Term uint64
	// Applied is the last entry that is known to be committed. The entries after it may have been
	// acknowledged or not.
	Applied uint64
	// Clock is the cluster time at Applied.
	Clock time.Time
	// Epoch is the latest one at Applied.
	Epoch uint64
	// Lineage is the ID of the latest lineage, "" before the first. Terms and indexes of two
	// lineages cannot be compared.
	Lineage string

	applied     Checkpoint
	currentTerm uint64
	directory   *directory
	stores      *stores
	logs        *raftlog.FailStopLog
	machine     *state.Machine
}

// OpenSurvivor opens the directory of a partition, which it does not change. If the state is
// damaged, start the node without a majority instead: it rebuilds the state from its snapshots.
// Then stop it and try again.
//
// Errors: *LockedError if a node runs with the directory; *IdentityError if it belongs to no node;
// *DamagedError or *FormatError if it cannot be used; ErrRemoved if the node was removed; a system
// error.
func OpenSurvivor(dir string, partition int, logger *slog.Logger) (*Survivor, error) {
	owner, err := readOwner(dir)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	owner.partition = partition
	s := &Survivor{Node: owner.node, Cluster: owner.cluster, Partitions: owner.partitions, Partition: partition}
	c := Config{Node: owner.node, Cluster: owner.cluster, Partitions: owner.partitions, Partition: partition, Dir: dir, Logger: logger}.withDefaults()
	if err := s.open(&c, owner); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, withFileErrors(err)), s.Close())
	}
	return s, nil
}

func (s *Survivor) open(c *Config, owner directoryOwner) (err error) {
	if s.directory, err = openDirectory(c.Dir, owner, ""); err != nil {
		return err
	}
	if s.directory.created&createdLog == 0 {
		return &DamagedError{Path: c.Dir, Reason: "it has no log: its node has never been a member"}
	}
	if s.stores, err = openStores(c, s.directory, raftnode.NewLogger(c.Logger, false)); err != nil {
		return err
	}
	failStop := newFailStop(func(*NodeFailedError) {}, func(*NodeFailedError) {})
	disk := raftlog.NewDisk(c.StallLimit, func(uint64) {}, func(time.Duration) {}, func(time.Duration) {})
	if s.logs, _, err = raftlog.Open(s.stores.logs, s.stores.stable, failStop, disk, c.SnapshotBytes); err != nil {
		return err
	}
	// A node would rebuild a damaged state. Here it is the only copy: nothing is discarded.
	path := s.stores.snapshotsOnDisk.FS.PathJoin(c.Dir, stateDir)
	s.machine, err = openMachine(pebblestore.Options{Dir: path, FS: noLockFS{s.stores.snapshotsOnDisk.FS}, Logger: c.Logger, CacheBytes: c.StateCacheBytes}, c.stateOptions())
	if errors.Is(err, state.ErrCorrupt) {
		return &DamagedError{Path: path, Reason: err.Error()}
	}
	if err != nil {
		return err
	}
	return s.read(c)
}

// read reads where the directory ends, and the members.
func (s *Survivor) read(c *Config) error {
	if slices.Contains(s.machine.RemovedNodes(), s.Node) {
		return fmt.Errorf("%w: %s", ErrRemoved, s.Node)
	}
	s.Applied, s.Term = s.machine.Applied()
	s.applied, s.Clock = Checkpoint{Index: s.Applied, Term: s.Term}, time.Unix(0, s.machine.Clock().UnixNano())
	s.Epoch = s.machine.Epoch()
	s.Index, s.currentTerm = s.Applied, raftlog.CurrentTerm(s.stores.stable)
	s.Lineage = lineage.Latest(s.machine.Lineages()).GetId()
	last, err := s.logs.LastIndex()
	if err != nil {
		return err
	}
	first, err := s.logs.FirstIndex()
	if err != nil {
		return err
	}
	if last > s.Applied {
		if first > s.Applied+1 {
			return &DamagedError{Path: c.Dir, Index: s.Applied + 1, Reason: "the log begins later than the state ends"}
		}
		var log raft.Log
		if err := s.logs.GetLog(last, &log); err != nil {
			return err
		}
		s.Index, s.Term = last, log.Term
	}
	configurations := append(s.logs.Checked.Configurations(), s.stores.snapshotsOnDisk.Configurations()...)
	if len(configurations) == 0 {
		return &DamagedError{Path: c.Dir, Reason: "it names no members: its node has never been a member"}
	}
	for _, server := range configurations[0].Servers {
		s.Members = append(s.Members, Peer{Node: string(server.ID), Address: peer.AddressOf(&server), Identity: peer.IdentityOf(&server)})
	}
	return nil
}

// Close unlocks the directory.
func (s *Survivor) Close() error {
	var errs []error
	if s.machine != nil {
		errs = append(errs, s.machine.Close())
	}
	if s.stores != nil {
		errs = append(errs, s.stores.close())
	}
	if s.directory != nil {
		errs = append(errs, s.directory.close())
	}
	return errors.Join(errs...)
}

// Open yields the IDs of the instances that had not ended at Applied. Instances of later entries
// are not among them; see Tail.
func (s *Survivor) Open() iter.Seq[string] {
	return func(yield func(string) bool) {
		for instance := range s.machine.Instances() {
			if instance.Status == journalpb.Status_STATUS_RUNNING && !yield(instance.Instance) {
				return
			}
		}
	}
}

// Tail yields the instances that the entries after Applied change, as often as they do.
func (s *Survivor) Tail() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		stopped := errors.New("stopped")
		err := s.eachRecordInTail(func(record *journalpb.Record) error {
			for _, instance := range instancesOf(record) {
				if !yield(instance, nil) {
					return stopped
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, stopped) {
			yield("", err)
		}
	}
}

// Quarantined returns, at the last entry, the instances whose replica in the directory is not used,
// because it differs from those of a majority, and those that are stopped, because no majority
// agrees. They are in order.
func (s *Survivor) Quarantined() ([]string, error) {
	type replica struct{ instance, node string }
	found := make(map[replica]bool)
	for _, q := range s.machine.Quarantines() {
		found[replica{q.Instance, q.Node}] = true
	}
	err := s.eachRecordInTail(func(record *journalpb.Record) error {
		change := record.GetMetadataChange()
		if q := change.GetLifted(); q != nil {
			delete(found, replica{q.Instance, q.Node})
		}
		if q := change.GetQuarantine(); q != nil {
			found[replica{q.Instance, q.Node}] = true
		}
		return nil
	})
	var instances []string
	for of := range found {
		if of.node == s.Node || of.node == "" {
			instances = append(instances, of.instance)
		}
	}
	slices.Sort(instances)
	return slices.Compact(instances), err
}

// instancesOf returns the instances that a record changes.
func instancesOf(record *journalpb.Record) []string {
	switch command := record.Command.(type) {
	case *journalpb.Record_Append:
		return []string{command.Append.GetInstance()}
	case *journalpb.Record_Attempt:
		return []string{command.Attempt.GetRef().GetInstance()}
	case *journalpb.Record_SetCondition:
		return []string{command.SetCondition.GetInstance()}
	case *journalpb.Record_CopyHistory:
		return []string{command.CopyHistory.GetTarget()}
	case *journalpb.Record_Purge:
		return command.Purge.GetInstances()
	}
	return nil
}

// tail yields the entries after Applied.
func (s *Survivor) tail() iter.Seq2[*Entry, error] {
	return func(yield func(*Entry, error) bool) {
		for index := s.Applied + 1; index <= s.Index; index++ {
			var log raft.Log
			if err := s.logs.GetLog(index, &log); err != nil {
				yield(nil, fmt.Errorf("read entry %d: %w", index, err))
				return
			}
			if log.Type == raft.LogCommand && !yield(&Entry{log.Index, log.Term, log.AppendedAt, log.Data}, nil) {
				return
			}
		}
	}
}

// eachRecordInTail calls visit with each record of the entries after Applied, in order.
func (s *Survivor) eachRecordInTail(visit func(*journalpb.Record) error) error {
	for e, err := range s.tail() {
		if err == nil {
			err = e.eachRecord(nil, visit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Recover writes a directory as of a node that is the only member and has all entries of the
// survivor, also those that are not known to be committed. to supplies Node, Address, Cluster, Dir,
// Identity and Logger; see Restore. The survivor's directory is not changed.
func (s *Survivor) Recover(to Config, lineage *journalpb.Lineage) (identity string, err error) {
	to.Partitions, to.Partition = s.Partitions, s.Partition
	lineage = proto.CloneOf(lineage)
	lineage.Kind, lineage.Source = journalpb.Lineage_KIND_RECOVERED, s.Node
	now := clock.ReadSample(s.directory.path).ReadingAt(time.Now().UnixNano())
	r := &Restore{
		Config: to, From: &s.applied, Fill: s.copyState, Lineage: lineage,
		Elapsed: now.Time.Sub(s.machine.Clock()), Entries: s.tail(),
		index: s.Index, term: max(s.currentTerm, s.Term),
	}
	return r.Run()
}

// copyState writes the survivor's state at Applied into a new directory.
func (s *Survivor) copyState(dir string) error {
	const suffix = ".copied"
	if _, err := s.machine.Checkpoint(dir + suffix); err != nil {
		return err
	}
	files, err := os.ReadDir(dir + suffix)
	if err != nil {
		return err
	}
	for _, file := range files {
		to := filepath.Join(dir, file.Name())
		if err := errors.Join(os.Rename(filepath.Join(dir+suffix, file.Name()), to), syncFile(to)); err != nil {
			return err
		}
	}
	return errors.Join(os.Remove(dir+suffix), diskfile.SyncDir(vfs.Default, dir))
}

func syncFile(name string) error {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// readOwner reads who owns a directory, from its identity file.
func readOwner(dir string) (owner directoryOwner, err error) {
	text, err := os.ReadFile(filepath.Join(dir, ownerFile))
	if errors.Is(err, os.ErrNotExist) {
		return owner, &IdentityError{Dir: dir, Want: "a directory of a node"}
	}
	if err != nil {
		return owner, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "node":
			owner.node = value
		case "cluster":
			owner.cluster = value
		}
	}
	owner.partitions = partitionsInOwner(string(text))
	return owner, nil
}
