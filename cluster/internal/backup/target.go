package backup

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Target describes the first node of a restored or recovered cluster.
type Target struct {
	Dir                        string
	NodeID, ClusterID, Address string // "" for the default
}

// Check returns a [*replay.InvalidError] for a field with which no node could be started.
func (t *Target) Check() error {
	for _, field := range []struct{ name, value string }{{"NodeID", t.NodeID}, {"ClusterID", t.ClusterID}} {
		if field.value != "" && !transport.IsName(field.value) {
			return invalidTarget(field.name, fmt.Sprintf("is %.100q: %s", field.value, transport.NameRule))
		}
	}
	if t.Address != "" {
		if _, _, err := net.SplitHostPort(t.Address); err != nil || len(t.Address) > addressMax {
			return invalidTarget("Address", fmt.Sprintf("is %.100q: host:port of at most %d bytes is required", t.Address, addressMax))
		}
	}
	if t.Dir == "" {
		return invalidTarget("Dir", "is empty")
	}
	return nil
}

// addressMax bounds the address of a node, in bytes: a host name has at most 253.
const addressMax = 253 + len(":65535")

// OpenStage opens the stage of the target's directory, whose name has the suffix in addition. A
// symbolic link is followed.
//
// Errors: a [*replay.InvalidError] for a directory that is not empty, or a file, or a link that
// leads nowhere; those of [journal.OpenStage].
func (t *Target) OpenStage(suffix string) (*journal.Stage, error) {
	dir, err := filepath.Abs(t.Dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Lstat(dir); err == nil && info.Mode()&os.ModeSymlink != 0 {
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return nil, invalidTarget("Dir", fmt.Sprintf("is %s, a symbolic link that cannot be followed: %v", t.Dir, err))
		}
	}
	if err := checkEmpty(dir); err != nil {
		return nil, err
	}
	return journal.OpenStage(dir, suffix)
}

// checkEmpty returns an error unless a path is that of an empty directory, or free.
func checkEmpty(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return invalidTarget("Dir", fmt.Sprintf("is %s, which is no directory", path))
	}
	entries, err := os.ReadDir(path)
	if len(entries) > 0 {
		return invalidTarget("Dir", fmt.Sprintf("is %s, which is not empty", path))
	}
	return err
}

func invalidTarget(field, reason string) error {
	return &replay.InvalidError{Field: "Target." + field, Reason: reason}
}
