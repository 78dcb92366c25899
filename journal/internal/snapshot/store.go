package snapshot

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
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

const (
	// Max is how many snapshots are retained.
	Max = 2
	// DirName is the directory of the snapshots.
	DirName = "snapshots"
	// NameFormat is the name of a snapshot, from its index and term.
	NameFormat = "%016x-%016x"
	// unfinishedSuffix ends the name of a snapshot that is being written.
	unfinishedSuffix = ".tmp"
	// QuarantineSuffix ends the name of a damaged snapshot.
	QuarantineSuffix = ".damaged"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Store is Raft's snapshot store. Each snapshot is a directory with the files of a checkpoint
// of the state and a manifest with their checksums. Most of the files are hard links to files in
// use. The leader sends the same files.
type Store struct {
	FS   vfs.FS
	Dir  string
	node string
	// cluster and partition are those whose snapshots are accepted.
	cluster   string
	Partition int
	Logger    *slog.Logger
	// OnDamaged is called for a damaged snapshot, because the state may share its files.
	OnDamaged func(error)
	// LastLocalIndex returns the index of the last entry in this node's log or state.
	LastLocalIndex func() uint64
	// HasConflict reports whether the log has an entry at index that is of another term and not
	// applied here.
	HasConflict func(index, term uint64) bool

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

// Open opens or creates the snapshots in dir and removes unfinished ones.
func Open(files vfs.FS, dir, node, cluster string, log *slog.Logger) (*Store, error) {
	c := &Store{
		FS: files, Dir: files.PathJoin(dir, DirName), node: node, cluster: cluster, Logger: log,
		OnDamaged:      func(error) {},
		LastLocalIndex: func() uint64 { return 0 }, HasConflict: func(uint64, uint64) bool { return false },
	}
	if err := errors.Join(files.MkdirAll(c.Dir, 0o700), diskfile.SyncDir(files, dir)); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	names, err := files.List(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, unfinishedSuffix) {
			if err := files.RemoveAll(files.PathJoin(c.Dir, name)); err != nil {
				return nil, fmt.Errorf("open snapshots: %w", err)
			}
		}
	}
	return c, nil
}

// Create implements raft.SnapshotStore.
func (st *Store) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	return st.create(version, index, term, raft.EncodeConfiguration(members), membersIndex)
}

func (st *Store) create(version raft.SnapshotVersion, index, term uint64, members []byte, membersIndex uint64) (*Sink, error) {
	s := &Sink{store: st, manifest: Manifest{
		Format: manifestFormat, Node: st.node, Cluster: st.cluster, Partition: st.Partition, ID: fmt.Sprintf(NameFormat, index, term),
		Version: version, Index: index, Term: term, Members: members, MembersIndex: membersIndex,
	}}
	// This node may take a snapshot while it receives one of the same entries; neither may
	// overwrite or remove the other's files.
	s.path = st.FS.PathJoin(st.Dir, fmt.Sprintf("%s.%d%s", s.manifest.ID, st.created.Add(1), unfinishedSuffix))
	if err := errors.Join(st.FS.RemoveAll(s.path), st.FS.MkdirAll(s.path, 0o700)); err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	return s, nil
}

// List implements raft.SnapshotStore: the newest first.
func (st *Store) List() ([]*raft.SnapshotMeta, error) {
	all, err := st.Manifests()
	if err != nil {
		return nil, err
	}
	var metas []*raft.SnapshotMeta
	for _, m := range all {
		metas = append(metas, m.meta())
	}
	return metas, nil
}

// completedAt returns when the manifest of a snapshot was written, the last step; zero if that
// cannot be read.
func (st *Store) completedAt(id string) time.Time {
	info, err := st.FS.Stat(st.FS.PathJoin(st.Dir, id, ManifestFile))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Manifests returns the intact manifests of the snapshots, newest first, and quarantines the other
// snapshots.
func (st *Store) Manifests() ([]*Manifest, error) {
	names, err := st.FS.List(st.Dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var all []*Manifest
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		if strings.HasSuffix(name, unfinishedSuffix) || strings.HasSuffix(name, QuarantineSuffix) {
			continue
		}
		m, err := st.manifest(name)
		var format *diskfile.FormatError
		if errors.As(err, &format) {
			return nil, err // it is intact, and another version can read it
		}
		if err != nil {
			if err := st.Quarantine(name, err); err != nil {
				return nil, err
			}
			continue
		}
		all = append(all, m)
	}
	return all, nil
}

func (st *Store) manifest(id string) (*Manifest, error) {
	content, err := diskfile.Read(st.FS, st.FS.PathJoin(st.Dir, id, ManifestFile))
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(content)
	var format *diskfile.FormatError
	if errors.As(err, &format) {
		format.Path = st.FS.PathJoin(st.Dir, id)
	}
	if err == nil && m.ID != id {
		err = fmt.Errorf("its manifest belongs to snapshot %s", m.ID)
	}
	if err == nil && m.Cluster != st.cluster {
		err = fmt.Errorf("it belongs to cluster %q", m.Cluster)
	}
	if err == nil && m.Partition != st.Partition {
		err = fmt.Errorf("it belongs to partition %d", m.Partition)
	}
	return m, err
}

// Quarantine sets a damaged snapshot aside so that it is not used again.
func (st *Store) Quarantine(id string, reason error) error {
	path := st.FS.PathJoin(st.Dir, id)
	st.Logger.Error("snapshot damaged, moved to quarantine", "path", path, "error", reason)
	err := errors.Join(st.FS.RemoveAll(path+QuarantineSuffix), st.FS.Rename(path, path+QuarantineSuffix), diskfile.SyncDir(st.FS, st.Dir))
	if err != nil {
		return fmt.Errorf("quarantine snapshot: %w", err)
	}
	return nil
}

// NewestIndex returns the index of the newest snapshot that the directory has had, damaged or not,
// from the names there; 0 if it has had none.
func (st *Store) NewestIndex() (index uint64, err error) {
	names, err := st.FS.List(st.Dir)
	if err != nil {
		return 0, fmt.Errorf("list snapshots: %w", err)
	}
	for _, name := range names {
		var of, term uint64
		name = strings.TrimSuffix(name, QuarantineSuffix)
		if _, err := fmt.Sscanf(name, NameFormat, &of, &term); err == nil && name == fmt.Sprintf(NameFormat, of, term) {
			index = max(index, of)
		}
	}
	return index, nil
}

// HasDamagedFile reports whether an immutable file of a quarantined snapshot is damaged. The state
// may share the file without having read the damage yet.
func (st *Store) HasDamagedFile() (bool, error) {
	quarantined, err := st.quarantined()
	if err != nil {
		return false, err
	}
	for name, m := range quarantined {
		for _, f := range m.Files {
			if !IsImmutable(f.Name) {
				continue
			}
			size, sum, err := diskfile.Checksum(st.FS, st.FS.PathJoin(st.Dir, name, FilesDir, f.Name))
			if err != nil || size != f.Size || sum != f.CRC32C {
				return true, nil
			}
		}
	}
	return false, nil
}

// quarantined returns the manifests of the quarantined snapshots by directory name, as far as the
// manifests can be read.
func (st *Store) quarantined() (map[string]*Manifest, error) {
	names, err := st.FS.List(st.Dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	quarantined := map[string]*Manifest{}
	for _, name := range names {
		if !strings.HasSuffix(name, QuarantineSuffix) {
			continue
		}
		content, err := diskfile.Read(st.FS, st.FS.PathJoin(st.Dir, name, ManifestFile))
		if err != nil {
			continue
		}
		if m, err := parseManifest(content); err == nil {
			quarantined[name] = m
		}
	}
	return quarantined, nil
}

// Configurations returns the members in all manifests that can be read, newest first.
func (st *Store) Configurations() (all []raft.Configuration) {
	manifests, _ := st.Manifests() // an earlier call has reported the error
	quarantined, _ := st.quarantined()
	manifests = slices.AppendSeq(manifests, maps.Values(quarantined))
	slices.SortFunc(manifests, func(a, b *Manifest) int { return cmp.Compare(b.Index, a.Index) })
	for _, m := range manifests {
		all = append(all, raft.DecodeConfiguration(m.Members))
	}
	return all
}

// Open implements raft.SnapshotStore. The reader returns the stream that a follower is sent.
func (st *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, err := st.manifest(id)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	r, err := st.newStream(m)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	return m.meta(), r, nil
}

// Install puts the files of a snapshot into a directory: links to immutable ones, copies of the
// others. It reads and checks each.
func (st *Store) Install(m *Manifest, to string) error {
	for _, f := range m.Files {
		from := st.FS.PathJoin(st.Dir, m.ID, FilesDir, f.Name)
		size, sum, err := diskfile.Checksum(st.FS, from)
		if err != nil {
			return fmt.Errorf("read snapshot: %w", err)
		}
		if size != f.Size || sum != f.CRC32C {
			return &diskfile.DamagedError{Path: from, Reason: "size or checksum differs from the snapshot's manifest"}
		}
		copyFile := vfs.Copy
		if IsImmutable(f.Name) {
			copyFile = vfs.LinkOrCopy
		}
		if err := copyFile(st.FS, from, st.FS.PathJoin(to, f.Name)); err != nil {
			return fmt.Errorf("install snapshot: %w", err)
		}
	}
	return diskfile.SyncDir(st.FS, to)
}

// IsImmutable reports whether a file of the state is written once.
func IsImmutable(name string) bool { return strings.HasSuffix(name, ".sst") }

// Checksums returns the manifest entries of the files in a directory with a checkpoint of a
// database. It reads an immutable file only if the checksum of the file is not known.
func (st *Store) Checksums(dir, database string) ([]File, error) {
	all, now, err := st.checksumFiles(dir, database)
	if err != nil {
		return nil, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.checksums = now
	return all, nil
}

// checksumFiles is Checksums. It also returns the checksums that the store should know from now on.
func (st *Store) checksumFiles(dir, database string) (all []File, now map[fileKey]uint32, err error) {
	names, err := st.FS.List(dir)
	if err != nil {
		return nil, nil, err
	}
	slices.Sort(names)
	known, err := st.knownChecksums(database)
	if err != nil {
		return nil, nil, err
	}
	now = map[fileKey]uint32{}
	for _, name := range names {
		path := st.FS.PathJoin(dir, name)
		info, err := st.FS.Stat(path)
		if err != nil {
			return nil, nil, err
		}
		key := fileKey{database, name, info.Size()}
		sum, seen := known[key]
		if !seen || !IsImmutable(name) {
			if key.size, sum, err = diskfile.Checksum(st.FS, path); err != nil {
				return nil, nil, err
			}
		}
		now[key] = sum
		all = append(all, File{name, key.size, sum})
	}
	return all, now, nil
}

// knownChecksums returns the known checksums of the files of a database: after a start, those in
// the newest snapshot.
func (st *Store) knownChecksums(database string) (map[fileKey]uint32, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.checksums != nil {
		return st.checksums, nil
	}
	all, err := st.Manifests()
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
func (st *Store) removeOld() error {
	all, err := st.Manifests()
	if err != nil {
		return err
	}
	names, err := st.FS.List(st.Dir)
	for _, name := range names {
		if strings.HasSuffix(name, QuarantineSuffix) {
			err = errors.Join(err, st.FS.RemoveAll(st.FS.PathJoin(st.Dir, name)))
		}
	}
	for _, m := range all[min(Max, len(all)):] {
		path := st.FS.PathJoin(st.Dir, m.ID)
		// Rename first: a partly removed snapshot must not look like a whole one.
		err = errors.Join(err, st.FS.Rename(path, path+unfinishedSuffix), st.FS.RemoveAll(path+unfinishedSuffix))
	}
	return err
}
