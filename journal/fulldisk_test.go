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
func newSmallDisk(t *testing.T) *powered {
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
	d := newImage(t, 48<<20)
	d.powerOn(t)
	return d
}

// fill writes a file until there is no room for a byte more.
func (d *powered) fill(t *testing.T) {
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

func (d *powered) makeRoom(t *testing.T) {
	t.Helper()
	if err := os.Remove(filepath.Join(d.mount, "filler")); err != nil {
		t.Fatal(err)
	}
}

func TestFullDiskLosesNothingAndTheNodeGoesOnWhenThereIsRoom(t *testing.T) {
	d := newSmallDisk(t)
	c := Config{
		Dir: d.dir(), SnapshotBytes: 1 << 20, TrailingLogs: 64,
	}
	acknowledged := 0
	for round := range 3 {
		j := opened(t, c)
		if round > 0 {
			wantLarge(t, j, acknowledged)
		}
		for range 40 {
			mustBegin(t, j, fmt.Sprintf("i-%03d", acknowledged))
			acknowledged++
		}
		d.fill(t)
		acknowledged = appendUntilFull(t, j, acknowledged)
		if err := j.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("close: %v", err)
		}
		var store *state.StoreError
		if again, err := Open(t.Context(), quiet(c)); err == nil {
			closed(t, again) // it has found room for what it needs
		} else if !errors.Is(err, syscall.ENOSPC) && !errors.As(err, &store) {
			t.Errorf("opened on a full disk: %v", err)
		}
		d.makeRoom(t)
	}
	j := opened(t, c)
	wantLarge(t, j, acknowledged)
	mustBegin(t, j, fmt.Sprintf("i-%03d", acknowledged))
	closed(t, j)
	t.Logf("%d instances acknowledged, none missing", acknowledged)
}

// mustBegin begins an instance. It may be there: when the disk was full the outcome of an
// append was unknown.
func mustBegin(t *testing.T, j *Journal, id string) {
	t.Helper()
	if !begun(t, j, large(leading(t, j), id)) {
		t.Fatalf("%s was not begun", id)
	}
}

// appendUntilFull appends until that is refused because the disk is full, and
// returns how many instances are acknowledged then.
func appendUntilFull(t *testing.T, j *Journal, acknowledged int) int {
	t.Helper()
	for range 10_000 {
		var (
			fenced *FencedError
			stale  *state.StaleEpochError
		)
		switch err := appended(t, j, large(j.Epoch(), fmt.Sprintf("i-%03d", acknowledged))); {
		case err == nil:
			acknowledged++
		case errors.As(err, &fenced):
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("fenced because of %v", err)
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

// wantLarge waits until a node leads and checks that it has what was acknowledged.
func wantLarge(t *testing.T, j *Journal, acknowledged int) {
	t.Helper()
	leading(t, j)
	for i := range acknowledged {
		if last := lastEvent(t, j, fmt.Sprintf("i-%03d", i)); last != 3 {
			t.Fatalf("i-%03d has %d events", i, last)
		}
	}
}
