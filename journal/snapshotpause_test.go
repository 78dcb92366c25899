package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

// BenchmarkSnapshotPause takes snapshots of instances with an open activity each, while appends
// continue. It reports how long a snapshot takes, and the longest time to apply an entry of 64
// appends with and without a snapshot. It also reports the cost of a snapshot after a thousand new
// instances without other load. In memory, a snapshot is the view alone, for which applying waits;
// writing it runs beside that.
func BenchmarkSnapshotPause(b *testing.B) {
	for _, instances := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("disk/%d", instances), func(b *testing.B) {
			n := openDiskNode(b)
			fillNode(b, n, instances)
			measurePauses(b, n, n.snapshot)
			if err := n.machine.Close(); err != nil {
				b.Fatal(err)
			}
		})
		b.Run(fmt.Sprintf("memory/%d", instances), func(b *testing.B) {
			n := &snapshotNode{machine: state.New()}
			fillNode(b, n, instances)
			measurePauses(b, n, func() error {
				_, err := n.machine.Snapshot().WriteTo(io.Discard)
				return err
			})
		})
	}
}

func openDiskNode(b *testing.B) *snapshotNode {
	dir, log := b.TempDir(), slog.New(slog.DiscardHandler)
	snapshots, err := snapshot.Open(vfs.Default, dir, "n1", "", log)
	if err != nil {
		b.Fatal(err)
	}
	machine, err := openMachine(pebblestore.Options{Dir: filepath.Join(dir, stateDir), Logger: log}, state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return &snapshotNode{fs: vfs.Default, machine: machine, snapshots: snapshots}
}

// fillNode gives a node instances, an epoch for every thousand.
func fillNode(b *testing.B, n *snapshotNode, instances int) {
	for range instances / 1000 {
		if err := n.applyInstances(1000); err != nil {
			b.Fatal(err)
		}
	}
}

func measurePauses(b *testing.B, n *snapshotNode, snapshot func() error) {
	var elapsed, during, without time.Duration
	snapshots := 0
	for b.Loop() {
		snapshots++
		done, started := make(chan error, 1), time.Now()
		go func() { done <- snapshot() }()
		entries := 0
		for over := false; !over; entries++ {
			select {
			case err := <-done:
				if err != nil {
					b.Fatal(err)
				}
				over, elapsed = true, elapsed+time.Since(started)
			default:
				during = max(during, applyEntry(b, n))
			}
		}
		for range entries {
			without = max(without, applyEntry(b, n))
		}
	}
	if err := errors.Join(snapshot(), n.applyInstances(1000)); err != nil {
		b.Fatal(err)
	}
	processor, started := cpuDuration(), time.Now()
	if err := snapshot(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(started).Seconds()*1e3, "ms/alone")
	b.ReportMetric((cpuDuration()-processor).Seconds()*1e3, "cpu-ms/alone")
	b.ReportMetric(elapsed.Seconds()*1e3/float64(snapshots), "ms/snapshot")
	b.ReportMetric(during.Seconds()*1e3, "ms/longest-entry")
	b.ReportMetric(without.Seconds()*1e3, "ms/longest-without")
}

// applyEntry applies an epoch and 64 appends.
func applyEntry(b *testing.B, n *snapshotNode) time.Duration {
	started := time.Now()
	if err := n.applyInstances(64); err != nil {
		b.Fatal(err)
	}
	return time.Since(started)
}

// cpuDuration is the CPU time that the process has used.
func cpuDuration() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
