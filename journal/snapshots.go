package journal

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/state"
)

const (
	// snapshotsMax is how many snapshots are retained.
	snapshotsMax = 2
	snapshotsDir = "snapshots"
	// snapshotName is the name of a snapshot, from its index and term.
	snapshotName = "%016x-%016x"
	// unfinishedSuffix ends the name of a snapshot that is being written.
	unfinishedSuffix = ".tmp"
	// quarantineSuffix ends the name of a damaged snapshot.
	quarantineSuffix = ".damaged"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapshotStore is Raft's snapshot store. Each snapshot is a directory with the files of a checkpoint
// of the state and a manifest with their checksums. Most of the files are hard links to files in
// use. The leader sends the same files.
type snapshotStore struct {
	fs   vfs.FS
	dir  string
	node string
	// cluster and partition are those whose snapshots are accepted.
	cluster   string
	partition int
	logger    *slog.Logger
	// onDamaged is called for a damaged snapshot, because the state may share its files.
	onDamaged func(error)
	// lastLocalIndex returns the index of the last entry in this node's log or state.
	lastLocalIndex func() uint64
	// hasConflict reports whether the log has an entry at index that is of another term and not
	// applied here.
	hasConflict func(index, term uint64) bool

	mu        sync.Mutex
	checksums map[fileKey]uint32 // checksums of files read before

	created  atomic.Uint64 // number of snapshots, to give each its own directory
	finishMu sync.Mutex    // held while a snapshot gets its name
}

// fileKey names a file that never changes.
type fileKey struct {
	database, name string
	size           int64
}

// openSnapshotStore opens or creates the snapshots in dir and removes unfinished ones.
func openSnapshotStore(files vfs.FS, dir, node, cluster string, log *slog.Logger) (*snapshotStore, error) {
	c := &snapshotStore{
		fs: files, dir: files.PathJoin(dir, snapshotsDir), node: node, cluster: cluster, logger: log,
		onDamaged:      func(error) {},
		lastLocalIndex: func() uint64 { return 0 }, hasConflict: func(uint64, uint64) bool { return false },
	}
	if err := errors.Join(files.MkdirAll(c.dir, 0o700), diskfile.SyncDir(files, dir)); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	names, err := files.List(c.dir)
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, unfinishedSuffix) {
			if err := files.RemoveAll(files.PathJoin(c.dir, name)); err != nil {
				return nil, fmt.Errorf("open snapshots: %w", err)
			}
		}
	}
	return c, nil
}

// Create implements raft.SnapshotStore.
func (c *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	return c.create(version, index, term, raft.EncodeConfiguration(members), membersIndex)
}

func (c *snapshotStore) create(version raft.SnapshotVersion, index, term uint64, members []byte, membersIndex uint64) (*snapshotSink, error) {
	s := &snapshotSink{store: c, manifest: manifest{
		Format: manifestFormat, Node: c.node, Cluster: c.cluster, Partition: c.partition, ID: fmt.Sprintf(snapshotName, index, term),
		Version: version, Index: index, Term: term, Members: members, MembersIndex: membersIndex,
	}}
	// This node may take a snapshot while it receives one of the same entries; neither may
	// overwrite or remove the other's files.
	s.path = c.fs.PathJoin(c.dir, fmt.Sprintf("%s.%d%s", s.manifest.ID, c.created.Add(1), unfinishedSuffix))
	if err := errors.Join(c.fs.RemoveAll(s.path), c.fs.MkdirAll(s.path, 0o700)); err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	return s, nil
}

// List implements raft.SnapshotStore: the newest first.
func (c *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	all, err := c.manifests()
	if err != nil {
		return nil, err
	}
	var metas []*raft.SnapshotMeta
	for _, m := range all {
		metas = append(metas, m.meta())
	}
	return metas, nil
}

// manifests returns the intact manifests of the snapshots, newest first, and quarantines the other
// snapshots.
func (c *snapshotStore) manifests() ([]*manifest, error) {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var all []*manifest
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		if strings.HasSuffix(name, unfinishedSuffix) || strings.HasSuffix(name, quarantineSuffix) {
			continue
		}
		m, err := c.manifest(name)
		var format *diskfile.FormatError
		if errors.As(err, &format) {
			return nil, err // it is intact, and another version can read it
		}
		if err != nil {
			if err := c.quarantine(name, err); err != nil {
				return nil, err
			}
			continue
		}
		all = append(all, m)
	}
	return all, nil
}

func (c *snapshotStore) manifest(id string) (*manifest, error) {
	content, err := diskfile.Read(c.fs, c.fs.PathJoin(c.dir, id, manifestFile))
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(content)
	var format *diskfile.FormatError
	if errors.As(err, &format) {
		format.Path = c.fs.PathJoin(c.dir, id)
	}
	if err == nil && m.ID != id {
		err = fmt.Errorf("its manifest belongs to snapshot %s", m.ID)
	}
	if err == nil && m.Cluster != c.cluster {
		err = fmt.Errorf("it belongs to cluster %q", m.Cluster)
	}
	if err == nil && m.Partition != c.partition {
		err = fmt.Errorf("it belongs to partition %d", m.Partition)
	}
	return m, err
}

// quarantine sets a damaged snapshot aside so that it is not used again.
func (c *snapshotStore) quarantine(id string, reason error) error {
	path := c.fs.PathJoin(c.dir, id)
	c.logger.Error("snapshot damaged, moved to quarantine", "path", path, "error", reason)
	err := errors.Join(c.fs.RemoveAll(path+quarantineSuffix), c.fs.Rename(path, path+quarantineSuffix), diskfile.SyncDir(c.fs, c.dir))
	if err != nil {
		return fmt.Errorf("quarantine snapshot: %w", err)
	}
	return nil
}

// newestIndex returns the index of the newest snapshot that the directory has had, damaged or not,
// from the names there; 0 if it has had none.
func (c *snapshotStore) newestIndex() (index uint64, err error) {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return 0, fmt.Errorf("list snapshots: %w", err)
	}
	for _, name := range names {
		var of, term uint64
		name = strings.TrimSuffix(name, quarantineSuffix)
		if _, err := fmt.Sscanf(name, snapshotName, &of, &term); err == nil && name == fmt.Sprintf(snapshotName, of, term) {
			index = max(index, of)
		}
	}
	return index, nil
}

// hasDamagedFile reports whether an immutable file of a quarantined snapshot is damaged. The state
// may share the file and not have noticed yet.
func (c *snapshotStore) hasDamagedFile() (bool, error) {
	quarantined, err := c.quarantined()
	if err != nil {
		return false, err
	}
	for name, m := range quarantined {
		for _, f := range m.Files {
			if !isImmutable(f.Name) {
				continue
			}
			size, sum, err := diskfile.Checksum(c.fs, c.fs.PathJoin(c.dir, name, filesDir, f.Name))
			if err != nil || size != f.Size || sum != f.CRC32C {
				return true, nil
			}
		}
	}
	return false, nil
}

// quarantined returns the manifests of the quarantined snapshots by directory name, as far as the
// manifests can be read.
func (c *snapshotStore) quarantined() (map[string]*manifest, error) {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	quarantined := map[string]*manifest{}
	for _, name := range names {
		if !strings.HasSuffix(name, quarantineSuffix) {
			continue
		}
		content, err := diskfile.Read(c.fs, c.fs.PathJoin(c.dir, name, manifestFile))
		if err != nil {
			continue
		}
		if m, err := parseManifest(content); err == nil {
			quarantined[name] = m
		}
	}
	return quarantined, nil
}

// configurations returns the members in all manifests that can be read, newest first.
func (c *snapshotStore) configurations() (all []raft.Configuration) {
	manifests, _ := c.manifests() // an earlier call has reported the error
	quarantined, _ := c.quarantined()
	manifests = slices.AppendSeq(manifests, maps.Values(quarantined))
	slices.SortFunc(manifests, func(a, b *manifest) int { return cmp.Compare(b.Index, a.Index) })
	for _, m := range manifests {
		all = append(all, raft.DecodeConfiguration(m.Members))
	}
	return all
}

// Open implements raft.SnapshotStore. The reader returns the stream that a follower is sent.
func (c *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, err := c.manifest(id)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	r, err := c.newStream(m)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	return m.meta(), r, nil
}

// install puts the files of a snapshot into a directory: links to immutable ones, copies of the
// others. It reads and checks each.
func (c *snapshotStore) install(m *manifest, to string) error {
	for _, f := range m.Files {
		from := c.fs.PathJoin(c.dir, m.ID, filesDir, f.Name)
		size, sum, err := diskfile.Checksum(c.fs, from)
		if err != nil {
			return fmt.Errorf("read snapshot: %w", err)
		}
		if size != f.Size || sum != f.CRC32C {
			return &diskfile.DamagedError{Path: from, Reason: "size or checksum differs from the snapshot's manifest"}
		}
		copyFile := vfs.Copy
		if isImmutable(f.Name) {
			copyFile = vfs.LinkOrCopy
		}
		if err := copyFile(c.fs, from, c.fs.PathJoin(to, f.Name)); err != nil {
			return fmt.Errorf("install snapshot: %w", err)
		}
	}
	return diskfile.SyncDir(c.fs, to)
}

// isImmutable reports whether a file of the state is written once.
func isImmutable(name string) bool { return strings.HasSuffix(name, ".sst") }

// checksumFiles returns the manifest entries of the files in a directory. It reads an immutable
// file only if the checksum of the file is not known.
func (c *snapshotStore) checksumFiles(dir, database string) ([]manifestFileEntry, error) {
	names, err := c.fs.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	known, err := c.knownChecksums(database)
	if err != nil {
		return nil, err
	}
	var all []manifestFileEntry
	now := map[fileKey]uint32{}
	for _, name := range names {
		path := c.fs.PathJoin(dir, name)
		info, err := c.fs.Stat(path)
		if err != nil {
			return nil, err
		}
		key := fileKey{database, name, info.Size()}
		sum, seen := known[key]
		if !seen || !isImmutable(name) {
			if key.size, sum, err = diskfile.Checksum(c.fs, path); err != nil {
				return nil, err
			}
		}
		now[key] = sum
		all = append(all, manifestFileEntry{name, key.size, sum})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checksums = now
	return all, nil
}

// knownChecksums returns the known checksums of the files of a database: after a start, those in
// the newest snapshot.
func (c *snapshotStore) knownChecksums(database string) (map[fileKey]uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checksums != nil {
		return c.checksums, nil
	}
	all, err := c.manifests()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	known := map[fileKey]uint32{}
	for _, f := range all[0].Files {
		known[fileKey{all[0].Database, f.Name, f.Size}] = f.CRC32C
	}
	return known, nil
}

// removeOld removes all but the newest snapshots, and the quarantined ones.
func (c *snapshotStore) removeOld() error {
	all, err := c.manifests()
	if err != nil {
		return err
	}
	names, err := c.fs.List(c.dir)
	for _, name := range names {
		if strings.HasSuffix(name, quarantineSuffix) {
			err = errors.Join(err, c.fs.RemoveAll(c.fs.PathJoin(c.dir, name)))
		}
	}
	for _, m := range all[min(snapshotsMax, len(all)):] {
		path := c.fs.PathJoin(c.dir, m.ID)
		// Rename first: a partly removed snapshot must not look like a whole one.
		err = errors.Join(err, c.fs.Rename(path, path+unfinishedSuffix), c.fs.RemoveAll(path+unfinishedSuffix))
	}
	return err
}

// snapshotSink is a snapshot that is being written, from a checkpoint of this node's state or
// from the bytes that the leader sends.
type snapshotSink struct {
	store    *snapshotStore
	manifest manifest
	path     string
	receiver *snapshotReceiver // nil for a checkpoint
	done     bool
}

// ID implements raft.SnapshotSink.
func (s *snapshotSink) ID() string { return s.manifest.ID }

// checkpoint writes the state of a machine.
func (s *snapshotSink) checkpoint(machine *state.Machine) error {
	c := s.store
	dir := c.fs.PathJoin(s.path, filesDir)
	point, err := machine.Checkpoint(dir)
	if err != nil {
		return err
	}
	s.manifest.Applied, s.manifest.AppliedTerm, s.manifest.Database = point.Index, point.Term, point.Database
	s.manifest.Files, err = c.checksumFiles(dir, point.Database)
	return err
}

// Write implements raft.SnapshotSink: it takes the stream that Open returns.
//
// It refuses a snapshot that ends no later than this node's last entry. Such a snapshot was meant
// for another node that had this address, or it arrives after a later one. Raft would install it:
// undo later changes of the state, delete the log with later entries that were acknowledged, and
// panic when it reads one of them.
//
// But it accepts the snapshot if the log has a conflicting entry at the snapshot's index: that
// entry and those after it were never committed, and never will be.
func (s *snapshotSink) Write(p []byte) (int, error) {
	m := s.manifest
	if lastLocal := s.store.lastLocalIndex(); s.receiver == nil && m.Index <= lastLocal && !s.store.hasConflict(m.Index, m.Term) {
		return 0, fmt.Errorf("snapshot ends at entry %d, but this node has entry %d", m.Index, lastLocal)
	}
	if s.receiver == nil {
		s.receiver = s.startReceiver()
	}
	return s.receiver.Write(p)
}

// Close implements raft.SnapshotSink. Afterwards the whole snapshot exists, or none of it.
func (s *snapshotSink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	s.store.finishMu.Lock()
	defer s.store.finishMu.Unlock()
	if err := s.finish(); err != nil {
		return errors.Join(fmt.Errorf("finish snapshot: %w", err), s.store.fs.RemoveAll(s.path))
	}
	if err := s.store.removeOld(); err != nil {
		s.store.logger.Warn("cannot remove old snapshots", "error", err)
	}
	return nil
}

func (s *snapshotSink) finish() error {
	c := s.store
	if s.receiver != nil {
		if err := s.receiver.close(); err != nil {
			return err
		}
	}
	if len(s.manifest.Files) == 0 {
		return errors.New("snapshot without files")
	}
	content, err := s.manifest.encode()
	if err != nil {
		return err
	}
	final := c.fs.PathJoin(c.dir, s.manifest.ID)
	return errors.Join(
		diskfile.Write(c.fs, c.fs.PathJoin(s.path, manifestFile), content),
		diskfile.SyncDir(c.fs, c.fs.PathJoin(s.path, filesDir)),
		diskfile.SyncDir(c.fs, s.path),
		c.fs.RemoveAll(final), // a snapshot of the same entries: it was sent twice
		c.fs.Rename(s.path, final),
		diskfile.SyncDir(c.fs, c.dir),
	)
}

// Cancel implements raft.SnapshotSink.
func (s *snapshotSink) Cancel() error {
	if s.done {
		return nil
	}
	s.done = true
	if s.receiver != nil {
		_ = s.receiver.close() // errors of an incomplete snapshot do not matter
	}
	return s.store.fs.RemoveAll(s.path)
}
