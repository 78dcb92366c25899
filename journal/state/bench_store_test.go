package state

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// fiveActivityRun is the six appends of a run with five activities in sequence. Runs differ only in
// the digits of their IDs, which are also in the input and output, so making one is a copy.
type fiveActivityRun struct {
	records [][]byte
	digits  [][]int // positions in each record
}

const idDigits = "0123456789abcdef"

func newFiveActivityRun() *fiveActivityRun {
	start, end := started("hello"), completed()
	start.GetOrchestrationStarted().Input.Data = []byte(`{"order":"` + idDigits + `"}`)
	end.GetOrchestrationCompleted().Output = &journalpb.Payload{Data: []byte(`{"paid":"` + idDigits + `"}`)}
	segments := []*journalpb.Segment{segmentOf(1, 1, start, activity())}
	for id := uint64(3); id <= 9; id += 2 {
		segments = append(segments, segmentOf(1, id, activityDone(id-1), activity()))
	}
	segments = append(segments, segmentOf(1, 11, activityDone(10), end))
	h := &fiveActivityRun{}
	for _, s := range segments {
		record := must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{
			Append: &journalpb.Append{Instance: "order-" + idDigits, Epoch: 1, Segments: []*journalpb.Segment{s}},
		}}))
		var digits []int
		for at := range record {
			if bytes.HasPrefix(record[at:], []byte(idDigits)) {
				digits = append(digits, at)
			}
		}
		h.records, h.digits = append(h.records, record), append(h.digits, digits)
	}
	return h
}

// run returns the appends of the n-th run. IDs are not in order.
func (f *fiveActivityRun) run(n int) [][]byte {
	digits := fmt.Appendf(nil, "%016x", uint64(n)*0x9e3779b97f4a7c15)
	records := make([][]byte, len(f.records))
	for i, record := range f.records {
		records[i] = bytes.Clone(record)
		for _, at := range f.digits[i] {
			copy(records[i][at:], digits)
		}
	}
	return records
}

func (f *fiveActivityRun) runs(first, n int) [][][]byte {
	batch := make([][][]byte, n)
	for i := range batch {
		batch[i] = f.run(first + i)
	}
	return batch
}

func openStored(b testing.TB, dir string) *Machine {
	return openMachine(b, machineOptions{Options: pebblestore.Options{Dir: dir, FS: vfs.Default}})
}

// BenchmarkApply_FiveActivityRuns applies whole runs, 64 at a time, in entries of 64 records.
func BenchmarkApply_FiveActivityRuns(b *testing.B) {
	for name, m := range map[string]func(b *testing.B) *Machine{
		"memory": func(*testing.B) *Machine { return New() },
		"store":  func(b *testing.B) *Machine { return openStored(b, b.TempDir()) },
	} {
		b.Run(name, func(b *testing.B) {
			m := m(b)
			applyEpoch(b, m)
			workload := newFiveActivityRun()
			appends := 0
			b.ReportAllocs()
			for first := 0; b.Loop(); first += 64 {
				b.StopTimer()
				batch := workload.runs(first, 64)
				b.StartTimer()
				appends += applyRuns(b, m, batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(appends), "ns/append")
		})
	}
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

// TestMachine_TenMillionInstances writes TENUTO_INSTANCES instances and prints the cost of each
// tenth: CPU time, bytes written and memory:
//
//	TENUTO_INSTANCES=10000000 go test -run TestMachine_TenMillionInstances -v -timeout 2h ./journal/state
//
// With TENUTO_INSTANCES_WAIT=1 no instance ends: each waits for its first activity.
func TestMachine_TenMillionInstances(t *testing.T) {
	total, err := strconv.Atoi(os.Getenv("TENUTO_INSTANCES"))
	if err != nil {
		t.Skip("set TENUTO_INSTANCES to the number of instances")
	}
	dir := os.Getenv("TENUTO_INSTANCES_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	m := openStored(t, dir)
	applyEpoch(t, m)
	workload := newFiveActivityRun()
	if os.Getenv("TENUTO_INSTANCES_WAIT") != "" {
		workload.records = workload.records[:1]
	}
	const at = 256
	total -= total % (10 * at)
	meter := newCostMeter(m)
	for first := 0; first < total; first += at {
		batch := workload.runs(first, at)
		meter.apply(func() int { return applyRuns(t, m, batch) })
		if done := first + at; done%(total/10) == 0 {
			t.Logf("%2d/10: %s", done/(total/10), meter.report())
		}
	}
	t.Logf("\n%s", testStoreOf(m).Metrics())
	logDuration(t, "flush", func() error {
		index, _ := m.Applied()
		return m.Flush(t.Context(), index)
	})
	t.Logf("at rest: %s", memoryReport(m, total))
	logDuration(t, "checkpoint", func() error {
		_, err := m.Checkpoint(filepath.Join(dir, "checkpoint"))
		return err
	})
	logDuration(t, "close", m.Close)
	logDuration(t, "open", func() error {
		m = openStored(t, dir)
		return nil
	})
	logDuration(t, "list all", func() error {
		n := 0
		for range m.Instances() {
			n++
		}
		if n != total {
			t.Errorf("%d instances listed, %d written", n, total)
		}
		return m.Err()
	})
}

func logDuration(t *testing.T, what string, do func() error) {
	t.Helper()
	start, cpu := time.Now(), cpuTime()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %v, %v of CPU time", what, time.Since(start), cpuTime()-cpu)
}

// costMeter adds up the cost of a tenth.
type costMeter struct {
	m       *Machine
	appends int
	// applying is the time of the appends alone, without making them.
	applying, slowest  time.Duration
	cpu                time.Duration
	flushed, compacted uint64
}

func newCostMeter(m *Machine) *costMeter {
	x := &costMeter{m: m}
	_ = x.report()
	return x
}

func (c *costMeter) apply(do func() (appends int)) {
	start := time.Now()
	c.appends += do()
	elapsed := time.Since(start)
	c.applying += elapsed
	c.slowest = max(c.slowest, elapsed)
}

// report returns the cost since the last report.
func (c *costMeter) report() string {
	metrics := testStoreOf(c.m).Metrics()
	var flushed, compacted uint64
	for _, level := range metrics.Levels {
		flushed += level.TableBytesFlushed
		compacted += level.TableBytesCompacted
	}
	c.m.mu.RLock()
	inMemory := len(c.m.instances)
	c.m.mu.RUnlock()
	cpu := cpuTime()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	report := fmt.Sprintf("%7.0f appends/s, %5.2f µs of processor time each; slowest batch %v; %d MB flushed, %d MB compacted, %d in L0; heap %d MB of %d, cache %d MB, resident %d MB; %d in memory; disk %d MB",
		float64(c.appends)/c.applying.Seconds(), float64((cpu-c.cpu).Nanoseconds())/1000/float64(c.appends), c.slowest.Round(time.Millisecond),
		(flushed-c.flushed)>>20, (compacted-c.compacted)>>20, metrics.Levels[0].Sublevels,
		memory.HeapAlloc>>20, (memory.HeapSys-memory.HeapReleased)>>20, metrics.BlockCache.Size>>20, residentBytes()>>20, inMemory, metrics.DiskSpaceUsage()>>20)
	*c = costMeter{m: c.m, cpu: cpuTime(), flushed: flushed, compacted: compacted}
	return report
}

// memoryReport describes the memory after everything is written.
func memoryReport(m *Machine, instances int) string {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	cache := testStoreOf(m).Metrics().BlockCache.Size
	m.mu.RLock()
	inMemory := len(m.instances)
	m.mu.RUnlock()
	return fmt.Sprintf("heap %d MB, cache %d MB: %d bytes for each instance; %d in memory", memory.HeapAlloc>>20, cache>>20,
		(int64(memory.HeapAlloc)+cache)/int64(instances), inMemory)
}

// cpuTime is the CPU time that the process has used.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// residentBytes is the resident memory of the process.
func residentBytes() (bytes uint64) {
	content, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages uint64
	_, _ = fmt.Sscan(string(content), &size, &pages)
	return pages * uint64(os.Getpagesize())
}
