package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

const (
	// ManifestFile is the name of the file with the manifest.
	ManifestFile = "manifest"
	// FilesDir holds the files of a snapshot, beside its manifest.
	FilesDir = "state"
	// manifestFormat is in every manifest.
	manifestFormat = 1
)

// Manifest describes a snapshot and its files. On disk it is JSON on one line, followed by a line
// with its CRC-32C in eight hexadecimal digits.
type Manifest struct {
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
	Files        []File               `json:"files"`
}

// File is one file of a snapshot.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	CRC32C uint32 `json:"crc32c"`
}

// Encode returns the content of the manifest's file.
func (m *Manifest) Encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return fmt.Appendf(b, "\n%08x\n", crc32.Checksum(b, castagnoli)), nil
}

// parseManifest decodes a manifest and verifies its checksum, format and file names.
func parseManifest(b []byte) (*Manifest, error) {
	line, sum, _ := bytes.Cut(b, []byte("\n"))
	if string(sum) != fmt.Sprintf("%08x\n", crc32.Checksum(line, castagnoli)) {
		return nil, errors.New("checksum mismatch in its manifest")
	}
	m := &Manifest{}
	if err := json.Unmarshal(line, m); err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	if m.Format != manifestFormat {
		return nil, &diskfile.FormatError{Path: "a snapshot", Want: fmt.Sprint(manifestFormat), Have: fmt.Sprint(m.Format)}
	}
	for _, f := range m.Files {
		if f.Name == "" || f.Size < 0 || bytes.ContainsAny([]byte(f.Name), "/\\") || f.Name == ".." {
			return nil, fmt.Errorf("its manifest contains the invalid file name %q", f.Name)
		}
	}
	return m, nil
}

// meta returns the manifest in the form of the Raft library.
func (m *Manifest) meta() *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: m.Version, ID: m.ID, Index: m.Index, Term: m.Term,
		Configuration: raft.DecodeConfiguration(m.Members), ConfigurationIndex: m.MembersIndex,
		Size: m.streamSize(),
	}
}
