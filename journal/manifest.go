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
	// filesDir holds the files of a snapshot, beside its manifest.
	filesDir = "state"
	// manifestFormat is in every manifest.
	manifestFormat = 1
)

// manifest describes a snapshot and its files. On disk it is JSON on one line, followed by a line
// with its CRC-32C in eight hexadecimal digits.
type manifest struct {
	Format int `json:"format"`
	// Node took the snapshot; another node may have received it.
	Node      string `json:"node"`
	Cluster   string `json:"cluster,omitempty"` // of the node that took it
	Partition int    `json:"group,omitempty"`
	ID        string `json:"id"`
	// Raft's metadata. Applied is at least the index of the last command up to Index.
	Version      raft.SnapshotVersion `json:"version"`
	Index        uint64               `json:"index"`
	Term         uint64               `json:"term"`
	Members      []byte               `json:"members"` // raft.EncodeConfiguration
	MembersIndex uint64               `json:"members_index"`
	Applied      uint64               `json:"applied"`      // last entry in the files
	AppliedTerm  uint64               `json:"applied_term"` // of that entry
	Database     string               `json:"database"`     // within it, file names are unique
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

// parseManifest decodes a manifest and verifies its checksum, format and file names.
func parseManifest(b []byte) (*manifest, error) {
	line, sum, _ := bytes.Cut(b, []byte("\n"))
	if string(sum) != fmt.Sprintf("%08x\n", crc32.Checksum(line, castagnoli)) {
		return nil, errors.New("checksum mismatch in its manifest")
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
			return nil, fmt.Errorf("its manifest contains the invalid file name %q", f.Name)
		}
	}
	return m, nil
}

// meta returns the manifest in the form of the Raft library.
func (m *manifest) meta() *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: m.Version, ID: m.ID, Index: m.Index, Term: m.Term,
		Configuration: raft.DecodeConfiguration(m.Members), ConfigurationIndex: m.MembersIndex,
		Size: m.streamSize(),
	}
}

// checksumFile returns the size and the CRC-32C of a file.
func checksumFile(files vfs.FS, path string) (size int64, sum uint32, err error) {
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

// syncDir syncs the names in a directory. On Windows it does nothing, because programs cannot sync
// a directory there: NTFS keeps names in its own journal.
func syncDir(files vfs.FS, dir string) error {
	d, err := files.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
