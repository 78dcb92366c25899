//go:build linux

package journal

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// powerCuts is set, to a number of cuts, by those who run this test: it needs
// root and loop devices. "make powercut" does.
const powerCuts = "TENUTO_POWERCUTS"

// extShutdown is the ioctl that stops a file system at once; noLogFlush as its
// argument leaves what is not on disk yet where it is, as a power cut does.
const (
	extShutdown = 0x8004587d
	noLogFlush  = 2
)

// powered is a file system in an image that can be cut off from its power.
type powered struct {
	image, mount string
	size         int64 // bytes
}

func newPowered(t *testing.T) *powered {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Skip("SKIPPED: no power is cut in CI")
	}
	if os.Getenv(powerCuts) == "" {
		t.Skipf("SKIPPED: power is cut by \"make powercut\", which sets %s and needs root", powerCuts)
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: cutting power needs root, to mount")
	}
	return newImage(t, 512<<20)
}

// newImage formats a file of a size as a file system. It takes root to mount it.
func newImage(t *testing.T, size int64) *powered {
	t.Helper()
	root := t.TempDir()
	d := &powered{filepath.Join(root, "image"), filepath.Join(root, "mount"), size}
	if err := os.Mkdir(d.mount, 0o700); err != nil {
		t.Fatal(err)
	}
	d.format(t)
	return d
}

func (d *powered) format(t *testing.T) {
	t.Helper()
	f, err := os.Create(d.image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(d.size), f.Close()); err != nil {
		t.Fatal(err)
	}
	command(t, "mkfs.ext4", "-q", "-F", d.image)
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// powerOn mounts the file system. Nothing is written back by itself before the
// power is cut.
func (d *powered) powerOn(t *testing.T) {
	t.Helper()
	command(t, "mount", "-o", "loop,commit=300", d.image, d.mount)
	t.Cleanup(func() { _ = syscall.Unmount(d.mount, syscall.MNT_DETACH) })
}

// cut stops the file system.
func (d *powered) cut(t *testing.T) {
	t.Helper()
	f, err := os.Open(d.mount)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	how := uint32(noLogFlush)
	if err := ioctl(f, extShutdown, &how); err != nil {
		t.Fatalf("cut the power: %v", err)
	}
}

func (d *powered) powerOff(t *testing.T) {
	t.Helper()
	eventually(t, "nobody uses the file system", func() bool { return syscall.Unmount(d.mount, 0) == nil })
}

func TestPowerCutLosesNothingAcknowledged(t *testing.T) {
	d := newPowered(t)
	cuts, err := strconv.Atoi(os.Getenv(powerCuts))
	if err != nil {
		t.Fatal(err)
	}
	acknowledged := map[string]uint64{}
	for round := range cuts {
		d.powerOn(t)
		d.cutOnce(t, false, acknowledged)
		d.powerOff(t)
		d.powerOn(t)
		if err := d.complete(t, acknowledged); err != nil {
			t.Fatalf("after cut %d: %v", round+1, err)
		}
		d.powerOff(t)
	}
	total := uint64(0)
	for _, n := range acknowledged {
		total += n
	}
	t.Logf("%d cuts, %d events acknowledged, none missing", cuts, total)
}

// The proof that the test above would see a write that is not synced.
func TestPowerCutWithoutSyncLosesWhatWasAcknowledged(t *testing.T) {
	d := newPowered(t)
	const cutsMax = 5
	for round := range cutsMax {
		d.format(t)
		acknowledged := map[string]uint64{}
		d.powerOn(t)
		d.cutOnce(t, true, acknowledged)
		d.powerOff(t)
		d.powerOn(t)
		err := d.complete(t, acknowledged)
		d.powerOff(t)
		if err != nil {
			t.Logf("seen at cut %d: %v", round+1, err)
			return
		}
	}
	t.Errorf("%d cuts without sync, and nothing is missing", cutsMax)
}

// cutOnce has a child append, and cuts the power under it.
func (d *powered) cutOnce(t *testing.T, noSync bool, acknowledged map[string]uint64) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+d.dir())
	if noSync {
		child.Env = append(child.Env, childNoSync+"=1")
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	cut := make(chan struct{})
	lines, n := bufio.NewScanner(out), 0
	for ; lines.Scan(); n++ {
		if n == 0 {
			after := 100*time.Millisecond + time.Duration(rand.IntN(300))*time.Millisecond
			time.AfterFunc(after, func() {
				defer close(cut)
				d.cut(t)
				_ = child.Process.Kill()
			})
		}
		if line := lines.Text(); strings.HasPrefix(line, "ack") {
			note(t, line, acknowledged) // errors are those of a disk without power
		}
	}
	_ = child.Wait()
	if n == 0 {
		t.Fatal("the child has acknowledged nothing")
	}
	<-cut
}

func (d *powered) dir() string { return filepath.Join(d.mount, "journal") }

// complete opens the journal and checks that all that was acknowledged is there.
func (d *powered) complete(t *testing.T, acknowledged map[string]uint64) error {
	t.Helper()
	j, err := Open(t.Context(), quiet(Config{Dir: d.dir()}))
	if err != nil {
		return err
	}
	defer closed(t, j)
	leading(t, j)
	for id, want := range acknowledged {
		if got := lastEvent(t, j, id); got < want {
			return fmt.Errorf("%s has %d events, %d were acknowledged", id, got, want)
		}
	}
	return nil
}
