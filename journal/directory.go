package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	lockFile     = "lock"
	identityFile = "identity"
	// directoryFormat is the first line of the identity file: 2 since raft.stable
	// holds the term and the vote.
	directoryFormat = "tenuto journal 2"
)

// directory is the journal's own directory, locked and stamped.
type directory struct {
	path string
	lock *os.File
	self self
	// noted is what was created in it, and must be there: notedLog, notedGroups.
	noted byte
}

// stamp is whose a directory is.
type stamp struct {
	node, cluster string
	groups, group int
}

// String returns the content of the identity file. That of the only group says
// nothing of groups.
func (s stamp) String() string {
	text := directoryFormat + "\nnode " + s.node + "\n"
	if s.cluster != "" {
		text += "cluster " + s.cluster + "\n"
	}
	if s.groups > 1 {
		text += fmt.Sprintf("groups %d\ngroup %d\n", s.groups, s.group)
	}
	return text
}

// groupsIn returns how many groups a stamp speaks of.
func groupsIn(text string) int {
	for line := range strings.Lines(text) {
		var groups int
		if _, err := fmt.Sscanf(line, "groups %d\n", &groups); err == nil {
			return groups
		}
	}
	return 1
}

// openDirectory creates the directory if need be, locks it against other
// processes and checks that it belongs to a group on a node of a cluster. It gets an
// identity if it has none: the given one, or a random one.
func openDirectory(path string, want stamp, identity string) (*directory, error) {
	if path == "" {
		return &directory{self: newSelf(identity)}, nil
	}
	if err := errors.Join(os.MkdirAll(path, 0o700), syncDir(vfs.Default, filepath.Dir(path))); err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	d := &directory{path: path, lock: lock}
	if held, err := tryLock(lock); err != nil {
		if held {
			err = &LockedError{Dir: path}
		}
		return nil, errors.Join(fmt.Errorf("lock directory: %w", err), lock.Close())
	}
	err = d.identify(want)
	if err == nil {
		err = d.readSelf(identity)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// identify checks the stamp, or sets it on a directory that has none. A log
// without a stamp is nobody's: the stamp is synced before the log is created.
func (d *directory) identify(by stamp) error {
	want := by.String()
	have, err := os.ReadFile(filepath.Join(d.path, identityFile))
	if err == nil {
		if format, _, _ := strings.Cut(string(have), "\n"); format != directoryFormat {
			return &FormatError{Path: d.path, Want: directoryFormat, Have: format}
		}
		of := by
		of.groups = groupsIn(string(have))
		if of.groups != by.groups && string(have) == of.String() {
			return &GroupsError{Dir: d.path, Want: by.groups, Have: of.groups}
		}
		if string(have) != want {
			return &IdentityError{Dir: d.path, Want: oneLine(want), Have: oneLine(string(have))}
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read identity: %w", err)
	}
	for _, name := range []string{logFile, stableFileName} {
		if _, err := os.Stat(filepath.Join(d.path, name)); err == nil {
			return &IdentityError{Dir: d.path, Want: oneLine(want)}
		}
	}
	if err := writeSynced(d.path, identityFile, []byte(want)); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

// completeFile is what builds that noted nothing have put into the first directory of a node
// when each of its groups had one.
const completeFile = "groups-complete"

// CreateGroups creates the directories of all groups of a node, with the log and the identity
// in each, before the node takes part in any of them. The groups have the Node and the Cluster
// of c. When all are there, that is noted in the first, and from then on none is created
// again: without it the node could vote a second time, and acknowledge with less than it had.
//
// Errors: as of Open; a *DamagedError for one that was there, and is gone or has lost its
// identity.
func CreateGroups(c Config, dirs []string) (err error) {
	if len(dirs) < 2 || dirs[0] == "" {
		return nil // Open does it
	}
	first, err := openDirectory(dirs[0], stamp{c.Node, c.Cluster, len(dirs), 0}, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.close()) }()
	if first.noted&notedGroups != 0 {
		return checkNoted(dirs[1:])
	}
	if _, err := os.Stat(filepath.Join(dirs[0], completeFile)); err == nil {
		if i := slices.IndexFunc(dirs, func(dir string) bool { return !IsStamped(dir) }); i >= 0 {
			return &DamagedError{Path: dirs[i], Reason: goneReason}
		}
	}
	if err := first.createLog(c); err != nil {
		return err
	}
	for i, dir := range dirs[1:] {
		d, err := openDirectory(dir, stamp{c.Node, c.Cluster, len(dirs), i + 1}, first.self.Identity)
		if err != nil {
			return err
		}
		if err := errors.Join(d.createLog(c), d.close()); err != nil {
			return err
		}
	}
	return first.note(notedGroups)
}

// checkNoted returns a *DamagedError unless each directory has noted that it has a log; whether
// it has is seen when it is opened.
func checkNoted(dirs []string) error {
	for _, dir := range dirs {
		path := filepath.Join(dir, selfFileName)
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return &DamagedError{Path: dir, Reason: goneReason}
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", selfFileName, err)
		}
		var d directory
		if err := d.decodeSelf(path, content); err != nil {
			return err
		}
		if d.noted&notedLog == 0 {
			return &DamagedError{Path: dir, Reason: goneReason}
		}
	}
	return nil
}

// createLog creates the log and the stable file, unless that was noted before.
func (d *directory) createLog(c Config) error {
	if d.noted&notedLog != 0 {
		return nil
	}
	c.Dir = d.path
	logs, stable, err := d.openLogStore(&c)
	if err != nil {
		return err
	}
	return errors.Join(stable.close(), logs.close())
}

// IsStamped tells whether a directory is that of a node's journal already, so far as
// it can be read.
func IsStamped(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, identityFile))
	return !errors.Is(err, os.ErrNotExist)
}

func oneLine(stamp string) string {
	return strings.ReplaceAll(strings.TrimSpace(stamp), "\n", ", ")
}

// close unlocks the directory. The lock file stays: removing it would let two
// processes hold locks on two files of the same name.
func (d *directory) close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// writeSynced writes a file such that it is there whole or not at all.
func writeSynced(dir, name string, content []byte) (err error) {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(vfs.Default, dir)
}
