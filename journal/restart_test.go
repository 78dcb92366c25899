package journal

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// BenchmarkRestart opens a journal with 100,000 instances and a million events, or with
// TENUTO_INSTANCES instances, and measures the time until an append is committed. In its first case
// the state is removed before, so that it is rebuilt from the snapshot and the log.
func BenchmarkRestart(b *testing.B) {
	instances := 100_000
	if n, err := strconv.Atoi(os.Getenv("TENUTO_INSTANCES")); err == nil {
		instances = n
	}
	c := Config{Dir: b.TempDir()}
	j := openJournal(b, c)
	epoch := awaitLeadership(b, j)
	fillJournal(b, j, epoch, instances)
	started := time.Now()
	if err := j.raft.Snapshot().Error(); err != nil {
		b.Fatal(err)
	}
	snapshot := time.Since(started)
	closeJournal(b, j)
	started = time.Now()
	rebuilt := time.Duration(0)
	for b.Loop() {
		if rebuilt == 0 {
			if err := os.Remove(filepath.Join(c.Dir, stateDir, "current")); err != nil {
				b.Fatal(err)
			}
		}
		j, err := Open(b.Context(), testConfig(c))
		if err != nil {
			b.Fatal(err)
		}
		epoch := awaitLeadership(b, j)
		last := uint64(0)
		if in, ok := j.Instance("i-0"); ok {
			last = in.LastEventId
		}
		mustAppend(b, j, newStepAppend(epoch, "i-0", last+1))
		b.StopTimer()
		if rebuilt == 0 {
			rebuilt = time.Since(started)
		}
		closeJournal(b, j)
		b.StartTimer()
	}
	b.ReportMetric(float64(snapshot.Milliseconds()), "ms/snapshot")
	b.ReportMetric(float64(rebuilt.Milliseconds()), "ms/rebuilt")
}

// fillJournal appends ten events to each of some instances, all of them open.
func fillJournal(b *testing.B, j *Journal, epoch uint64, instances int) {
	const at = 500
	var all sync.WaitGroup
	for worker := range at {
		all.Go(func() {
			result := make(chan error, 1)
			for i := worker; i < instances; i += at {
				id := "i-" + strconv.Itoa(i)
				for first := uint64(1); first <= 9; first += 2 {
					a := newStartAppend(epoch, id)
					if first > 1 {
						a = newStepAppend(epoch, id, first)
					}
					j.Append(a, func(err error) { result <- err })
					if err := <-result; err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
}
