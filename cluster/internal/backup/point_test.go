package backup

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
)

// waitLimit bounds what a test waits for.
const waitLimit = 2 * time.Minute

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for begun := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > waitLimit {
			t.Fatal("timeout: ", what)
		}
	}
}

// A point is recorded only if something was applied since the latest one: also if the node that
// records it follows, and so applies the cut after the leader has recorded it.
func TestRecordPoint_UnlessNothingWasApplied(t *testing.T) {
	var partitions []Partition
	var records atomic.Int32
	var beside atomic.Bool // another entry is recorded together with a cut
	for range 2 {
		j, err := journal.Open(t.Context(), journal.Config{Node: "n1", StallLimit: waitLimit, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := j.Close(); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "leadership", j.IsLeader)
		partitions = append(partitions, Partition{Journal: j, RecordCut: func(ctx context.Context, cut uint64) error {
			records.Add(1)
			if beside.Load() {
				if err := j.RaiseProtocol(ctx, 1); err != nil {
					return err
				}
			}
			go func() { // it fails when the test ends
				_ = j.RecordCut(context.WithoutCancel(ctx), cut)
			}()
			return nil
		}})
	}
	s := NewServer(partitions, slog.Default())
	for _, step := range []struct {
		what    string
		applies bool // something, before the point
		beside  bool
		want    int32
	}{
		{"the first", false, false, 2},
		{"nothing was applied", false, false, 0},
		{"something was applied", true, false, 2},
		{"nothing was applied again", false, false, 0},
		{"something is applied meanwhile", true, true, 2},
		{"it may not be in the point before", false, false, 2},
		{"nothing was applied at last", false, false, 0},
	} {
		if step.applies {
			if err := partitions[0].Journal.RaiseProtocol(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		beside.Store(step.beside)
		records.Store(0)
		want := s.nextCut()
		if err := s.RecordPoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := records.Load(); got != step.want {
			t.Errorf("%s: %d cuts, want %d", step.what, got, step.want)
		}
		if step.want > 0 {
			for _, p := range partitions {
				eventually(t, "the cut", func() bool { return p.Journal.Cut() == want })
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	partitions[0].RecordCut = func(context.Context, uint64) error { return nil } // it is applied never
	s.pointed = 0
	if err := s.RecordPoint(ctx); err == nil {
		t.Error("no error of a context that has ended")
	}
}
