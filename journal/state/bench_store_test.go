package state

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// hello5 are the six appends of a run with five activities, one after another.
func hello5(instance string) [][]byte {
	segments := []*journalpb.Segment{segmentOf(1, 1, started("hello"), activity())}
	for id := uint64(3); id <= 9; id += 2 {
		segments = append(segments, segmentOf(1, id, activityDone(id-1), activity()))
	}
	segments = append(segments, segmentOf(1, 11, activityDone(10), completed()))
	records := make([][]byte, 0, len(segments))
	for _, s := range segments {
		records = append(records, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{
			Append: &journalpb.Append{Instance: instance, Epoch: 1, Segments: []*journalpb.Segment{s}},
		}})))
	}
	return records
}

func storedAt(b testing.TB, dir string) *Machine {
	return openMachine(b, Options{Dir: dir, FS: vfs.Default})
}

// BenchmarkHello5 applies whole runs, 64 at a time, in entries of 64 records.
func BenchmarkHello5(b *testing.B) {
	for name, m := range map[string]func(b *testing.B) *Machine{
		"memory": func(*testing.B) *Machine { return New() },
		"store":  func(b *testing.B) *Machine { return storedAt(b, b.TempDir()) },
	} {
		b.Run(name, func(b *testing.B) {
			m := m(b)
			applyEpoch(b, m)
			appends := 0
			b.ReportAllocs()
			for first := 0; b.Loop(); first += 64 {
				b.StopTimer()
				batch := runs(first, 64)
				b.StartTimer()
				appends += applyRuns(b, m, batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(appends), "ns/append")
		})
	}
}

func runs(first, n int) [][][]byte {
	batch := make([][][]byte, n)
	for i := range batch {
		batch[i] = hello5(fmt.Sprintf("order-%016x", uint64(first+i)*0x9e3779b97f4a7c15)) // in no order
	}
	return batch
}

func applyRuns(b testing.TB, m *Machine, batch [][][]byte) (appends int) {
	for step := range batch[0] {
		for _, run := range batch {
			if _, err := m.Apply(run[step]); err != nil {
				b.Fatal(err)
			}
			appends++
		}
		index, _ := m.Applied()
		if err := m.Advance(index+1, 1); err != nil {
			b.Fatal(err)
		}
	}
	return appends
}

// TestTenMillion writes as many instances as TENUTO_INSTANCES says and prints
// the rate and the memory of each tenth:
//
//	TENUTO_INSTANCES=10000000 go test -run TestTenMillion -v -timeout 2h ./journal/state
func TestTenMillion(t *testing.T) {
	total, err := strconv.Atoi(os.Getenv("TENUTO_INSTANCES"))
	if err != nil {
		t.Skip("TENUTO_INSTANCES says how many")
	}
	dir := os.Getenv("TENUTO_INSTANCES_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	m := storedAt(t, dir)
	if m.Epoch() == 0 {
		applyEpoch(t, m)
	}
	const at = 256
	processor := processorTime()
	total -= total % (10 * at)
	slowest := time.Duration(0)
	for tenth := range 10 {
		applying := time.Duration(0)
		appends := 0
		began := time.Now()
		for first := tenth * (total / 10); first < (tenth+1)*(total/10); first += at {
			batch := runs(first, at)
			start := time.Now()
			appends += applyRuns(t, m, batch)
			took := time.Since(start)
			applying += took
			slowest = max(slowest, took)
		}
		took := processorTime() - processor
		report(t, m, tenth, appends, applying, time.Since(began), took, slowest)
		slowest = 0
		processor = processorTime()
	}
	index, _ := m.Applied()
	start := time.Now()
	if err := m.Flush(t.Context(), index); err != nil {
		t.Fatal(err)
	}
	flushed := time.Since(start)
	start = time.Now()
	if _, err := m.Checkpoint(dir + "/checkpoint"); err != nil {
		t.Fatal(err)
	}
	t.Logf("flush %v, checkpoint %v", flushed, time.Since(start))
	start = time.Now()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	closed := time.Since(start)
	start = time.Now()
	m = storedAt(t, dir)
	t.Logf("closed in %v, opened in %v", closed, time.Since(start))
	start = time.Now()
	n := 0
	for range m.Instances() {
		n++
	}
	t.Logf("%d instances listed in %v", n, time.Since(start))
}

func report(t *testing.T, m *Machine, tenth, appends int, applying, wall, processor, slowest time.Duration) {
	t.Helper()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	metrics := m.store.current().Metrics()
	written := uint64(0)
	for _, level := range metrics.Levels {
		written += level.TableBytesFlushed + level.TableBytesCompacted
	}
	t.Logf("%d/10: %6.0f appends/s of applying, %6.0f with making them, %4.2f µs of processor time each; slowest 1536 appends %v; heap %d MB, resident %d MB; %d in memory; disk %d MB, written %d MB",
		tenth+1, float64(appends)/applying.Seconds(), float64(appends)/wall.Seconds(),
		float64(processor.Nanoseconds())/1000/float64(appends), slowest,
		memory.HeapAlloc>>20, resident()>>20, len(m.instances), metrics.DiskSpaceUsage()>>20, written>>20)
}

// processorTime is what the process has used of all processors.
func processorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// resident is what the process takes.
func resident() (bytes uint64) {
	content, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages uint64
	_, _ = fmt.Sscan(string(content), &size, &pages)
	return pages * uint64(os.Getpagesize())
}
