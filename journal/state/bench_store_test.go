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

// A hello5 is the six appends of a run with five activities, one after another.
// Making one is a copy: every run has the same records but for the digits of its
// ID, which are in its input and its output as well.
type hello5 struct {
	records [][]byte
	digits  [][]int // where they are in each record
}

const hello5Digits = "0123456789abcdef"

func newHello5() *hello5 {
	start, end := started("hello"), completed()
	start.GetOrchestrationStarted().Input.Data = []byte(`{"order":"` + hello5Digits + `"}`)
	end.GetOrchestrationCompleted().Output = &journalpb.Payload{Data: []byte(`{"paid":"` + hello5Digits + `"}`)}
	segments := []*journalpb.Segment{segmentOf(1, 1, start, activity())}
	for id := uint64(3); id <= 9; id += 2 {
		segments = append(segments, segmentOf(1, id, activityDone(id-1), activity()))
	}
	segments = append(segments, segmentOf(1, 11, activityDone(10), end))
	h := &hello5{}
	for _, s := range segments {
		record := must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{
			Append: &journalpb.Append{Instance: "order-" + hello5Digits, Epoch: 1, Segments: []*journalpb.Segment{s}},
		}}))
		var digits []int
		for at := range record {
			if bytes.HasPrefix(record[at:], []byte(hello5Digits)) {
				digits = append(digits, at)
			}
		}
		h.records, h.digits = append(h.records, record), append(h.digits, digits)
	}
	return h
}

// run returns the appends of the n-th run, whose IDs come in no order.
func (h *hello5) run(n int) [][]byte {
	digits := fmt.Appendf(nil, "%016x", uint64(n)*0x9e3779b97f4a7c15)
	records := make([][]byte, len(h.records))
	for i, record := range h.records {
		records[i] = bytes.Clone(record)
		for _, at := range h.digits[i] {
			copy(records[i][at:], digits)
		}
	}
	return records
}

func (h *hello5) runs(first, n int) [][][]byte {
	batch := make([][][]byte, n)
	for i := range batch {
		batch[i] = h.run(first + i)
	}
	return batch
}

func storedAt(b testing.TB, dir string) *Machine {
	return openMachine(b, whereabouts{Options: pebblestore.Options{Dir: dir, FS: vfs.Default}})
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
			hello := newHello5()
			appends := 0
			b.ReportAllocs()
			for first := 0; b.Loop(); first += 64 {
				b.StopTimer()
				batch := hello.runs(first, 64)
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

// TestTenMillion writes as many instances as TENUTO_INSTANCES says and prints
// what each tenth of them costs, in time of the processor, in bytes that are
// written and in memory:
//
//	TENUTO_INSTANCES=10000000 go test -run TestTenMillion -v -timeout 2h ./journal/state
//
// With TENUTO_INSTANCES_WAIT=1 none of them ends: each waits for its first activity.
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
	applyEpoch(t, m)
	hello := newHello5()
	if os.Getenv("TENUTO_INSTANCES_WAIT") != "" {
		hello.records = hello.records[:1]
	}
	const at = 256
	total -= total % (10 * at)
	meter := newMeter(m)
	for first := 0; first < total; first += at {
		batch := hello.runs(first, at)
		meter.apply(func() int { return applyRuns(t, m, batch) })
		if done := first + at; done%(total/10) == 0 {
			t.Logf("%2d/10: %s", done/(total/10), meter.tenth())
		}
	}
	t.Logf("\n%s", diskOf(m).Metrics())
	timed(t, "flush", func() error {
		index, _ := m.Applied()
		return m.Flush(t.Context(), index)
	})
	t.Logf("at rest: %s", atRest(m, total))
	timed(t, "checkpoint", func() error {
		_, err := m.Checkpoint(filepath.Join(dir, "checkpoint"))
		return err
	})
	timed(t, "close", m.Close)
	timed(t, "open", func() error {
		m = storedAt(t, dir)
		return nil
	})
	timed(t, "list all", func() error {
		n := 0
		for range m.Instances() {
			n++
		}
		if n != total {
			t.Errorf("%d instances are listed, %d were written", n, total)
		}
		return m.Err()
	})
}

func timed(t *testing.T, what string, do func() error) {
	t.Helper()
	start, processor := time.Now(), processorTime()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %v, %v of processor time", what, time.Since(start), processorTime()-processor)
}

// meter adds up what a tenth costs.
type meter struct {
	m       *Machine
	appends int
	// applying is the time of the appends alone, without that of making them.
	applying, slowest  time.Duration
	processor          time.Duration
	flushed, compacted uint64
}

func newMeter(m *Machine) *meter {
	x := &meter{m: m}
	_ = x.tenth()
	return x
}

func (x *meter) apply(do func() (appends int)) {
	start := time.Now()
	x.appends += do()
	took := time.Since(start)
	x.applying += took
	x.slowest = max(x.slowest, took)
}

// tenth says what it came to since it was last asked.
func (x *meter) tenth() string {
	metrics := diskOf(x.m).Metrics()
	var flushed, compacted uint64
	for _, level := range metrics.Levels {
		flushed += level.TableBytesFlushed
		compacted += level.TableBytesCompacted
	}
	x.m.mu.RLock()
	inMemory := len(x.m.instances)
	x.m.mu.RUnlock()
	processor := processorTime()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	said := fmt.Sprintf("%7.0f appends/s, %5.2f µs of processor time each; slowest batch %v; %d MB flushed, %d MB compacted, %d in L0; heap %d MB of %d, cache %d MB, resident %d MB; %d in memory; disk %d MB",
		float64(x.appends)/x.applying.Seconds(), float64((processor-x.processor).Nanoseconds())/1000/float64(x.appends), x.slowest.Round(time.Millisecond),
		(flushed-x.flushed)>>20, (compacted-x.compacted)>>20, metrics.Levels[0].Sublevels,
		memory.HeapAlloc>>20, (memory.HeapSys-memory.HeapReleased)>>20, metrics.BlockCache.Size>>20, resident()>>20, inMemory, metrics.DiskSpaceUsage()>>20)
	*x = meter{m: x.m, processor: processorTime(), flushed: flushed, compacted: compacted}
	return said
}

// atRest says what is in memory when everything is written.
func atRest(m *Machine, instances int) string {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	cache := diskOf(m).Metrics().BlockCache.Size
	m.mu.RLock()
	inMemory := len(m.instances)
	m.mu.RUnlock()
	return fmt.Sprintf("heap %d MB, cache %d MB: %d bytes for each instance; %d in memory", memory.HeapAlloc>>20, cache>>20,
		(int64(memory.HeapAlloc)+cache)/int64(instances), inMemory)
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
