package backup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
)

// A gatedSink waits for a decision before it reads a backup, and for another one before it stores
// what it has read. A decision that is an error fails the backup.
type gatedSink struct {
	backup.Directory
	offered, read     chan struct{} // received from when a backup waits
	accepted, decided chan error
}

func newGatedSink(dir string) *gatedSink {
	return &gatedSink{backup.Directory(dir), make(chan struct{}), make(chan struct{}), make(chan error), make(chan error)}
}

// pass waits for a decision. It sends that it waits at most once.
func pass(ctx context.Context, waits chan<- struct{}, decision <-chan error) error {
	for {
		select {
		case waits <- struct{}{}:
			waits = nil
		case err := <-decision:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Put implements backup.Sink.
func (s *gatedSink) Put(ctx context.Context, name string, content io.Reader) error {
	if err := pass(ctx, s.offered, s.accepted); err != nil {
		return err
	}
	return s.Directory.Put(ctx, name, &gatedReader{ctx, s, content})
}

// A gatedReader is the content of a backup.
type gatedReader struct {
	ctx  context.Context
	sink *gatedSink
	from io.Reader
}

// Read implements io.Reader.
func (r *gatedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err == io.EOF {
		if refused := pass(r.ctx, r.sink.read, r.sink.decided); refused != nil {
			return n, refused
		}
	}
	return n, err
}

// await waits until a backup waits for a decision.
func await(t *testing.T, what string, waits <-chan struct{}) {
	t.Helper()
	select {
	case <-waits:
	case <-time.After(3 * time.Minute):
		t.Fatal("timeout: ", what)
	}
}

// backupMetrics are the metrics of scheduled backups that one node reports.
type backupMetrics struct {
	age, interval, duration, size, written, succeeded, failed float64
}

// readBackupMetrics returns the metrics of a node. Each must be there once.
func readBackupMetrics(t *testing.T, reader sdk.Reader) (m backupMetrics) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	left := map[string]*float64{
		"tenuto.backup.age": &m.age, "tenuto.backup.interval": &m.interval, "tenuto.backup.duration": &m.duration, "tenuto.backup.size": &m.size,
		"tenuto.backup.written": &m.written, "tenuto.backups": &m.succeeded, "tenuto.backups.failed": &m.failed,
	}
	for _, scope := range all.ScopeMetrics {
		for _, of := range scope.Metrics {
			value := left[of.Name]
			if value == nil {
				continue
			}
			delete(left, of.Name)
			switch data := of.Data.(type) {
			case metricdata.Gauge[float64]:
				*value = data.DataPoints[0].Value
			case metricdata.Sum[float64]:
				*value = data.DataPoints[0].Value
			default:
				t.Fatalf("%s is a %T", of.Name, of.Data)
			}
		}
	}
	if len(left) > 0 {
		t.Fatalf("missing: %v", left)
	}
	return m
}

// A metricsCluster has a node's metrics for each node.
type metricsCluster struct {
	*clustertest.Cluster
	t       *testing.T
	readers [3]*sdk.ManualReader
}

// written returns how many bytes of a backup are written, according to all nodes.
func (c *metricsCluster) written() (sum float64) {
	c.t.Helper()
	for _, reader := range c.readers {
		sum += readBackupMetrics(c.t, reader).written
	}
	return sum
}

// check waits until every node reports the same values, which want returns for what the node
// reports, with written on one node only. since is when the latest backup was made, or earlier than
// the start of the nodes.
func (c *metricsCluster) check(when string, since time.Time, want backupMetrics) {
	c.t.Helper()
	shown := ""
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Log(when, ": ", shown)
		}
	})
	eventually(c.t, fmt.Sprintf("%s: the metrics are %+v", when, want), func(context.Context) bool {
		written := 0.0
		shown = ""
		for i, reader := range c.readers {
			least := time.Since(since)
			got := readBackupMetrics(c.t, reader)
			shown += fmt.Sprintf("node %d: %+v; ", i, got)
			if got.age <= 0 || got.age > time.Since(since).Seconds() || want.succeeded > 0 && got.age < least.Seconds() {
				return false
			}
			written += got.written
			if got.age, got.written = want.age, want.written; got != want {
				return false
			}
		}
		return written == want.written
	})
}

// The metrics of scheduled backups while one is made, after it has succeeded, and after the next
// one has failed. Every node reports those of the cluster, and the one that makes the backup how
// far it is.
func TestPlan_Metrics(t *testing.T) {
	sink, began := newGatedSink(t.TempDir()), time.Now()
	c := &metricsCluster{t: t}
	for i := range c.readers {
		c.readers[i] = sdk.NewManualReader()
	}
	c.Cluster = clustertest.New(t, 3, clustertest.Definitions(definitions()...), clustertest.Configure(func(i int, config *cluster.Config) {
		config.Backups, config.MeterProvider = backup.Plan{To: sink, Every: time.Second}, sdk.NewMeterProvider(sdk.WithReader(c.readers[i]))
		config.Logger = slog.New(slog.DiscardHandler)
	}))
	await(t, "a backup is offered", sink.offered)
	c.check("before the first", began, backupMetrics{interval: 1})

	sink.accepted <- nil
	var read time.Time
	written := 0.0
	for stored := false; !stored; {
		await(t, "a backup is read", sink.read)
		read = time.Now()
		written = c.written()
		c.check("while the first is made", began, backupMetrics{interval: 1, written: written})
		select {
		case sink.decided <- nil:
			stored = true
		case sink.accepted <- nil: // of another leader, which begins anew
		}
	}
	held := time.Since(read)

	await(t, "the next backup is offered", sink.offered)
	entries, err := backup.List(t.Context(), sink)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	made := entries[0]
	info := infoOf(t, sink, made.Name)
	stream, _ := info.Bytes()
	if written != float64(stream) || stream == 0 {
		t.Errorf("written: %v bytes of %d", written, stream)
	}
	duration := 0.0
	eventually(t, "the backup is recorded", func(context.Context) bool {
		duration = readBackupMetrics(t, c.readers[0]).duration
		return duration > 0
	})
	if duration < held.Seconds() || duration > time.Since(began).Seconds() {
		t.Errorf("the backup took %v s; it waited for %v", duration, held)
	}
	c.check("after the first", info.Time, backupMetrics{interval: 1, duration: duration, size: float64(stream), succeeded: 1})

	sink.accepted <- errors.New("the disk of the sink is full")
	await(t, "another backup is offered", sink.offered)
	c.check("after a failure", info.Time, backupMetrics{interval: 1, duration: duration, size: float64(stream), succeeded: 1, failed: 1})
}

// infoOf reads the description of a backup in a sink.
func infoOf(t *testing.T, from backup.Sink, name string) *backup.Info {
	t.Helper()
	file, err := from.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := backup.ReadInfo(file)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
