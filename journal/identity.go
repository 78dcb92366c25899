package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// identityProtocol is the protocol that introduced recorded identities.
const identityProtocol = 3

// CheckIdentity returns an error unless a text has the form of an identity.
func CheckIdentity(text string) error {
	if !peer.IsValidIdentity(text) {
		return fmt.Errorf("%.100q is not a directory identity of %d hexadecimal digits", text, 2*peer.IdentityBytes)
	}
	return nil
}

const (
	directoryIDFile  = "directory-id"
	directoryIDMagic = "tenuto directory 1"
)

// These are the bits of directory.created, which the file stores beside the identity. What they
// name was created before the node first voted or acknowledged anything, so it must exist from then
// on.
const (
	// createdLog: the log and the stable file were created.
	createdLog = 1 << iota
	// createdPartitions: the logs and stable files of all other partitions were created, too. Only
	// partition 0 records it.
	createdPartitions
)

// readDirectoryID reads the identity of a directory. A directory without one gets want, or a random
// identity.
func (d *directory) readDirectoryID(want string) error {
	path := filepath.Join(d.path, directoryIDFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		d.self = peer.NewProcess(want)
		d.self.Starts = 0
		if err := diskfile.WriteAtomic(d.path, directoryIDFile, d.encodeDirectoryID()); err != nil {
			return fmt.Errorf("write %s: %w", directoryIDFile, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", directoryIDFile, err)
	}
	if err := d.decodeDirectoryID(path, content); err != nil {
		return err
	}
	if want != "" && d.self.Identity != want {
		return &DamagedError{Path: d.path, Reason: fmt.Sprintf(
			"its identity is %s, but that of the first partition's directory is %s, so one of the two was replaced. %s",
			d.self.Identity, want, raftlog.MissingRemedy)}
	}
	return nil
}

// countStart counts that the directory is opened.
func (d *directory) countStart() error {
	if d.path == "" {
		return nil
	}
	d.self.Starts++
	if err := d.overwriteDirectoryID(); err != nil {
		return fmt.Errorf("count start in %s: %w", directoryIDFile, err)
	}
	return nil
}

// recordCreated records that something was created. The caller must have synced what it created.
func (d *directory) recordCreated(created byte) error {
	if d.path == "" || d.created&created != 0 {
		return nil
	}
	d.created |= created
	if err := d.overwriteDirectoryID(); err != nil {
		return fmt.Errorf("write %s: %w", directoryIDFile, err)
	}
	return nil
}

// overwriteDirectoryID writes the file, one sector, in place: that needs no free space.
func (d *directory) overwriteDirectoryID() error {
	return diskfile.OverwriteSynced(filepath.Join(d.path, directoryIDFile), d.encodeDirectoryID())
}

func (d *directory) encodeDirectoryID() []byte {
	sector := make([]byte, diskfile.SectorSize)
	n := copy(sector, directoryIDMagic)
	identity, _ := hex.DecodeString(d.self.Identity)
	n += copy(sector[n:], identity)
	binary.BigEndian.PutUint64(sector[n:], d.self.Starts)
	sector[n+8] = d.created // 0 from a build that recorded nothing
	return diskfile.SetSectorChecksum(sector)
}

func (d *directory) decodeDirectoryID(path string, content []byte) error {
	if len(content) != diskfile.SectorSize || !diskfile.IsValidSector(content) {
		return &DamagedError{Path: path, Reason: "checksum mismatch"}
	}
	if magic := string(content[:len(directoryIDMagic)]); magic != directoryIDMagic {
		return &FormatError{Path: path, Want: directoryIDMagic, Have: magic}
	}
	b := content[len(directoryIDMagic):]
	d.self = peer.Process{
		Identity: hex.EncodeToString(b[:peer.IdentityBytes]),
		Starts:   binary.BigEndian.Uint64(b[peer.IdentityBytes:]),
		Session:  peer.NewIdentity(),
	}
	d.created = b[peer.IdentityBytes+8]
	return nil
}

// lineages compares the lineage of this node with those of others. A node whose lineage was
// continued by another one must not serve: the cluster goes on without it. It learns of that from
// any node of the other lineage, whichever of the two connects, and records it in its directory.
type lineages struct {
	config  *Config
	machine *state.Machine // set before Raft starts
	logs    raft.LogStore  // set with machine
	fail    func(error) error

	mu    sync.Mutex
	ended *LineageError // nil: as far as this node knows, its lineage goes on
}

const (
	endedLineageFile   = "lineage-ended"
	endedLineageFormat = 1
)

// endedLineage is the content of endedLineageFile.
type endedLineage struct {
	Format int    `json:"format"`
	Own    string `json:"own"`
	Latest string `json:"latest"`
	Node   string `json:"node"`
}

// LineageIDs returns the IDs of the latest lineages that this node's data continues, oldest first,
// beginning with "" for the cluster as it was founded. It returns none while the node has no data:
// then the leader may send it those of any lineage.
func (l *lineages) LineageIDs() []string {
	// Read before the lineages: a state that has applied an entry has its lineages.
	applied, _ := l.machine.Applied()
	if applied == 0 {
		// The log of a restored or recovered cluster begins after its snapshot.
		if first, err := l.logs.FirstIndex(); err != nil || first != 1 {
			return nil
		}
	}
	return append([]string{""}, lineage.IDs(l.machine.Lineages())...)
}

// CheckLineages returns a *LineageError if another node, with the same cluster name, belongs to
// another lineage; others are its LineageIDs. If that lineage continues this one, this node fails
// for good. A node without data, or of a build that does not name its lineages, is of no other
// lineage.
func (l *lineages) CheckLineages(node string, others []string) error {
	own := l.LineageIDs()
	err := &LineageError{Other: node, Own: lineage.Latest(own), Latest: lineage.Latest(others)}
	switch lineage.Compare(own, others) {
	case lineage.Unknown, lineage.Same:
		return nil
	case lineage.Later:
		return l.end(err)
	}
	return err
}

// CheckCaller returns a *LineageError if a caller has seen another lineage than this node's; "" is
// none.
func (l *lineages) CheckCaller(seen string) error {
	if seen == "" {
		return nil
	}
	if own := l.LineageIDs(); len(own) > 0 && lineage.Latest(own) != seen {
		return &LineageError{Own: lineage.Latest(own), Latest: seen}
	}
	return nil
}

// end records that this node's lineage was continued by another, and fails the node. Calls after
// the first return its error at once: they do not wait for the disk.
func (l *lineages) end(err *LineageError) error {
	err.Ended = true
	if dir := l.config.Dir; dir != "" {
		err.Path = filepath.Join(dir, endedLineageFile)
	}
	l.mu.Lock()
	ended := l.ended
	if ended == nil {
		l.ended = err
	}
	l.mu.Unlock()
	if ended != nil {
		return ended
	}
	if err.Path != "" {
		var content bytes.Buffer
		failed := frame.WriteJSON(&content, "", &endedLineage{endedLineageFormat, err.Own, err.Latest, err.Other})
		if failed == nil {
			failed = diskfile.WriteAtomic(l.config.Dir, endedLineageFile, content.Bytes())
		}
		if failed != nil {
			l.config.Logger.Error("cannot record that another lineage continues the cluster; a restarted node learns it again",
				"path", err.Path, "error", failed)
		}
	}
	_ = l.fail(err)
	return err
}

// checkLineageEnded returns a *LineageError if the directory of a node records that its lineage was
// continued by another.
func checkLineageEnded(dir string) error {
	if dir == "" {
		return nil
	}
	path := filepath.Join(dir, endedLineageFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", endedLineageFile, err)
	}
	var ended endedLineage
	if err := frame.ReadJSON(bytes.NewReader(content), &ended); err != nil {
		return &DamagedError{Path: path, Reason: err.Error()}
	}
	if ended.Format != endedLineageFormat {
		return &FormatError{Path: path, Want: fmt.Sprint(endedLineageFormat), Have: fmt.Sprint(ended.Format)}
	}
	return &LineageError{Other: ended.Node, Own: ended.Own, Latest: ended.Latest, Ended: true, Path: path}
}

// Bounds of questions for the lineages of other nodes.
const (
	lineagesTimeout = time.Second
	// lineagesInterval is how often the leader asks the members that do not answer it.
	lineagesInterval = 5 * time.Second
)

// ask asks the nodes at some addresses for their lineages, for up to lineagesTimeout, and compares
// them as CheckLineages does.
func (l *lineages) ask(ctx context.Context, addresses []string) error {
	if l.config.AskLineages == nil || len(addresses) == 0 || len(l.LineageIDs()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lineagesTimeout)
	defer cancel()
	var asking sync.WaitGroup
	errs := make([]error, len(addresses))
	for i, address := range addresses {
		asking.Go(func() {
			others := l.config.AskLineages(ctx, address)
			var other *LineageError
			// Of other lineages, only those that continue this one matter here.
			if errors.As(l.CheckLineages("at "+address, others), &other) && other.Ended {
				errs[i] = other
			}
		})
	}
	asking.Wait()
	return cmp.Or(errs...)
}

// askUnreachable asks the members that do not answer this node, which leads.
func (l *lineages) askUnreachable(ctx context.Context, members []Member) {
	var addresses []string
	for _, m := range members {
		if m.Unreachable {
			addresses = append(addresses, m.Address)
		}
	}
	_ = l.ask(ctx, addresses) // CheckLineages has failed the node
}

// Identity returns the identity of this node's directory.
func (i *identities) Identity() string { return i.self.Identity }

// Starts returns how often this node's directory was opened, and a random text that differs between
// processes that opened copies of it.
func (i *identities) Starts() (count uint64, session string) { return i.self.Starts, i.self.Session }

// recordedIdentity returns the recorded identity of a member, "" if there is none yet.
func (i *identities) recordedIdentity(node string) (identity string, member bool) {
	servers := i.servers()
	at := slices.IndexFunc(servers, func(s raft.Server) bool { return string(s.ID) == node })
	if at < 0 {
		return "", false
	}
	return peer.IdentityOf(&servers[at]), true
}

// hasRecordedIdentities reports whether the identity of any member is recorded. If so, every member
// speaks a protocol with identities.
func (i *identities) hasRecordedIdentities() bool {
	return slices.ContainsFunc(i.servers(), func(s raft.Server) bool { return peer.IdentityOf(&s) != "" })
}

// ErrOtherDirectory matches every DirectoryError.
var ErrOtherDirectory = errors.New("the node's directory is not the one that the cluster has recorded")

// DirectoryError: the cluster has recorded another directory for the node: its directory was lost
// or replaced since. The node gets no vote, and its acknowledgments do not count. It matches
// ErrOtherDirectory.
type DirectoryError struct {
	Node     string
	Identity string // of the node's directory
	Recorded string // by the cluster; "" if the node was added before identities were recorded
}

func (e *DirectoryError) Error() string {
	recorded := e.Recorded
	if recorded == "" {
		recorded = "none, because it was added before identities were recorded"
	}
	return fmt.Sprintf("%v: node %s has the directory %s, recorded is %s. If the recorded directory exists, start the node "+
		"with it. If it is lost, replace the node (remove it, and start another name with Config.Join), "+
		"or have the cluster adopt its new directory: tenuto adopt %s %s",
		ErrOtherDirectory, e.Node, e.Identity, recorded, e.Node, e.Identity)
}

// Is reports whether target is ErrOtherDirectory.
func (*DirectoryError) Is(target error) bool { return target == ErrOtherDirectory }

// ErrDirectoryCopied matches every DirectoryCopiedError.
var ErrDirectoryCopied = errors.New("another process runs with a copy of the node's directory")

// DirectoryCopiedError: two processes have opened copies of one directory, or a directory was
// restored to an older state. The process that the other members have seen first continues; the
// other is rejected. If some members have seen one first and some the other, both are rejected. It
// matches ErrDirectoryCopied.
type DirectoryCopiedError struct {
	Node   string
	Reason string
}

func (e *DirectoryCopiedError) Error() string {
	return fmt.Sprintf("%v: node %s: %s. If the other process is the node, stop this one and delete its copy. "+
		"If the other is gone for good, it may have acknowledged what this directory lacks: start the node with an empty "+
		"directory and have the cluster adopt that (tenuto adopt), or replace the node by one of another name (Config.Join)",
		ErrDirectoryCopied, e.Node, e.Reason)
}

// Is reports whether target is ErrDirectoryCopied.
func (*DirectoryCopiedError) Is(target error) bool { return target == ErrDirectoryCopied }
