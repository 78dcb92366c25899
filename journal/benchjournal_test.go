package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// BenchmarkJournal measures in rounds, each figure once in each round, so that other load on the
// machine affects all figures alike. It prints the median over the rounds.
const (
	benchRounds = 5
	benchTime   = time.Second // of each figure in each round
)

// BenchmarkJournal compares a journal with the Raft library alone on the same store: one node,
// everything synced, 1,000 appends of two events in flight. Run it once: -benchtime 1x.
func BenchmarkJournal(b *testing.B) {
	for range b.N {
		f := benchMetrics{}
		for range benchRounds {
			f.add("fdatasync of 4 KiB, p50 µs", syncTime(b))
			f.measureRound(b)
		}
		f.print()
	}
}

// benchMetrics are lists of measurements by name, in the order of the first.
type benchMetrics struct {
	names  []string
	values map[string][]float64
}

func (m *benchMetrics) add(name string, value float64) {
	if m.values == nil {
		m.values = map[string][]float64{}
	}
	if m.values[name] == nil {
		m.names = append(m.names, name)
	}
	m.values[name] = append(m.values[name], value)
}

func (m *benchMetrics) median(name string) float64 {
	values := slices.Sorted(slices.Values(m.values[name]))
	return values[len(values)/2]
}

func (m *benchMetrics) print() {
	fmt.Println()
	for _, name := range m.names {
		fmt.Printf("%-44s %12.1f\n", name, m.median(name))
	}
	ratio := m.median("journal, appends/s") / m.median("raft alone, packed, records/s")
	fmt.Printf("%-44s %12.2f\n", "journal against raft alone", ratio)
}

func (m *benchMetrics) measureRound(b *testing.B) {
	r := measureJournal(b, Config{})
	one, packed, cpu := measureRaft(b, int(r.packed))
	m.add("one bare commit, p50 µs", one)
	m.add("raft alone, packed, records/s", packed)
	m.add("raft alone, packed, CPU µs a record", cpu)
	m.add("journal, appends/s", r.rate)
	m.add("journal, CPU µs an append", r.cpu)
	m.add("appends an entry", r.packed)
	m.add("one append alone, p50 µs", r.alone)
	m.add("write of the log, p50 µs, at most", r.write)
	m.add("queue delay, p50 µs, at most", r.queued)
	m.add("snapshot stops applying, µs", r.pause)
	m.add("bytes written an event", r.bytes)
}

// syncTime returns the median time of a synced write of 4 KiB, in µs.
func syncTime(b *testing.B) float64 {
	f, err := os.Create(filepath.Join(b.TempDir(), "sync"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	return medianTime(b, 200, func() error {
		if _, err := f.WriteAt(page, 0); err != nil {
			return err
		}
		return f.Sync()
	})
}

// medianTime returns the median time of n calls, in µs.
func medianTime(b *testing.B, n int, call func() error) float64 {
	times := make([]float64, n)
	for i := range times {
		started := time.Now()
		if err := call(); err != nil {
			b.Fatal(err)
		}
		times[i] = float64(time.Since(started)) / 1e3
	}
	slices.Sort(times)
	return times[n/2]
}

// measureRaft measures the library on a raw store, with a state machine that does nothing: one
// entry at a time, and entries packed like the journal's, with as many records in flight.
func measureRaft(b *testing.B, packing int) (one, packed, cpu float64) {
	r, stop := openRaft(b)
	defer stop()
	record := entry.EncodeAppend(newStepAppend(1, "instance", 3))
	packedEntry := entry.Pack(record)
	one = medianTime(b, 200, func() error { return r.Apply(packedEntry, 0).Error() })
	records := make([][]byte, packing)
	for i := range records {
		records[i] = record
	}
	packedEntry = entry.Pack(records...)
	futures := make(chan raft.ApplyFuture, max(1, appendsInFlight/packing-1))
	started, cpuBefore := time.Now(), cpuTime(b)
	go func() {
		defer close(futures)
		for time.Since(started) < benchTime {
			futures <- r.Apply(packedEntry, 0)
		}
	}()
	n := 0
	for f := range futures {
		if err := f.Error(); err != nil {
			b.Fatal(err)
		}
		n++
	}
	elapsed, count := time.Since(started).Seconds(), float64(n*packing)
	return one, count / elapsed, (cpuTime(b) - cpuBefore) / count
}

// journalResult is the measurement of one journal.
type journalResult struct{ rate, cpu, packed, alone, write, queued, pause, bytes float64 }

func measureJournal(b *testing.B, c Config) journalResult {
	c.Dir = b.TempDir()
	j := openJournal(b, c)
	defer closeJournal(b, j)
	epoch := awaitLeadership(b, j)
	for i := range appendsInFlight {
		mustAppendAsync(b, j, i, epoch)
	}
	mustAppend(b, j, newStartAppend(epoch, "alone"))
	n := uint64(0)
	alone := medianTime(b, 200, func() error { n++; return proposeAppend(b, j, newStepAppend(epoch, "alone", 2*n+1)) })
	before, written, cpuBefore, started := j.Stats(), diskWriteBytes(), cpuTime(b), time.Now()
	appends := appendFor(b, j, epoch, benchTime)
	elapsed, cpu := time.Since(started).Seconds(), cpuTime(b)-cpuBefore
	bytes := float64(diskWriteBytes()-written) / float64(2*appends)
	s := j.Stats()
	started = time.Now()
	snapshot, err := j.fsm.Snapshot()
	pause := float64(time.Since(started)) / 1e3
	if err != nil {
		b.Fatal(err)
	}
	snapshot.Release()
	return journalResult{
		rate: float64(appends) / elapsed, cpu: cpu / float64(appends), alone: alone, pause: pause, bytes: bytes,
		packed: float64(s.EntryRecords.Sum-before.EntryRecords.Sum) / float64(s.EntryRecords.Count-before.EntryRecords.Count),
		write:  float64(s.LogWrite.Quantile(0.5)) / 1e3, queued: float64(s.QueueDelay.Quantile(0.5)) / 1e3,
	}
}

// appendFor appends for a while to as many instances as there are appends in flight, and returns
// the number of appends. A few goroutines each handle many instances, as actors do, and the appends
// are already encoded, so that the journal is measured and not its callers.
func appendFor(b *testing.B, j *Journal, epoch uint64, d time.Duration) int {
	const callers = 4
	deadline := time.Now().Add(d)
	var all sync.WaitGroup
	var sum atomic.Int64
	for c := range callers {
		all.Go(func() { sum.Add(int64(appendAsCaller(b, j, epoch, c, callers, deadline))) })
	}
	all.Wait()
	return int(sum.Load())
}

// appendAsCaller is one of these goroutines.
func appendAsCaller(b *testing.B, j *Journal, epoch uint64, caller, callers int, deadline time.Time) (appends int) {
	answered := make(chan *benchInstance, appendsInFlight)
	waiting := 0
	for i := caller; i < appendsInFlight; i += callers {
		in := newBenchInstance(epoch, fmt.Sprintf("i-%d", i))
		in.done = func(err error) {
			if err != nil {
				b.Error(err)
			}
			answered <- in
		}
		answered <- in
		waiting++
	}
	for waiting > 0 {
		in := <-answered
		if time.Now().After(deadline) || b.Failed() {
			waiting--
			continue
		}
		appends++
		j.Append(in.next(), in.done)
	}
	return appends
}

// benchInstance makes the appends of one instance, two events each.
type benchInstance struct {
	last   uint64
	append *journalpb.Append
	bodies [2][]byte
	done   func(error)
}

func newBenchInstance(epoch uint64, id string) *benchInstance {
	a := newStepAppend(epoch, id, 3)
	in := &benchInstance{last: 2, append: a}
	for i, event := range a.Segments[0].Events {
		var e journalpb.Event
		if err := proto.Unmarshal(event, &e); err != nil {
			panic(err)
		}
		e.EventId, e.SourceEventId = 0, 0
		body, err := proto.Marshal(&e)
		if err != nil {
			panic(err)
		}
		in.bodies[i] = body
	}
	return in
}

// next returns the next append, in the memory of the previous one.
func (in *benchInstance) next() *journalpb.Append {
	s := in.append.Segments[0]
	s.FirstEventId = in.last + 1
	event := func(i int, id, source uint64) {
		e := protowire.AppendVarint(protowire.AppendTag(s.Events[i][:0], 1, protowire.VarintType), id)
		if source > 0 {
			e = protowire.AppendVarint(protowire.AppendTag(e, sourceField, protowire.VarintType), source)
		}
		s.Events[i] = append(e, in.bodies[i]...)
	}
	event(0, in.last+1, in.last)
	event(1, in.last+2, 0)
	in.last += 2
	return in.append
}

// sourceField is the number of Event.source_event_id.
const sourceField = 3

// cpuTime returns the CPU time that this process has used, in µs.
func cpuTime(b testing.TB) float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e3
}

// diskWriteBytes is what this process has written to disk, 0 if unknown.
func diskWriteBytes() uint64 {
	text, _ := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(text)) {
		var n uint64
		if _, err := fmt.Sscanf(line, "write_bytes: %d", &n); err == nil {
			return n
		}
	}
	return 0
}
