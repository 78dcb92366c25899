package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

const (
	lockFile  = "lock"
	ownerFile = "identity"
	// directoryFormat is the first line of the identity file: 2 since raft.stable holds the term
	// and the vote.
	directoryFormat = "tenuto journal 2"
)

// PartitionDir returns the directory of a partition in that of a node, "" if the node has none. The
// first partition uses the node's directory itself, with one partition or several.
func PartitionDir(node string, partition int) string {
	if node == "" || partition == 0 {
		return node
	}
	return filepath.Join(node, fmt.Sprintf("group-%03d", partition))
}

// directory is the journal's own directory, locked and with a verified owner.
type directory struct {
	path string
	lock *os.File
	self peer.Process
	// created has the bits createdLog and createdPartitions: what was created and must exist.
	created byte
}

// directoryOwner names the owner of a directory. The identity file contains it.
type directoryOwner struct {
	node, cluster         string
	partitions, partition int
}

// String returns the content of the identity file. It omits partitions if there is only one.
func (d directoryOwner) String() string {
	text := directoryFormat + "\nnode " + d.node + "\n"
	if d.cluster != "" {
		text += "cluster " + d.cluster + "\n"
	}
	if d.partitions > 1 {
		text += fmt.Sprintf("groups %d\ngroup %d\n", d.partitions, d.partition)
	}
	return text
}

// partitionsInOwner returns the number of partitions in an identity file.
func partitionsInOwner(text string) int {
	for line := range strings.Lines(text) {
		var partitions int
		if _, err := fmt.Sscanf(line, "groups %d\n", &partitions); err == nil {
			return partitions
		}
	}
	return 1
}

// openDirectory creates the directory if it is missing, locks it against other processes and
// verifies its owner. A directory without an identity gets the given one, or a random one.
func openDirectory(path string, want directoryOwner, identity string) (*directory, error) {
	if path == "" {
		return &directory{self: peer.NewProcess(identity)}, nil
	}
	if err := errors.Join(os.MkdirAll(path, 0o700), diskfile.SyncDir(vfs.Default, filepath.Dir(path))); err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	d := &directory{path: path, lock: lock}
	if held, err := diskfile.TryLock(lock); err != nil {
		if held {
			err = &LockedError{Dir: path}
		}
		return nil, errors.Join(fmt.Errorf("lock directory: %w", err), lock.Close())
	}
	err = d.checkOwner(want)
	if err == nil {
		err = d.readDirectoryID(identity)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// checkOwner verifies the identity file, or writes it to a directory without one. That file is
// synced before the log is created, so a log without it is an error.
func (d *directory) checkOwner(by directoryOwner) error {
	want := by.String()
	have, err := os.ReadFile(filepath.Join(d.path, ownerFile))
	if err == nil {
		if format, _, _ := strings.Cut(string(have), "\n"); format != directoryFormat {
			return &FormatError{Path: d.path, Want: directoryFormat, Have: format}
		}
		of := by
		of.partitions = partitionsInOwner(string(have))
		if of.partitions != by.partitions && string(have) == of.String() {
			return &PartitionCountError{Dir: d.path, Want: by.partitions, Have: of.partitions}
		}
		if string(have) != want {
			return &IdentityError{Dir: d.path, Want: joinLines(want), Have: joinLines(string(have))}
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read identity: %w", err)
	}
	for _, name := range []string{raftlog.FileName, raftlog.StableFileName} {
		if _, err := os.Stat(filepath.Join(d.path, name)); err == nil {
			return &IdentityError{Dir: d.path, Want: joinLines(want)}
		}
	}
	if err := diskfile.WriteAtomic(d.path, ownerFile, []byte(want)); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

// partitionsCompleteFile was written to the first directory by builds without createdPartitions,
// when every partition of the node had a directory.
const partitionsCompleteFile = "groups-complete"

// CreatePartitions creates the directories of all partitions of a node, each with a log and an
// identity. The node calls it before it opens any of them. c supplies Node and Cluster.
// CreatePartitions records the completion in the first directory and creates no directory from then
// on. With an empty directory in place of a lost one, the node could vote twice, or acknowledge
// entries without having the earlier ones.
//
// Errors: as of Open; a *DamagedError for a directory that existed and is missing or has lost its
// identity.
func CreatePartitions(c Config, dirs []string) (err error) {
	if len(dirs) < 2 || dirs[0] == "" {
		return nil // Open does it
	}
	first, err := openDirectory(dirs[0], directoryOwner{c.Node, c.Cluster, len(dirs), 0}, "")
	if err != nil {
		return err
	}
	defer func() { err = withFileErrors(errors.Join(err, first.close())) }()
	if first.created&createdPartitions != 0 {
		return checkCreated(dirs[1:])
	}
	if _, err := os.Stat(filepath.Join(dirs[0], partitionsCompleteFile)); err == nil {
		if i := slices.IndexFunc(dirs, func(dir string) bool { return !HasOwner(dir) }); i >= 0 {
			return &DamagedError{Path: dirs[i], Reason: raftlog.MissingReason}
		}
	}
	if err := first.createLog(c); err != nil {
		return err
	}
	for i, dir := range dirs[1:] {
		d, err := openDirectory(dir, directoryOwner{c.Node, c.Cluster, len(dirs), i + 1}, first.self.Identity)
		if err != nil {
			return err
		}
		if err := errors.Join(d.createLog(c), d.close()); err != nil {
			return err
		}
	}
	return first.recordCreated(createdPartitions)
}

// checkCreated returns a *DamagedError unless each directory has recorded that it has a log. Open
// checks whether the log exists.
func checkCreated(dirs []string) error {
	for _, dir := range dirs {
		path := filepath.Join(dir, directoryIDFile)
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return &DamagedError{Path: dir, Reason: raftlog.MissingReason}
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", directoryIDFile, err)
		}
		var d directory
		if err := d.decodeDirectoryID(path, content); err != nil {
			return err
		}
		if d.created&createdLog == 0 {
			return &DamagedError{Path: dir, Reason: raftlog.MissingReason}
		}
	}
	return nil
}

// createLog creates the log and the stable file, unless that is recorded as done.
func (d *directory) createLog(c Config) error {
	if d.created&createdLog != 0 {
		return nil
	}
	c.Dir = d.path
	logs, stable, err := d.openLogStore(&c)
	if err != nil {
		return err
	}
	return errors.Join(stable.Close(), logs.Close())
}

// HasOwner reports whether a directory already belongs to a node's journal. It returns true if that
// cannot be determined.
func HasOwner(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, ownerFile))
	return !errors.Is(err, os.ErrNotExist)
}

func joinLines(stamp string) string {
	return strings.ReplaceAll(strings.TrimSpace(stamp), "\n", ", ")
}

// close unlocks the directory. The lock file stays: removing it would let two processes lock two
// files of the same name.
func (d *directory) close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

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
