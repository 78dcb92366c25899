package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// appendsInFlight is how many appends are in flight.
const appendsInFlight = 1000

// BenchmarkAppend appends to as many instances as there are appends in flight, on one node that
// syncs everything to disk. An append is two events, 130 bytes in total.
func BenchmarkAppend(b *testing.B) {
	for _, inFlight := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			j := openJournal(b, Config{Dir: b.TempDir(), InFlightMax: inFlight})
			benchmarkAppend(b, j)
		})
	}
	b.Run("alone", func(b *testing.B) {
		j := openJournal(b, Config{Dir: b.TempDir()})
		epoch := awaitLeadership(b, j)
		mustAppend(b, j, newStartAppend(epoch, "a"))
		b.ResetTimer()
		for n := range b.N {
			mustAppend(b, j, newStepAppend(epoch, "a", 2*uint64(n)+3))
		}
	})
}

func BenchmarkAppendThreeNodes(b *testing.B) {
	g := newTCPTestCluster(b, func(int, *Config) {})
	benchmarkAppend(b, g.nodes[g.leader(b)])
}

func benchmarkAppend(b *testing.B, j *Journal) {
	epoch := awaitLeadership(b, j)
	for i := range appendsInFlight {
		mustAppendAsync(b, j, i, epoch)
	}
	before := j.AppliedIndex()
	b.ReportAllocs()
	b.ResetTimer()
	runInParallel(b, appendsInFlight, func(i int, n uint64, done func(error)) {
		j.Append(newStepAppend(epoch, fmt.Sprintf("i-%d", i), 2*n+3), done)
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(b.N)/float64(j.AppliedIndex()-before), "appends/entry")
}

func mustAppendAsync(b *testing.B, j *Journal, i int, epoch uint64) {
	j.Append(newStartAppend(epoch, fmt.Sprintf("i-%d", i)), func(err error) {
		if err != nil {
			b.Error(err)
		}
	})
}

// runInParallel calls do b.N times, with at most one call in flight for each i.
func runInParallel(b *testing.B, outstanding int, do func(i int, n uint64, done func(error))) {
	var all sync.WaitGroup
	for i := range outstanding {
		calls := b.N / outstanding
		if i < b.N%outstanding {
			calls++
		}
		all.Go(func() {
			result := make(chan error, 1)
			for n := range calls {
				do(i, uint64(n), func(err error) { result <- err })
				if err := <-result; err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkRaft measures the Raft library on the same store with a state machine that does nothing:
// with one record in each entry, and with 64.
func BenchmarkRaft(b *testing.B) {
	record := entry.EncodeAppend(newStepAppend(1, "instance", 3))
	b.Run("packed=1", func(b *testing.B) {
		r := newRaft(b)
		entry := entry.Pack(record)
		b.ResetTimer()
		runInParallel(b, appendsInFlight, func(_ int, _ uint64, done func(error)) { done(r.Apply(entry, 0).Error()) })
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	})
	for _, packed := range []int{64, 256} {
		b.Run(fmt.Sprintf("packed=%d", packed), func(b *testing.B) {
			r := newRaft(b)
			records := make([][]byte, packed)
			for i := range records {
				records[i] = record
			}
			b.ResetTimer()
			applyPacked(b, r, entry.Pack(records...), b.N/packed+1)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
		})
	}
}

// applyPacked keeps as many entries in flight as hold 1,000 records.
func applyPacked(b *testing.B, r *raft.Raft, entry []byte, entries int) {
	slots := make(chan raft.ApplyFuture, 4)
	go func() {
		defer close(slots)
		for range entries {
			slots <- r.Apply(entry, 0)
		}
	}()
	for future := range slots {
		if err := future.Error(); err != nil {
			b.Error(err)
		}
	}
}

func newRaft(b *testing.B) *raft.Raft {
	b.Helper()
	r, stop := openRaft(b)
	b.Cleanup(stop)
	return r
}

func openRaft(b *testing.B) (r *raft.Raft, stop func()) {
	b.Helper()
	c := Config{Node: "n1", Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	logger := raftnode.NewLogger(c.Logger, len(c.Peers) <= 1)
	stores, err := openStores(&c, &directory{}, logger)
	if err != nil {
		b.Fatal(err)
	}
	config := raftConfig(&c, logger)
	transport, _ := newTransport(&c, func() bool { return false }, func(string) bool { return true }, new(transport.Rejections), logger)
	if err := foundAlone(config, &c, peer.NewIdentity(), stores.logs, stores.stable, stores.snapshots, transport); err != nil {
		b.Fatal(err)
	}
	r, err = raft.NewRaft(config, nopFSM{}, stores.logs, stores.stable, stores.snapshots, transport)
	if err != nil {
		b.Fatal(err)
	}
	waittest.Eventually(b, "leadership", func() bool { return r.State() == raft.Leader })
	return r, func() {
		if err := errors.Join(r.Shutdown().Error(), stores.close()); err != nil {
			b.Error(err)
		}
	}
}

// nopFSM is a state machine that does nothing.
type nopFSM struct{}

func (nopFSM) Apply(*raft.Log) any                 { return nil }
func (nopFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, raft.ErrNothingNewToSnapshot }
func (nopFSM) Restore(io.ReadCloser) error         { return nil }
