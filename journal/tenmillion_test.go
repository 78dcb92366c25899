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

// TestTenMillionInstances writes TENUTO_INSTANCES small instances, each begun and ended by an
// append of its own, synced, and prints the cost of each tenth:
//
//	TENUTO_INSTANCES=10000000 go test -run TestTenMillionInstances -v -timeout 2h ./journal
func TestTenMillionInstances(t *testing.T) {
	total, err := strconv.Atoi(os.Getenv("TENUTO_INSTANCES"))
	if err != nil {
		t.Skip("set TENUTO_INSTANCES to the number of instances")
	}
	j := openJournal(t, Config{Dir: t.TempDir()})
	epoch := awaitLeadership(t, j)
	for tenth := range 10 {
		first, end := tenth*total/10, (tenth+1)*total/10
		started, before := time.Now(), cpuTime(t)
		writeInstances(t, j, epoch, first, end)
		elapsed, appends := time.Since(started).Seconds(), float64(2*(end-first))
		t.Logf("%2d/10: %.0f appends/s, %.2f µs of processor time each, %d MB resident",
			tenth+1, appends/elapsed, (cpuTime(t)-before)/appends, residentMB(t))
	}
	if known, ok := j.Instance(fmt.Sprintf("i-%d", total-1)); !ok || known.Status != journalpb.Status_STATUS_COMPLETED {
		t.Errorf("the last instance is %v", known)
	}
}

// writeInstances begins and ends instances, a number of them concurrently.
func writeInstances(t *testing.T, j *Journal, epoch uint64, first, end int) {
	t.Helper()
	const inFlightMax = 4096
	slots, started := make(chan struct{}, inFlightMax), make(chan int, inFlightMax)
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
			i := <-started
			j.Append(newEndAppend(epoch, fmt.Sprintf("i-%d", i)), decided(i, func() { <-slots }))
		}
	})
	for i := first; i < end; i++ {
		slots <- struct{}{}
		j.Append(newStartAppend(epoch, fmt.Sprintf("i-%d", i)), decided(i, func() { started <- i }))
	}
	all.Wait()
	for range cap(slots) { // until each has been answered
		slots <- struct{}{}
	}
}

// newEndAppend is the append that completes the activity and ends the instance.
func newEndAppend(epoch uint64, instance string) *journalpb.Append {
	return newAppend(epoch, instance, 3,
		&journalpb.Event{SourceEventId: 2, Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{
			Result: &journalpb.Payload{Data: []byte(`"done"`)},
		}}},
		&journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{OrchestrationCompleted: &journalpb.OrchestrationCompleted{}}},
	)
}

// residentMB is the resident memory of this process, 0 if unknown.
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
