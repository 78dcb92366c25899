package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/state"
)

const (
	snapshotsDir = "snapshots"
	// snapshotName is the name of one, of its index and term.
	snapshotName = "%016x-%016x"
	// unfinished is the end of the name of a snapshot that is being written.
	unfinished = ".tmp"
	// disbelieved is the end of the name of one that is damaged.
	disbelieved = ".damaged"
)

// checkpoints is Raft's snapshot store: each snapshot is a directory with the
// files of a checkpoint of the state, most of them links to those in use, and a
// manifest with a checksum of each. What the leader sends is the same files.
type checkpoints struct {
	fs   vfs.FS
	dir  string
	node string
	// cluster and group are whose snapshots are believed.
	cluster string
	group   int
	log     *slog.Logger
	// damaged is called for a snapshot that does not check. Its files are those
	// of the state, too, as long as that uses them.
	damaged func(error)
	// reach returns the index of the last entry that this node has, in its log or
	// in its state.
	reach func() uint64
	// conflicts reports whether the log has an entry at an index that is of another term and
	// was not applied.
	conflicts func(index, term uint64) bool

	mu    sync.Mutex
	known map[fileKey]uint32 // checksums of files that were read before

	begun     atomic.Uint64 // snapshots, so that each is written in a place of its own
	finishing sync.Mutex    // held while a snapshot gets its name
}

// fileKey names a file that never changes.
type fileKey struct {
	database, name string
	size           int64
}

// openCheckpoints opens the snapshots in dir, or creates it, and removes what
// was not finished.
func openCheckpoints(files vfs.FS, dir, node, cluster string, log *slog.Logger) (*checkpoints, error) {
	c := &checkpoints{
		fs: files, dir: files.PathJoin(dir, snapshotsDir), node: node, cluster: cluster, log: log,
		damaged: func(error) {},
		reach:   func() uint64 { return 0 }, conflicts: func(uint64, uint64) bool { return false },
	}
	if err := errors.Join(files.MkdirAll(c.dir, 0o700), syncDir(files, dir)); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	names, err := files.List(c.dir)
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, unfinished) {
			if err := files.RemoveAll(files.PathJoin(c.dir, name)); err != nil {
				return nil, fmt.Errorf("open snapshots: %w", err)
			}
		}
	}
	return c, nil
}

// Create implements raft.SnapshotStore.
func (c *checkpoints) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	return c.create(version, index, term, raft.EncodeConfiguration(members), membersIndex)
}

func (c *checkpoints) create(version raft.SnapshotVersion, index, term uint64, members []byte, membersIndex uint64) (*checkpointSink, error) {
	s := &checkpointSink{of: c, manifest: manifest{
		Format: manifestFormat, Node: c.node, Cluster: c.cluster, Group: c.group, ID: fmt.Sprintf(snapshotName, index, term),
		Version: version, Index: index, Term: term, Members: members, MembersIndex: membersIndex,
	}}
	// This node may take a snapshot while it is sent one of the same entries: neither
	// must come upon what the other has written, or remove it.
	s.path = c.fs.PathJoin(c.dir, fmt.Sprintf("%s.%d%s", s.manifest.ID, c.begun.Add(1), unfinished))
	if err := errors.Join(c.fs.RemoveAll(s.path), c.fs.MkdirAll(s.path, 0o700)); err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	return s, nil
}

// List implements raft.SnapshotStore: the newest first.
func (c *checkpoints) List() ([]*raft.SnapshotMeta, error) {
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

// manifests returns those of the snapshots whose manifests can be believed, the
// newest first. The others are put aside.
func (c *checkpoints) manifests() ([]*manifest, error) {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var all []*manifest
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		if strings.HasSuffix(name, unfinished) || strings.HasSuffix(name, disbelieved) {
			continue
		}
		m, err := c.manifest(name)
		var format *FormatError
		if errors.As(err, &format) {
			return nil, err // it is whole, and somebody can read it
		}
		if err != nil {
			if err := c.disbelieve(name, err); err != nil {
				return nil, err
			}
			continue
		}
		all = append(all, m)
	}
	return all, nil
}

func (c *checkpoints) manifest(id string) (*manifest, error) {
	content, err := readFile(c.fs, c.fs.PathJoin(c.dir, id, manifestFile))
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(content)
	var format *FormatError
	if errors.As(err, &format) {
		format.Path = c.fs.PathJoin(c.dir, id)
	}
	if err == nil && m.ID != id {
		err = fmt.Errorf("its manifest is that of %s", m.ID)
	}
	if err == nil && m.Cluster != c.cluster {
		err = fmt.Errorf("it is of the cluster %q", m.Cluster)
	}
	if err == nil && m.Group != c.group {
		err = fmt.Errorf("it is of group %d", m.Group)
	}
	return m, err
}

// disbelieve puts a snapshot aside that is damaged, so that nobody comes upon it
// again.
func (c *checkpoints) disbelieve(id string, reason error) error {
	path := c.fs.PathJoin(c.dir, id)
	c.log.Error("a snapshot is damaged", "path", path, "error", reason)
	err := errors.Join(c.fs.RemoveAll(path+disbelieved), c.fs.Rename(path, path+disbelieved), syncDir(c.fs, c.dir))
	if err != nil {
		return fmt.Errorf("put a damaged snapshot aside: %w", err)
	}
	return nil
}

// newest returns the index of the newest snapshot that the directory has had,
// whether it can be believed or not, by the names there; 0 if it has had none.
func (c *checkpoints) newest() (index uint64, err error) {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return 0, fmt.Errorf("list snapshots: %w", err)
	}
	for _, name := range names {
		var of, term uint64
		name = strings.TrimSuffix(name, disbelieved)
		if _, err := fmt.Sscanf(name, snapshotName, &of, &term); err == nil && name == fmt.Sprintf(snapshotName, of, term) {
			index = max(index, of)
		}
	}
	return index, nil
}

// suspicious reports whether a file that never changes is damaged in a snapshot
// that was put aside. The state may have the same one, and not have noticed yet.
func (c *checkpoints) suspicious() (bool, error) {
	aside, err := c.aside()
	if err != nil {
		return false, err
	}
	for name, m := range aside {
		for _, f := range m.Files {
			if !immutable(f.Name) {
				continue
			}
			size, sum, err := sumFile(c.fs, c.fs.PathJoin(c.dir, name, filesDir, f.Name))
			if err != nil || size != f.Size || sum != f.CRC32C {
				return true, nil
			}
		}
	}
	return false, nil
}

// aside returns the manifests of the snapshots that were put aside, by the names of
// their directories, as far as the manifests themselves can be read.
func (c *checkpoints) aside() (map[string]*manifest, error) {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	aside := map[string]*manifest{}
	for _, name := range names {
		if !strings.HasSuffix(name, disbelieved) {
			continue
		}
		content, err := readFile(c.fs, c.fs.PathJoin(c.dir, name, manifestFile))
		if err != nil {
			continue
		}
		if m, err := parseManifest(content); err == nil {
			aside[name] = m
		}
	}
	return aside, nil
}

// members returns the members in all manifests that can be read, the newest first.
func (c *checkpoints) members() (all []raft.Configuration) {
	manifests, _ := c.manifests() // whoever needs them has met the error before
	aside, _ := c.aside()
	manifests = slices.AppendSeq(manifests, maps.Values(aside))
	slices.SortFunc(manifests, func(a, b *manifest) int { return cmp.Compare(b.Index, a.Index) })
	for _, m := range manifests {
		all = append(all, raft.DecodeConfiguration(m.Members))
	}
	return all
}

// Open implements raft.SnapshotStore: the bytes are those that a follower is
// sent.
func (c *checkpoints) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
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

// install puts the files of a snapshot into a directory: links to those that
// never change, copies of the others. Each is read and checked.
func (c *checkpoints) install(m *manifest, to string) error {
	for _, f := range m.Files {
		from := c.fs.PathJoin(c.dir, m.ID, filesDir, f.Name)
		size, sum, err := sumFile(c.fs, from)
		if err != nil {
			return fmt.Errorf("read snapshot: %w", err)
		}
		if size != f.Size || sum != f.CRC32C {
			return &DamagedError{Path: from, Reason: "it is not what the snapshot's manifest says"}
		}
		put := vfs.Copy
		if immutable(f.Name) {
			put = vfs.LinkOrCopy
		}
		if err := put(c.fs, from, c.fs.PathJoin(to, f.Name)); err != nil {
			return fmt.Errorf("install snapshot: %w", err)
		}
	}
	return syncDir(c.fs, to)
}

// immutable reports whether a file of the state is written once.
func immutable(name string) bool { return strings.HasSuffix(name, ".sst") }

// sumFiles returns what the manifest says of the files in a directory. Files
// that never change are read once in the life of their database.
func (c *checkpoints) sumFiles(dir, database string) ([]manifestFileEntry, error) {
	names, err := c.fs.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	known, err := c.knownOf(database)
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
		if !seen || !immutable(name) {
			if key.size, sum, err = sumFile(c.fs, path); err != nil {
				return nil, err
			}
		}
		now[key] = sum
		all = append(all, manifestFileEntry{name, key.size, sum})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = now
	return all, nil
}

// knownOf returns the checksums that are known of the files of a database: after
// a start, from the newest snapshot.
func (c *checkpoints) knownOf(database string) (map[fileKey]uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known != nil {
		return c.known, nil
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

// reap removes all but the newest snapshots, and what was put aside.
func (c *checkpoints) reap() error {
	all, err := c.manifests()
	if err != nil {
		return err
	}
	names, err := c.fs.List(c.dir)
	for _, name := range names {
		if strings.HasSuffix(name, disbelieved) {
			err = errors.Join(err, c.fs.RemoveAll(c.fs.PathJoin(c.dir, name)))
		}
	}
	for _, m := range all[min(snapshotsKept, len(all)):] {
		path := c.fs.PathJoin(c.dir, m.ID)
		// Renamed first: half a snapshot must not be taken for one.
		err = errors.Join(err, c.fs.Rename(path, path+unfinished), c.fs.RemoveAll(path+unfinished))
	}
	return err
}

// checkpointSink is a snapshot that is being written: by a checkpoint of this
// node's state, or from the bytes that the leader sends.
type checkpointSink struct {
	of       *checkpoints
	manifest manifest
	path     string
	received *receiver // nil for a checkpoint
	over     bool
}

// ID implements raft.SnapshotSink.
func (s *checkpointSink) ID() string { return s.manifest.ID }

// checkpoint writes the state of a machine.
func (s *checkpointSink) checkpoint(machine *state.Machine) error {
	c := s.of
	dir := c.fs.PathJoin(s.path, filesDir)
	point, err := machine.Checkpoint(dir)
	if err != nil {
		return err
	}
	s.manifest.Applied, s.manifest.AppliedTerm, s.manifest.Database = point.Index, point.Term, point.Database
	s.manifest.Files, err = c.sumFiles(dir, point.Database)
	return err
}

// Write implements raft.SnapshotSink: it takes what Open gives.
//
// A snapshot that goes no further than this node has come is late: it was on its way
// to another node that had this one's address, or took so long that another came
// before it. Raft would install it: take the state back, remove the log with what was
// acknowledged since, and panic when it looks for that.
//
// It is not late if the log has another entry where it ends: what the log has from there on
// was never committed, and never will be.
func (s *checkpointSink) Write(p []byte) (int, error) {
	m := s.manifest
	if reach := s.of.reach(); s.received == nil && m.Index <= reach && !s.of.conflicts(m.Index, m.Term) {
		return 0, fmt.Errorf("it ends with entry %d, and entry %d is here", m.Index, reach)
	}
	if s.received == nil {
		s.received = s.receive()
	}
	return s.received.Write(p)
}

// Close implements raft.SnapshotSink: the snapshot is there, whole, or it is
// not.
func (s *checkpointSink) Close() error {
	if s.over {
		return nil
	}
	s.over = true
	s.of.finishing.Lock()
	defer s.of.finishing.Unlock()
	if err := s.finish(); err != nil {
		return errors.Join(fmt.Errorf("finish snapshot: %w", err), s.of.fs.RemoveAll(s.path))
	}
	if err := s.of.reap(); err != nil {
		s.of.log.Warn("older snapshots were not removed", "error", err)
	}
	return nil
}

func (s *checkpointSink) finish() error {
	c := s.of
	if s.received != nil {
		if err := s.received.close(); err != nil {
			return err
		}
	}
	if len(s.manifest.Files) == 0 {
		return errors.New("it has no files")
	}
	content, err := s.manifest.encode()
	if err != nil {
		return err
	}
	final := c.fs.PathJoin(c.dir, s.manifest.ID)
	return errors.Join(
		writeFile(c.fs, c.fs.PathJoin(s.path, manifestFile), content),
		syncDir(c.fs, c.fs.PathJoin(s.path, filesDir)),
		syncDir(c.fs, s.path),
		c.fs.RemoveAll(final), // of the same entries: it was sent twice
		c.fs.Rename(s.path, final),
		syncDir(c.fs, c.dir),
	)
}

// Cancel implements raft.SnapshotSink.
func (s *checkpointSink) Cancel() error {
	if s.over {
		return nil
	}
	s.over = true
	if s.received != nil {
		_ = s.received.close() // what it says of half a snapshot does not matter
	}
	return s.of.fs.RemoveAll(s.path)
}
