package journal

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// TestTenMillionInstancesAreWrittenOnOneNode writes as many small instances as
// TENUTO_INSTANCES says, each begun and ended by an append of its own, synced, and
// prints what each tenth of them costs:
//
//	TENUTO_INSTANCES=10000000 go test -run TestTenMillion -v -timeout 2h ./journal
func TestTenMillionInstancesAreWrittenOnOneNode(t *testing.T) {
	total, err := strconv.Atoi(os.Getenv("TENUTO_INSTANCES"))
	if err != nil {
		t.Skip("TENUTO_INSTANCES says how many")
	}
	j := opened(t, Config{Dir: t.TempDir()})
	epoch := leading(t, j)
	for tenth := range 10 {
		first, end := tenth*total/10, (tenth+1)*total/10
		began, before := time.Now(), cpuTime(t)
		writeInstances(t, j, epoch, first, end)
		took, appends := time.Since(began).Seconds(), float64(2*(end-first))
		t.Logf("%2d/10: %.0f appends/s, %.2f µs of processor time each, %d MB resident",
			tenth+1, appends/took, (cpuTime(t)-before)/appends, residentMB(t))
	}
	if known, ok := j.Instance(fmt.Sprintf("i-%d", total-1)); !ok || known.Status != journalpb.Status_STATUS_COMPLETED {
		t.Errorf("the last instance is %v", known)
	}
}

// writeInstances begins and ends instances, so many at a time.
func writeInstances(t *testing.T, j *Journal, epoch uint64, first, end int) {
	t.Helper()
	const atATime = 4096
	room, begun := make(chan struct{}, atATime), make(chan int, atATime)
	var all sync.WaitGroup
	decided := func(i int, then func()) func(error) {
		return func(err error) {
			if err != nil {
				t.Errorf("instance %d: %v", i, err)
			}
			then()
		}
	}
	all.Go(func() {
		for range end - first {
			i := <-begun
			j.Append(ends(epoch, fmt.Sprintf("i-%d", i)), decided(i, func() { <-room }))
		}
	})
	for i := first; i < end; i++ {
		room <- struct{}{}
		j.Append(begin(epoch, fmt.Sprintf("i-%d", i)), decided(i, func() { begun <- i }))
	}
	all.Wait()
	for range cap(room) { // until each has been answered
		room <- struct{}{}
	}
}

// ends is the append that ends an instance when its activity does.
func ends(epoch uint64, instance string) *journalpb.Append {
	return appendOf(epoch, instance, 3,
		&journalpb.Event{SourceEventId: 2, Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{
			Result: &journalpb.Payload{Data: []byte(`"done"`)},
		}}},
		&journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{OrchestrationCompleted: &journalpb.OrchestrationCompleted{}}},
	)
}

// residentMB is the memory that this process has, 0 where that is not known.
func residentMB(t *testing.T) int {
	t.Helper()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize() >> 20
}
