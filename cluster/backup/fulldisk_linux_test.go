package backup_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
)

// newSmallDisk mounts a file system of some megabytes.
func newSmallDisk(t *testing.T, megabytes int) string {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Skip("SKIPPED: nothing is mounted in CI")
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a full disk needs root, to mount one that is small")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Skip("SKIPPED: mount: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// The disk of the sink is full: backups fail, health and metrics say why, and nothing is left of
// them. When there is room again, the next one is made.
func TestPlan_DiskIsFull(t *testing.T) {
	disk := newSmallDisk(t, 8)
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 7<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := backup.Directory(filepath.Join(disk, "backups"))
	reader := metric.NewManualReader()
	c := clustertest.New(t, 1, clustertest.Definitions(definitions()...), clustertest.Configure(func(_ int, c *cluster.Config) {
		c.Backups, c.MeterProvider = backup.Plan{To: dir, Every: time.Second, Increments: -1, Keep: 1}, metric.NewMeterProvider(metric.WithReader(reader))
	}))
	awaitHealth := func(what string, holds func(cluster.Health) bool) {
		t.Helper()
		eventually(t, what, func(context.Context) bool { return holds(c.Node(0).Health()) })
	}
	awaitHealth("a backup of the empty state", func(h cluster.Health) bool { return !h.LastBackup.IsZero() })
	random := make([]byte, 1<<18)
	for i := range 4 { // 2 MB that cannot be compressed
		_, _ = rand.Read(random) // never fails
		if _, err := cluster.StartRun(t.Context(), c.Client(0), waiter, fmt.Sprint("w", i), hex.EncodeToString(random)); err != nil {
			t.Fatal(err)
		}
	}
	awaitHealth("backups fail", func(h cluster.Health) bool { return h.BackupFailures >= 2 })
	if h := c.Node(0).Health(); !strings.Contains(h.BackupError, syscall.ENOSPC.Error()) || !strings.Contains(h.BackupError, disk) {
		t.Errorf("health says %q", h.BackupError)
	}
	if n := counterOf(t, reader, "tenuto.backups.failed"); n < 2 {
		t.Errorf("%v backups have failed by the metrics", n)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	freed := time.Now()
	awaitHealth("a backup is made", func(h cluster.Health) bool { return h.BackupFailures == 0 && h.LastBackup.After(freed) })
	c.Kill(0) // nothing is written any more
	verifySink(t, dir, 4)
	if left, err := filepath.Glob(filepath.Join(string(dir), "*.partial")); err != nil || len(left) > 1 {
		t.Errorf("left of failed backups: %v, %v", left, err)
	}
}

// verifySink verifies the newest backup in a sink, which must have a number of instances.
func verifySink(t *testing.T, dir backup.Directory, instances uint64) {
	t.Helper()
	if v, err := backup.VerifyAt(t.Context(), t.TempDir(), dir, time.Time{}); err != nil || v.Instances != instances {
		t.Errorf("the newest backup: %+v, %v", v, err)
	}
}

// counterOf returns the sum of a counter.
func counterOf(t *testing.T, reader metric.Reader, name string) (sum float64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if data, ok := m.Data.(metricdata.Sum[float64]); ok && m.Name == name {
				for _, point := range data.DataPoints {
					sum += point.Value
				}
			}
		}
	}
	return sum
}

// A file that does not fit on the disk of a directory is removed.
func TestDirectory_DiskIsFull(t *testing.T) {
	disk := newSmallDisk(t, 1)
	dir := backup.Directory(disk)
	err := dir.Put(t.Context(), "large", strings.NewReader(strings.Repeat("x", 2<<20)))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the error is %v", err)
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := dir.Put(t.Context(), "small", strings.NewReader("x")); err != nil {
		t.Error(err)
	}
}
