package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

const (
	manifestFile = "manifest"
	// filesDir is where the files of a snapshot are, beside its manifest.
	filesDir = "state"
	// manifestFormat is in every manifest.
	manifestFormat = 1
)

// manifest says what a snapshot is of and which files it has. On disk it is JSON
// on one line, and its CRC-32C in eight hexadecimal digits on another.
type manifest struct {
	Format int `json:"format"`
	// Node took the snapshot, which another may have been sent.
	Node    string `json:"node"`
	Cluster string `json:"cluster,omitempty"` // of the node that took it
	Group   int    `json:"group,omitempty"`
	ID      string `json:"id"`
	// What Raft wants to know.
	Version      raft.SnapshotVersion `json:"version"`
	Index        uint64               `json:"index"`
	Term         uint64               `json:"term"`
	Members      []byte               `json:"members"` // raft.EncodeConfiguration
	MembersIndex uint64               `json:"members_index"`
	Applied      uint64               `json:"applied"`      // the last entry in the files, at least the last command up to Index
	AppliedTerm  uint64               `json:"applied_term"` // of that entry
	Database     string               `json:"database"`     // files of one database with the same name are the same
	Files        []manifestFileEntry  `json:"files"`
}

// manifestFileEntry is one file of a snapshot.
type manifestFileEntry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	CRC32C uint32 `json:"crc32c"`
}

func (m *manifest) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return fmt.Appendf(b, "\n%08x\n", crc32.Checksum(b, castagnoli)), nil
}

// parseManifest reads a manifest, or returns why it is not to be believed.
func parseManifest(b []byte) (*manifest, error) {
	line, sum, _ := bytes.Cut(b, []byte("\n"))
	if string(sum) != fmt.Sprintf("%08x\n", crc32.Checksum(line, castagnoli)) {
		return nil, errors.New("its manifest does not check")
	}
	m := &manifest{}
	if err := json.Unmarshal(line, m); err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	if m.Format != manifestFormat {
		return nil, &FormatError{Path: "a snapshot", Want: fmt.Sprint(manifestFormat), Have: fmt.Sprint(m.Format)}
	}
	for _, f := range m.Files {
		if f.Name == "" || f.Size < 0 || bytes.ContainsAny([]byte(f.Name), "/\\") || f.Name == ".." {
			return nil, fmt.Errorf("its manifest names a file %q", f.Name)
		}
	}
	return m, nil
}

// meta is the same as the Raft library has it.
func (m *manifest) meta() *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: m.Version, ID: m.ID, Index: m.Index, Term: m.Term,
		Configuration: raft.DecodeConfiguration(m.Members), ConfigurationIndex: m.MembersIndex,
		Size: m.streamSize(),
	}
}

// sumFile returns the size and the CRC-32C of a file.
func sumFile(files vfs.FS, path string) (size int64, sum uint32, err error) {
	f, err := files.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := crc32.New(castagnoli)
	size, err = io.Copy(h, f)
	return size, h.Sum32(), err
}

func readFile(files vfs.FS, path string) (content []byte, err error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(f)
}

// writeFile writes a file and syncs it, but not the directory.
func writeFile(files vfs.FS, path string, content []byte) error {
	f, err := files.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncDir writes the names in a directory to the disk. On Windows it does nothing, since no
// program can: NTFS keeps names in a journal of its own.
func syncDir(files vfs.FS, dir string) error {
	d, err := files.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
