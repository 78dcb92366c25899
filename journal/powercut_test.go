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

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// powerCuts is set to a number of cuts to run this test, which needs root and loop devices. "make
// powercut" sets it.
const powerCuts = "TENUTO_POWERCUTS"

// extShutdown is the ioctl that stops a file system at once. With the argument noLogFlush it drops
// what is not on disk yet, like a power cut.
const (
	extShutdown = 0x8004587d
	noLogFlush  = 2
)

// loopDisk is a file system in an image whose power can be cut.
type loopDisk struct {
	image, mount string
	size         int64 // bytes
}

func newPowerCutDisk(t *testing.T) *loopDisk {
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
	return newLoopDisk(t, 512<<20)
}

// newLoopDisk formats an image of a size with a file system. Mounting it needs root.
func newLoopDisk(t *testing.T, size int64) *loopDisk {
	t.Helper()
	root := t.TempDir()
	d := &loopDisk{filepath.Join(root, "image"), filepath.Join(root, "mount"), size}
	if err := os.Mkdir(d.mount, 0o700); err != nil {
		t.Fatal(err)
	}
	d.format(t)
	return d
}

func (d *loopDisk) format(t *testing.T) {
	t.Helper()
	f, err := os.Create(d.image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(d.size), f.Close()); err != nil {
		t.Fatal(err)
	}
	runCommand(t, "mkfs.ext4", "-q", "-F", d.image)
}

func runCommand(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// powerOn mounts the file system such that nothing is written back by itself before the cut.
func (d *loopDisk) powerOn(t *testing.T) {
	t.Helper()
	runCommand(t, "mount", "-o", "loop,commit=300", d.image, d.mount)
	t.Cleanup(func() { _ = syscall.Unmount(d.mount, syscall.MNT_DETACH) })
}

// cutPower stops the file system.
func (d *loopDisk) cutPower(t *testing.T) {
	t.Helper()
	f, err := os.Open(d.mount)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	outcome := uint32(noLogFlush)
	if err := ioctl(f, extShutdown, &outcome); err != nil {
		t.Fatalf("cut the power: %v", err)
	}
}

func (d *loopDisk) powerOff(t *testing.T) {
	t.Helper()
	waittest.Eventually(t, "nobody uses the file system", func() bool { return syscall.Unmount(d.mount, 0) == nil })
}

func TestPowerCut_LosesNothingAcknowledged(t *testing.T) {
	d := newPowerCutDisk(t)
	cuts, err := strconv.Atoi(os.Getenv(powerCuts))
	if err != nil {
		t.Fatal(err)
	}
	acknowledged := map[string]uint64{}
	for round := range cuts {
		d.powerOn(t)
		d.cutPowerOnce(t, false, acknowledged)
		d.powerOff(t)
		d.powerOn(t)
		if err := d.checkAcknowledged(t, acknowledged); err != nil {
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

// This proves that the test above would detect a write that is not synced.
func TestPowerCut_WithoutSyncLosesAcknowledged(t *testing.T) {
	d := newPowerCutDisk(t)
	const cutsMax = 5
	for round := range cutsMax {
		d.format(t)
		acknowledged := map[string]uint64{}
		d.powerOn(t)
		d.cutPowerOnce(t, true, acknowledged)
		d.powerOff(t)
		d.powerOn(t)
		err := d.checkAcknowledged(t, acknowledged)
		d.powerOff(t)
		if err != nil {
			t.Logf("seen at cut %d: %v", round+1, err)
			return
		}
	}
	t.Errorf("%d cuts without sync, but nothing is missing", cutsMax)
}

// cutPowerOnce makes a child append, and cuts the power meanwhile.
func (d *loopDisk) cutPowerOnce(t *testing.T, noSync bool, acknowledged map[string]uint64) {
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
				d.cutPower(t)
				_ = child.Process.Kill()
			})
		}
		if line := lines.Text(); strings.HasPrefix(line, "ack") {
			recordAck(t, line, acknowledged) // errors are those of a disk without power
		}
	}
	_ = child.Wait()
	if n == 0 {
		t.Fatal("the child has acknowledged nothing")
	}
	<-cut
}

func (d *loopDisk) dir() string { return filepath.Join(d.mount, "journal") }

// checkAcknowledged opens the journal and checks that everything acknowledged is there.
func (d *loopDisk) checkAcknowledged(t *testing.T, acknowledged map[string]uint64) error {
	t.Helper()
	j, err := Open(t.Context(), testConfig(Config{Dir: d.dir()}))
	if err != nil {
		return err
	}
	defer closeJournal(t, j)
	awaitLeadership(t, j)
	for id, want := range acknowledged {
		if got := lastEvent(t, j, id); got < want {
			return fmt.Errorf("%s has %d events, %d were acknowledged", id, got, want)
		}
	}
	return nil
}
