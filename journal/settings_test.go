package journal

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
)

// BenchmarkSettings measures what the settings of Raft and of the packer are chosen by: CPU time,
// and how many appends an entry holds. Run it with -count, so that other load affects all settings
// alike; DESIGN.md has figures.
func BenchmarkSettings(b *testing.B) {
	settings := []struct {
		name  string
		tweak func(*Config)
	}{
		{"as it is", func(*Config) {}},
		{"MaxAppendEntries=16", withRaftConfig(func(c *raft.Config) { c.MaxAppendEntries = 16 })},
		{"MaxAppendEntries=512", withRaftConfig(func(c *raft.Config) { c.MaxAppendEntries = 512 })},
		{"BatchApplyCh", withRaftConfig(func(c *raft.Config) { c.BatchApplyCh = true })},
		{"InFlightMax=1", func(c *Config) { c.InFlightMax = 1 }},
		{"InFlightMax=4", func(c *Config) { c.InFlightMax = 4 }},
		{"InFlightMax=8", func(c *Config) { c.InFlightMax = 8 }},
		{"PackBytesMax=16KiB", func(c *Config) { c.PackBytesMax = 16 << 10 }},
		{"PackBytesMax=4MiB", func(c *Config) { c.PackBytesMax, c.PackRecordsMax = 4<<20, 4096 }},
	}
	for _, nodes := range []int{1, 3} {
		for _, k := range settings {
			b.Run(fmt.Sprintf("nodes=%d/%s", nodes, k.name), func(b *testing.B) {
				measureAppends(b, openLeader(b, nodes, k.tweak), appendsInFlight)
			})
		}
	}
}

// BenchmarkPacking shows how entries grow with the load.
func BenchmarkPacking(b *testing.B) {
	for _, nodes := range []int{1, 3} {
		for _, load := range []int{1, 4, 16, 64, 256, 1024, 4096} {
			b.Run(fmt.Sprintf("nodes=%d/outstanding=%d", nodes, load), func(b *testing.B) {
				measureAppends(b, openLeader(b, nodes, func(*Config) {}), load)
			})
		}
	}
}

func withRaftConfig(tweak func(*raft.Config)) func(*Config) {
	return func(c *Config) { c.tests.adjustRaftConfig = tweak }
}

// openLeader returns the leader of a new partition of one or three nodes.
func openLeader(b *testing.B, nodes int, tweak func(*Config)) *Journal {
	b.Helper()
	if nodes == 1 {
		c := Config{Dir: b.TempDir()}
		tweak(&c)
		j := openJournal(b, c)
		awaitLeadership(b, j)
		return j
	}
	g := newTCPTestCluster(b, func(_ int, c *Config) { tweak(c) })
	return g.nodes[g.leader(b)]
}

// measureAppends keeps a number of appends outstanding.
func measureAppends(b *testing.B, j *Journal, outstanding int) {
	epoch := awaitLeadership(b, j)
	var started []chan struct{}
	for i := range outstanding {
		done := make(chan struct{})
		started = append(started, done)
		j.Append(newStartAppend(epoch, fmt.Sprintf("i-%d", i)), func(err error) {
			if err != nil {
				b.Error(err)
			}
			close(done)
		})
	}
	for _, done := range started {
		<-done
	}
	before, entries := cpuTime(b), j.AppliedIndex()
	b.ResetTimer()
	runInParallel(b, outstanding, func(i int, n uint64, done func(error)) {
		j.Append(newStepAppend(epoch, fmt.Sprintf("i-%d", i), 2*n+3), done)
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(b.N)/float64(j.AppliedIndex()-entries), "appends/entry")
	b.ReportMetric((cpuTime(b)-before)/float64(b.N), "cpu-µs/append")
}

// All nodes apply the same records. Nodes with consecutively numbered names nevertheless begin
// their flushes at different moments.
func TestFlushSpread_DiffersBetweenNodes(t *testing.T) {
	for _, pattern := range []string{"n%d", "node-%d", "app-%d.example.com"} {
		var shares []float64
		for i := range 5 {
			c := Config{Node: fmt.Sprintf(pattern, i+1)}
			shares = append(shares, c.stateOptions().FlushShare)
		}
		slices.Sort(shares)
		if shares[0] < 1-flushSpread || shares[4] > 1 {
			t.Errorf("%s: %v", pattern, shares)
		}
		for i, share := range shares[1:] {
			if share-shares[i] < flushSpread/50 {
				t.Errorf("%s: two nodes have nearly the same share: %v", pattern, shares)
			}
		}
	}
}
