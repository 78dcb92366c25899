//go:build linux

package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tenuto-dev/tenuto/journal/state"
)

// newSmallDisk mounts a file system that is easily filled.
func newSmallDisk(t *testing.T) *loopDisk {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Skip("SKIPPED: nothing is mounted in CI")
	}
	if os.Getenv("TENUTO_FAULTS") == "" {
		t.Skip("SKIPPED: a disk is filled by \"make faults\", which needs root for that")
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: filling a disk needs root, to mount one that is small")
	}
	d := newLoopDisk(t, 48<<20)
	d.powerOn(t)
	return d
}

// fillUp writes a file until there is no room for another byte.
func (d *loopDisk) fillUp(t *testing.T) {
	t.Helper()
	f, err := os.Create(filepath.Join(d.mount, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		if _, err := f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			chunk = chunk[:len(chunk)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func (d *loopDisk) freeSpace(t *testing.T) {
	t.Helper()
	if err := os.Remove(filepath.Join(d.mount, "filler")); err != nil {
		t.Fatal(err)
	}
}

func TestFullDisk_NodeContinuesOnceThereIsSpace(t *testing.T) {
	d := newSmallDisk(t)
	c := Config{
		Dir: d.dir(), SnapshotBytes: 1 << 20, TrailingLogs: 64,
	}
	acknowledged := 0
	for round := range 3 {
		j := openJournal(t, c)
		if round > 0 {
			wantLargeInstances(t, j, acknowledged)
		}
		for range 40 {
			mustBegin(t, j, fmt.Sprintf("i-%03d", acknowledged))
			acknowledged++
		}
		d.fillUp(t)
		acknowledged = appendUntilFull(t, j, acknowledged)
		if err := j.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("close: %v", err)
		}
		var store *state.StoreError
		if again, err := Open(t.Context(), testConfig(c)); err == nil {
			closeJournal(t, again) // it has found the room that it needs
		} else if !errors.Is(err, syscall.ENOSPC) && !errors.As(err, &store) {
			t.Errorf("opened on a full disk: %v", err)
		}
		d.freeSpace(t)
	}
	j := openJournal(t, c)
	wantLargeInstances(t, j, acknowledged)
	mustBegin(t, j, fmt.Sprintf("i-%03d", acknowledged))
	closeJournal(t, j)
	t.Logf("%d instances acknowledged, none missing", acknowledged)
}

// mustBegin begins an instance. The instance may exist already: the outcome of an append on a full
// disk is unknown.
func mustBegin(t *testing.T, j *Journal, id string) {
	t.Helper()
	if !tryBegin(t, j, newLargeStartAppend(awaitLeadership(t, j), id)) {
		t.Fatalf("%s was not begun", id)
	}
}

// appendUntilFull appends until the disk is full, and returns the number of acknowledged instances.
func appendUntilFull(t *testing.T, j *Journal, acknowledged int) int {
	t.Helper()
	for range 10_000 {
		var (
			nodeFailed *NodeFailedError
			stale      *state.StaleEpochError
		)
		switch err := proposeAppend(t, j, newLargeStartAppend(j.Epoch(), fmt.Sprintf("i-%03d", acknowledged))); {
		case err == nil:
			acknowledged++
		case errors.As(err, &nodeFailed):
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("failed because of %v", err)
			}
			return acknowledged
		case errors.Is(err, ErrUnknownOutcome):
			return acknowledged
		case !errors.Is(err, ErrNotLeader) && !errors.As(err, &stale):
			t.Fatalf("append on a full disk: %v", err)
		}
	}
	t.Fatal("the disk is not full")
	return acknowledged
}

// wantLargeInstances waits until a node leads and checks that it has all acknowledged instances.
func wantLargeInstances(t *testing.T, j *Journal, acknowledged int) {
	t.Helper()
	awaitLeadership(t, j)
	for i := range acknowledged {
		if last := lastEvent(t, j, fmt.Sprintf("i-%03d", i)); last != 3 {
			t.Fatalf("i-%03d has %d events", i, last)
		}
	}
}
