package state

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// populateQueried writes instances of many kinds, one microsecond apart.
func populateQueried(t *testing.T, m *Machine, total int) {
	r := rand.New(rand.NewPCG(1, 1))
	entry, _ := m.Applied()
	apply := func(records ...proto.Message) {
		for _, record := range records {
			if _, err := m.Apply(must(proto.Marshal(record))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range total {
		apply(queriedInstance(r, n)...)
		if n%64 == 63 || n == total-1 {
			entry++
			if err := m.Advance(entry, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := m.Flush(t.Context(), entry); err != nil {
		t.Fatal(err)
	}
}

// queriedInstance returns the records of an instance: 60% have completed and 8% failed; 20% wait
// for an activity, of which a tenth has failed attempts, 5% for a timer, 5% for an event, and 2%
// are stalled.
func queriedInstance(r *rand.Rand, n int) []proto.Message {
	id := fmt.Sprintf("order-%016x", uint64(n)*0x9e3779b97f4a7c15)
	first := started(fmt.Sprintf("process-%d", r.IntN(10)))
	s := first.GetOrchestrationStarted()
	s.Version = fmt.Sprintf("v%d", r.IntN(3))
	s.Tags = map[string]string{"region": fmt.Sprintf("r%d", r.IntN(4)), "customer": fmt.Sprint(r.IntN(10_000))}
	if r.IntN(20) == 0 {
		s.Parent = &journalpb.OperationRef{Instance: fmt.Sprintf("parent-%d", r.IntN(500)), Execution: 1, EventId: 2}
	}
	events := []*journalpb.Event{first, attributeSet("tenant", fmt.Sprintf("t%d", r.IntN(100)))}
	kind := r.IntN(100)
	a := activity()
	a.GetActivityScheduled().Name = fmt.Sprintf("activity-%d", r.IntN(10))
	switch {
	case kind < 60:
		events = append(events, completed())
	case kind < 68:
		events = append(events, failedWith(fmt.Sprintf("code-%d", r.IntN(20))))
	case kind < 88:
		events = append(events, a)
	case kind < 93:
		events = append(events, timer(int64(n)*1000+int64(r.IntN(1_000_000_000))))
	case kind < 98:
		events = append(events, subscribed(fmt.Sprintf("event-%d", r.IntN(10))))
	}
	segment := &journalpb.Segment{Execution: 1, FirstEventId: 1}
	for i, e := range events {
		e.EventId, e.Timestamp = uint64(i)+1, int64(n+1)*1000+int64(i)
		segment.Events = append(segment.Events, must(proto.Marshal(e)))
	}
	records := []proto.Message{&journalpb.Record{Command: &journalpb.Record_Append{
		Append: &journalpb.Append{Instance: id, Epoch: 1, Segments: []*journalpb.Segment{segment}},
	}}}
	switch {
	case kind >= 68 && kind < 70:
		records = append(records, &journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: &journalpb.Attempt{
			Ref: &journalpb.OperationRef{Instance: id, Execution: 1, EventId: 3}, Epoch: 1, Failed: 1 + uint32(r.IntN(9)),
			LastError: &journalpb.Error{Code: fmt.Sprintf("code-%d", r.IntN(20))},
		}}})
	case kind >= 98:
		records = append(records, &journalpb.Record{Command: &journalpb.Record_SetCondition{SetCondition: &journalpb.SetCondition{
			Instance: id, Epoch: 1, Execution: 1, LastEventId: 2,
			Condition: &journalpb.Condition{Kind: journalpb.ConditionKind_CONDITION_KIND_STALLED, Source: "main.go:7"},
		}}})
	}
	return records
}

// queriedFields sets one condition each, with random values.
func queriedFields(r *rand.Rand, total int) map[string]func(*index.Query) {
	at := func(share float64) index.Interval {
		width := int64(float64(total) * share * 1000)
		from := 1 + r.Int64N(int64(total)*1000-width)
		return index.Interval{From: from, Before: from + width}
	}
	return map[string]func(*index.Query){
		"state=completed": func(q *index.Query) { q.States = []index.State{index.Completed} },
		"state=failed":    func(q *index.Query) { q.States = []index.State{index.Failed} },
		"state=stalled":   func(q *index.Query) { q.States = []index.State{index.Stalled} },
		"name":            func(q *index.Query) { q.Name = fmt.Sprintf("process-%d", r.IntN(10)) },
		"version":         func(q *index.Query) { q.Version = fmt.Sprintf("v%d", r.IntN(3)) },
		"prefix":          func(q *index.Query) { q.IDPrefix = fmt.Sprintf("order-%02x", r.IntN(256)) },
		"created 0.5%":    func(q *index.Query) { q.Created = at(0.005) },
		"created 20%":     func(q *index.Query) { q.Created = at(0.2) },
		"updated 2%":      func(q *index.Query) { q.Updated = at(0.02) },
		"ended 5%":        func(q *index.Query) { q.Ended = at(0.05) },
		"tag 25%":         func(q *index.Query) { q.Tags = map[string]string{"region": fmt.Sprintf("r%d", r.IntN(4))} },
		"tag 0.01%":       func(q *index.Query) { q.Tags = map[string]string{"customer": fmt.Sprint(r.IntN(10_000))} },
		"attribute 1%":    func(q *index.Query) { q.Attributes = map[string]string{"tenant": fmt.Sprintf("t%d", r.IntN(100))} },
		"parent":          func(q *index.Query) { q.ParentID = fmt.Sprintf("parent-%d", r.IntN(500)) },
		"error":           func(q *index.Query) { q.ErrorCode = fmt.Sprintf("code-%d", r.IntN(20)) },
		"waiting activity": func(q *index.Query) {
			q.Waiting = &index.Waiting{Kind: index.Activity, Name: fmt.Sprintf("activity-%d", r.IntN(10))}
		},
		"waiting event":  func(q *index.Query) { q.Waiting = &index.Waiting{Kind: index.Event} },
		"waiting since":  func(q *index.Query) { q.Waiting = &index.Waiting{Since: at(0.02)} },
		"failing>=5":     func(q *index.Query) { q.Failing = &index.Failing{Attempts: 5} },
		"failing error":  func(q *index.Query) { q.Failing = &index.Failing{ErrorCode: fmt.Sprintf("code-%d", r.IntN(20))} },
		"order=created":  func(q *index.Query) { q.Order = index.ByCreated },
		"order=-updated": func(q *index.Query) { q.Order, q.Descending = index.ByUpdated, true },
		"order=-ended":   func(q *index.Query) { q.Order, q.Descending = index.ByEnded, true },
		"order=timer":    func(q *index.Query) { q.Order = index.ByNextTimer },
	}
}

// latencies are the durations of calls.
type latencies []time.Duration

func (l latencies) String() string {
	slices.Sort(l)
	return fmt.Sprintf("p50 %6.2f ms, p99 %6.2f ms, max %6.2f ms", ms(l[len(l)/2]), ms(l[len(l)*99/100]), ms(l[len(l)-1]))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// TestQuery_MillionInstances prints how long pages of 100 take among TENUTO_QUERIED instances, for
// each condition and each two, while runs of five activities are applied:
//
//	TENUTO_QUERIED=1000000 go test -run TestQuery_MillionInstances -v -timeout 1h ./journal/state
//
// TENUTO_QUERIED_DIR keeps the store, and finds it again. TENUTO_QUERIED_ONLY is a regular
// expression for what to measure.
func TestQuery_MillionInstances(t *testing.T) {
	total, err := strconv.Atoi(os.Getenv("TENUTO_QUERIED"))
	if err != nil {
		t.Skip("set TENUTO_QUERIED to the number of instances")
	}
	dir := os.Getenv("TENUTO_QUERIED_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	m := openStored(t, dir)
	if at, _ := m.Applied(); at == 0 {
		applyEpoch(t, m)
		protocolFour(t, m)
		logDuration(t, "write", func() error { populateQueried(t, m, total); return nil })
	}
	runtime.GC()
	metrics := testStoreOf(m).Metrics()
	t.Logf("%s; disk %d bytes for each; resident %d MB", memoryReport(m, total), metrics.DiskSpaceUsage()/uint64(total), residentBytes()>>20)
	stop := applyRunsInBackground(t, m)
	defer stop()
	r := rand.New(rand.NewPCG(2, 2))
	fields := queriedFields(r, total)
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	runtime.LockOSThread() // to measure the processor time of a page
	defer runtime.UnlockOSThread()
	var all, allCPU latencies
	type slowPair struct {
		name   string
		l, cpu latencies
		rows   int
	}
	var pairs []slowPair
	only := regexp.MustCompile(os.Getenv("TENUTO_QUERIED_ONLY"))
	for i, a := range names {
		for _, b := range names[i:] {
			if !only.MatchString(a + " and " + b) {
				continue
			}
			var l, cpu latencies
			rows := 0
			pages := 5
			if a == b {
				pages = 50
			}
			for range pages {
				q := &index.Query{}
				fields[a](q)
				fields[b](q)
				start, startCPU := time.Now(), threadTime()
				page, err := m.Query(t.Context(), q, nil, 100)
				if err != nil {
					t.Fatal(err)
				}
				l, cpu, rows = append(l, time.Since(start)), append(cpu, threadTime()-startCPU), rows+len(page.Rows)
				if page.More {
					rows += 100_000
				}
			}
			all, allCPU = append(all, l...), append(allCPU, cpu...)
			if a == b {
				t.Logf("%-18s %v; processor %v; %d rows", a, l, cpu, rows%100_000/len(l))
				continue
			}
			slices.Sort(cpu)
			pairs = append(pairs, slowPair{a + " and " + b, l, cpu, rows})
		}
	}
	slices.SortFunc(pairs, func(a, b slowPair) int { return int(b.cpu[len(b.cpu)*9/10] - a.cpu[len(a.cpu)*9/10]) })
	for _, p := range pairs[:min(len(pairs), 25)] {
		t.Logf("%-40s %v; processor %v; %d rows, %d of %d with more", p.name, p.l, p.cpu, p.rows%100_000/len(p.l), p.rows/100_000, len(p.l))
	}
	t.Logf("all %d pages: %v; processor %v", len(all), all, allCPU)
	var counts latencies
	for range 300 {
		start := time.Now()
		if _, err := m.CountBy(t.Context(), &index.Query{}, index.Grouping{Dimension: index.DimensionState}); err != nil {
			t.Fatal(err)
		}
		counts = append(counts, time.Since(start))
	}
	t.Logf("count by state: %v", counts)
}

// threadTime is the CPU time that the thread has used.
func threadTime() time.Duration {
	var at unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at)
	return time.Duration(at.Nano())
}

// applyRunsInBackground applies runs until stop is called.
func applyRunsInBackground(t *testing.T, m *Machine) (stop func()) {
	workload, end := newFiveActivityRun(), make(chan struct{})
	var applying sync.WaitGroup
	applying.Go(func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for first := int(time.Now().UnixNano()); ; first += 128 { // about 12,800 runs a second
			select {
			case <-end:
				return
			case <-ticker.C:
			}
			for step, runs := 0, workload.runs(first, 128); step < len(workload.records); step++ {
				for _, run := range runs {
					if _, err := m.Apply(run[step]); err != nil {
						t.Error(err)
						return
					}
				}
				at, _ := m.Applied()
				if err := m.Advance(at+1, 1); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	return func() { close(end); applying.Wait() }
}
