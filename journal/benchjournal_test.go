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

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The figures of BenchmarkJournal are taken in rounds, each thing once in each,
// so that what else the machine does hits all of them alike. What is printed is
// the median over the rounds.
const (
	benchRounds = 5
	benchTime   = time.Second // of each figure in each round
)

// BenchmarkJournal compares a journal with the Raft library alone on the same
// store: one node, everything synced, 1,000 appends of two events on their way. Run it once: -benchtime 1x.
func BenchmarkJournal(b *testing.B) {
	for range b.N {
		f := figures{}
		for range benchRounds {
			f.add("fdatasync of 4 KiB, p50 µs", syncTime(b))
			f.round(b)
		}
		f.print()
	}
}

// figures are lists of what was measured, by name, in the order of the first.
type figures struct {
	names  []string
	values map[string][]float64
}

func (f *figures) add(name string, value float64) {
	if f.values == nil {
		f.values = map[string][]float64{}
	}
	if f.values[name] == nil {
		f.names = append(f.names, name)
	}
	f.values[name] = append(f.values[name], value)
}

func (f *figures) median(name string) float64 {
	values := slices.Sorted(slices.Values(f.values[name]))
	return values[len(values)/2]
}

func (f *figures) print() {
	fmt.Println()
	for _, name := range f.names {
		fmt.Printf("%-44s %12.1f\n", name, f.median(name))
	}
	ratio := f.median("journal, appends/s") / f.median("raft alone, packed, records/s")
	fmt.Printf("%-44s %12.2f\n", "journal against raft alone", ratio)
}

func (f *figures) round(b *testing.B) {
	r := journalRun(b, Config{})
	one, packed, cpu := raftAlone(b, int(r.packed))
	f.add("one bare commit, p50 µs", one)
	f.add("raft alone, packed, records/s", packed)
	f.add("raft alone, packed, CPU µs a record", cpu)
	f.add("journal, appends/s", r.rate)
	f.add("journal, CPU µs an append", r.cpu)
	f.add("appends an entry", r.packed)
	f.add("one append alone, p50 µs", r.alone)
	f.add("write of the log, p50 µs, at most", r.write)
	f.add("queue delay, p50 µs, at most", r.queued)
	f.add("snapshot stops applying, µs", r.pause)
	f.add("bytes written an event", r.bytes)
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
		began := time.Now()
		if err := call(); err != nil {
			b.Fatal(err)
		}
		times[i] = float64(time.Since(began)) / 1e3
	}
	slices.Sort(times)
	return times[n/2]
}

// raftAlone measures the library on a raw store, with a state machine that does
// nothing: one entry at a time, and entries packed as those of the journal, with
// as many records on their way.
func raftAlone(b *testing.B, packing int) (one, packed, cpu float64) {
	r, stop := openRaft(b)
	defer stop()
	record := encodeAppend(step(1, "instance", 3))
	entry := packEntry(record)
	one = medianTime(b, 200, func() error { return r.Apply(entry, 0).Error() })
	records := make([][]byte, packing)
	for i := range records {
		records[i] = record
	}
	entry = packEntry(records...)
	flights := make(chan raft.ApplyFuture, max(1, outstanding/packing-1))
	began, cpuBefore := time.Now(), cpuTime(b)
	go func() {
		defer close(flights)
		for time.Since(began) < benchTime {
			flights <- r.Apply(entry, 0)
		}
	}()
	n := 0
	for f := range flights {
		if err := f.Error(); err != nil {
			b.Fatal(err)
		}
		n++
	}
	took, count := time.Since(began).Seconds(), float64(n*packing)
	return one, count / took, (cpuTime(b) - cpuBefore) / count
}

// run is what was measured of one journal.
type run struct{ rate, cpu, packed, alone, write, queued, pause, bytes float64 }

func journalRun(b *testing.B, c Config) run {
	c.Dir = b.TempDir()
	j := opened(b, c)
	defer closed(b, j)
	epoch := leading(b, j)
	for i := range outstanding {
		mustAppendSoon(b, j, i, epoch)
	}
	mustAppend(b, j, begin(epoch, "alone"))
	n := uint64(0)
	alone := medianTime(b, 200, func() error { n++; return appended(b, j, step(epoch, "alone", 2*n+1)) })
	before, written, cpuBefore, began := j.Stats(), writtenBytes(), cpuTime(b), time.Now()
	appends := appendFor(b, j, epoch, benchTime)
	took, cpu := time.Since(began).Seconds(), cpuTime(b)-cpuBefore
	bytes := float64(writtenBytes()-written) / float64(2*appends)
	s := j.Stats()
	began = time.Now()
	snapshot, err := j.fsm.Snapshot()
	pause := float64(time.Since(began)) / 1e3
	if err != nil {
		b.Fatal(err)
	}
	snapshot.Release()
	return run{
		rate: float64(appends) / took, cpu: cpu / float64(appends), alone: alone, pause: pause, bytes: bytes,
		packed: float64(s.EntryRecords.Sum-before.EntryRecords.Sum) / float64(s.EntryRecords.Count-before.EntryRecords.Count),
		write:  float64(s.LogWrite.Quantile(0.5)) / 1e3, queued: float64(s.QueueDelay.Quantile(0.5)) / 1e3,
	}
}

// appendFor appends for a while to as many instances as there are appends on
// their way, and returns how many were. A few goroutines each look after many
// instances, as actors do, and what they append is encoded already: the journal
// is measured and not its callers.
func appendFor(b *testing.B, j *Journal, epoch uint64, d time.Duration) int {
	const callers = 4
	deadline := time.Now().Add(d)
	var all sync.WaitGroup
	var sum atomic.Int64
	for c := range callers {
		all.Go(func() { sum.Add(int64(appendAsOne(b, j, epoch, c, callers, deadline))) })
	}
	all.Wait()
	return int(sum.Load())
}

// appendAsOne is one of these goroutines.
func appendAsOne(b *testing.B, j *Journal, epoch uint64, caller, callers int, deadline time.Time) (appends int) {
	answered := make(chan *benchInstance, outstanding)
	waiting := 0
	for i := caller; i < outstanding; i += callers {
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
	a := step(epoch, id, 3)
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

// next returns the next append, in the memory of the last.
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

// cpuTime returns what this process has used of all processors, in µs.
func cpuTime(b testing.TB) float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e3
}

// writtenBytes is what this process has had written to disk, 0 where that is not
// known.
func writtenBytes() uint64 {
	text, _ := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(text)) {
		var n uint64
		if _, err := fmt.Sscanf(line, "write_bytes: %d", &n); err == nil {
			return n
		}
	}
	return 0
}
