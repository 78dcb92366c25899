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

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

// BenchmarkSnapshotPause takes snapshots of so many instances, each with an open
// activity, while appends go on, and says how long a snapshot takes, how long the
// longest entry of 64 appends took to apply meanwhile, and how long the longest of
// as many took without a snapshot; and what one costs when a thousand instances
// have come since the last and nothing else goes on. In memory that is the view alone, which is all
// that applying waits for; writing it is beside that.
func BenchmarkSnapshotPause(b *testing.B) {
	for _, instances := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("disk/%d", instances), func(b *testing.B) {
			n := nodeOnDisk(b)
			filled(b, n, instances)
			pauses(b, n, n.snapshot)
			if err := n.machine.Close(); err != nil {
				b.Fatal(err)
			}
		})
		b.Run(fmt.Sprintf("memory/%d", instances), func(b *testing.B) {
			n := &snapshotNode{machine: state.New()}
			filled(b, n, instances)
			pauses(b, n, func() error {
				_, err := n.machine.Snapshot().WriteTo(io.Discard)
				return err
			})
		})
	}
}

func nodeOnDisk(b *testing.B) *snapshotNode {
	dir, log := b.TempDir(), slog.New(slog.DiscardHandler)
	snapshots, err := openCheckpoints(vfs.Default, dir, "n1", "", log)
	if err != nil {
		b.Fatal(err)
	}
	machine, err := openStored(pebblestore.Options{Dir: filepath.Join(dir, stateDir), Logger: log}, state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return &snapshotNode{fs: vfs.Default, machine: machine, snapshots: snapshots}
}

// filled gives a node instances, an epoch for every thousand.
func filled(b *testing.B, n *snapshotNode, instances int) {
	for range instances / 1000 {
		if err := n.grow(1000); err != nil {
			b.Fatal(err)
		}
	}
}

func pauses(b *testing.B, n *snapshotNode, snapshot func() error) {
	var took, during, without time.Duration
	snapshots := 0
	for b.Loop() {
		snapshots++
		done, began := make(chan error, 1), time.Now()
		go func() { done <- snapshot() }()
		entries := 0
		for over := false; !over; entries++ {
			select {
			case err := <-done:
				if err != nil {
					b.Fatal(err)
				}
				over, took = true, took+time.Since(began)
			default:
				during = max(during, applyEntry(b, n))
			}
		}
		for range entries {
			without = max(without, applyEntry(b, n))
		}
	}
	if err := errors.Join(snapshot(), n.grow(1000)); err != nil {
		b.Fatal(err)
	}
	processor, began := processorTime(), time.Now()
	if err := snapshot(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(began).Seconds()*1e3, "ms/alone")
	b.ReportMetric((processorTime()-processor).Seconds()*1e3, "cpu-ms/alone")
	b.ReportMetric(took.Seconds()*1e3/float64(snapshots), "ms/snapshot")
	b.ReportMetric(during.Seconds()*1e3, "ms/longest-entry")
	b.ReportMetric(without.Seconds()*1e3, "ms/longest-without")
}

// applyEntry applies an epoch and 64 appends.
func applyEntry(b *testing.B, n *snapshotNode) time.Duration {
	began := time.Now()
	if err := n.grow(64); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// processorTime is what the process has used of all processors.
func processorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
