package journal

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
)

// Every directory has a random identity, written once and never changed. Raft's
// configuration names each member with the identity of its directory, so that it is
// replicated, is in each snapshot, and is known before the log is applied: to a node that
// has lost its directory Raft is a stranger, whatever name it has.
//
// The configuration holds it behind the address, as "host:port#identity". A member that was
// added by a build before protocol 3 has none until the leader records it; see tendIdentity.
const identityMark = "#"

// identityProtocol is the protocol from which on identities are recorded.
const identityProtocol = 3

// withIdentity returns an address as Raft's configuration has it.
func withIdentity(address, identity string) raft.ServerAddress {
	if identity == "" {
		return raft.ServerAddress(address)
	}
	return raft.ServerAddress(address + identityMark + identity)
}

// splitAddress returns the address of a server and the identity that is recorded for it, ""
// if none is.
func splitAddress(of raft.ServerAddress) (address, identity string) {
	address, identity, _ = strings.Cut(string(of), identityMark)
	return address, identity
}

func addressOf(server *raft.Server) string {
	address, _ := splitAddress(server.Address)
	return address
}

func identityOf(server *raft.Server) string {
	_, identity := splitAddress(server.Address)
	return identity
}

// newIdentity returns a random identity.
func newIdentity() string {
	var b [identityBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

const identityBytes = 16

// validIdentity reports whether a text has the form of an identity.
func validIdentity(text string) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == identityBytes && strings.ToLower(text) == text
}

// CheckIdentity returns an error unless a text has the form of an identity.
func CheckIdentity(text string) error {
	if !validIdentity(text) {
		return fmt.Errorf("%.100q is not the identity of a directory: it has %d hexadecimal digits", text, 2*identityBytes)
	}
	return nil
}

// A self is what a node says of itself to others: the identity of its directory, and which
// of the processes it is that have opened it.
type self struct {
	Identity string `json:"identity"`
	// Starts counts how often the directory was opened. It is synced before the node takes
	// part in anything.
	Starts uint64 `json:"starts"`
	// Session is random, and differs between two processes that have opened two copies of
	// the directory.
	Session string `json:"session"`
}

// newSelf returns the self of a node that keeps everything in memory: each start is a new
// directory.
func newSelf(identity string) self {
	if identity == "" {
		identity = newIdentity()
	}
	return self{Identity: identity, Starts: 1, Session: newIdentity()}
}

const (
	selfFileName = "directory-id"
	selfMagic    = "tenuto directory 1"
)

// What a directory's identity file notes, durably, beside the identity: what was there when
// the node took part in anything for the first time, and so must be there ever after.
const (
	// notedLog: the log and the stable file were created.
	notedLog = 1 << iota
	// notedGroups: so were those of every other group. Only the first group notes it.
	notedGroups
)

// Reasons of a *DamagedError about what a directory must have.
const (
	goneReason = "it is gone, and what this node has promised to the others was in it. " + goneRemedy
	goneRemedy = "If it was moved, put it back. " +
		"If it is lost, empty the whole directory of the node and start the node again: it then has another identity, " +
		"which the cluster refuses until it has adopted it (tenuto adopt NODE IDENTITY). " +
		"Or replace the node by one of another name (Config.Join)"
)

// readSelf reads the identity of a directory; a directory without an identity gets one: want,
// or a random one.
func (d *directory) readSelf(want string) error {
	path := filepath.Join(d.path, selfFileName)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		d.self = newSelf(want)
		d.self.Starts = 0
		if err := writeSynced(d.path, selfFileName, d.encodeSelf()); err != nil {
			return fmt.Errorf("write %s: %w", selfFileName, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", selfFileName, err)
	}
	if err := d.decodeSelf(path, content); err != nil {
		return err
	}
	if want != "" && d.self.Identity != want {
		return &DamagedError{Path: d.path, Reason: fmt.Sprintf(
			"it has the identity %s, and the directory of the first group has %s, so that one of the two is not the one that was there. %s",
			d.self.Identity, want, goneRemedy)}
	}
	return nil
}

// countStart counts that the directory is opened.
func (d *directory) countStart() error {
	if d.path == "" {
		return nil
	}
	d.self.Starts++
	if err := d.overwriteSelf(); err != nil {
		return fmt.Errorf("count start in %s: %w", selfFileName, err)
	}
	return nil
}

// note notes that something was created, which must be synced by then.
func (d *directory) note(created byte) error {
	if d.path == "" || d.noted&created != 0 {
		return nil
	}
	d.noted |= created
	if err := d.overwriteSelf(); err != nil {
		return fmt.Errorf("write %s: %w", selfFileName, err)
	}
	return nil
}

// overwriteSelf writes the file, one sector, in place: that needs no room on the disk.
func (d *directory) overwriteSelf() error {
	return overwriteSynced(filepath.Join(d.path, selfFileName), d.encodeSelf())
}

func (d *directory) encodeSelf() []byte {
	sector := make([]byte, sectorSize)
	n := copy(sector, selfMagic)
	identity, _ := hex.DecodeString(d.self.Identity)
	n += copy(sector[n:], identity)
	binary.BigEndian.PutUint64(sector[n:], d.self.Starts)
	sector[n+8] = d.noted // 0 from a build that noted nothing
	return sealSector(sector)
}

func (d *directory) decodeSelf(path string, content []byte) error {
	if len(content) != sectorSize || !sectorChecks(content) {
		return &DamagedError{Path: path, Reason: "the identity of the directory has a checksum mismatch"}
	}
	if magic := string(content[:len(selfMagic)]); magic != selfMagic {
		return &FormatError{Path: path, Want: selfMagic, Have: magic}
	}
	b := content[len(selfMagic):]
	d.self = self{
		Identity: hex.EncodeToString(b[:identityBytes]),
		Starts:   binary.BigEndian.Uint64(b[identityBytes:]),
		Session:  newIdentity(),
	}
	d.noted = b[identityBytes+8]
	return nil
}

// overwriteSynced writes a sector in place.
func overwriteSynced(path string, sector []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(sector, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// Identity returns the identity of this node's directory.
func (j *Journal) Identity() string { return j.self.Identity }

// Starts returns how often this node's directory was opened, and a random text that differs
// between two processes that have opened two copies of it.
func (j *Journal) Starts() (count uint64, session string) { return j.self.Starts, j.self.Session }

// servers returns the members by the latest configuration in this node's log.
func (j *Journal) servers() []raft.Server { return j.raft.GetConfiguration().Configuration().Servers }

// recorded returns the identity that is recorded of a member, "" if none is yet.
func (j *Journal) recorded(node string) (identity string, member bool) {
	servers := j.servers()
	i := slices.IndexFunc(servers, func(s raft.Server) bool { return string(s.ID) == node })
	if i < 0 {
		return "", false
	}
	return identityOf(&servers[i]), true
}

// recordsIdentities reports whether the identity of any member is recorded: then every
// member speaks a protocol that has them.
func (j *Journal) recordsIdentities() bool {
	return slices.ContainsFunc(j.servers(), func(s raft.Server) bool { return identityOf(&s) != "" })
}

// ErrOtherDirectory is what every DirectoryError is.
var ErrOtherDirectory = errors.New("the node has another directory than the cluster has recorded for it")

// DirectoryError: a node of that name is known to the cluster, with another directory: it was
// lost or replaced since. It gets no vote and acknowledges nothing. errors.Is finds
// ErrOtherDirectory.
type DirectoryError struct {
	Node     string
	Identity string // of the directory that the node has
	Recorded string // what the cluster has recorded; "" if the node was added before identities were
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

// ErrCopied is what every CopiedError is.
var ErrCopied = errors.New("another process runs with a copy of the node's directory")

// CopiedError: two processes have opened copies of one directory, or one was set back to an
// older state. The one that the other members have heard of first goes on; the other takes no
// part. If some have heard first of the one and some of the other, neither does. errors.Is finds
// ErrCopied.
type CopiedError struct {
	Node   string
	Reason string
}

func (e *CopiedError) Error() string {
	return fmt.Sprintf("%v: node %s: %s. If the other process is the node, stop this one and delete its copy. "+
		"If the other is gone for good, it may have acknowledged what this directory lacks: start the node with an empty "+
		"directory and have the cluster adopt that (tenuto adopt), or replace the node by one of another name (Config.Join)",
		ErrCopied, e.Node, e.Reason)
}

// Is reports whether target is ErrCopied.
func (*CopiedError) Is(target error) bool { return target == ErrCopied }
