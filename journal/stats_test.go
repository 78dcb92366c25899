package journal

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

func TestSnapshot_TakenByBytesTruncatesLog(t *testing.T) {
	const snapshotBytes = 256 << 10
	c := Config{Dir: t.TempDir(), SnapshotBytes: snapshotBytes}
	j := openJournal(t, c)
	epoch := awaitLeadership(t, j)
	for i := range 100 { // 2 MiB
		mustAppend(t, j, newLargeStartAppend(epoch, fmt.Sprintf("i-%03d", i)))
	}
	waittest.Eventually(t, "little is left to replay", func() bool {
		s := j.Stats()
		return s.Snapshots > 0 && s.SnapshotTime.Count > 0 && s.LogSinceSnapshot < snapshotBytes && s.LogEntries < 60
	})
	taken := j.Stats()
	if taken.SnapshotFailures > 0 {
		t.Errorf("%d snapshots, %d failures", taken.Snapshots, taken.SnapshotFailures)
	}
	if taken.SnapshotIndex == 0 || taken.SnapshotIndex > j.AppliedIndex() || taken.SnapshotBytes == 0 || time.Since(taken.SnapshotAt) > time.Minute {
		t.Errorf("the newest snapshot ends at %d, has %d bytes, and is from %v", taken.SnapshotIndex, taken.SnapshotBytes, taken.SnapshotAt)
	}
	closeJournal(t, j)
	again := openJournal(t, c)
	awaitLeadership(t, again)
	if s := again.Stats(); s.LogSinceSnapshot > 2*snapshotBytes || s.SnapshotIndex < taken.SnapshotIndex || s.SnapshotBytes == 0 || s.SnapshotAt.IsZero() {
		t.Errorf("%d bytes were replayed; the newest snapshot ends at %d, has %d bytes, and is from %v", s.LogSinceSnapshot, s.SnapshotIndex, s.SnapshotBytes, s.SnapshotAt)
	}
	for i := range 100 {
		if last := lastEvent(t, again, fmt.Sprintf("i-%03d", i)); last != 3 {
			t.Errorf("i-%03d has %d events", i, last)
		}
	}
}

// A leader knows how far its wall clock is ahead of cluster time.
func TestStats_ClockOffset(t *testing.T) {
	j := openJournal(t, Config{Dir: t.TempDir(), WallClock: func() time.Time { return time.Now().Add(time.Hour) }})
	awaitLeadership(t, j)
	if s := j.Stats(); !s.ClockKnown || s.ClockOffset < -time.Minute || s.ClockOffset > 2*time.Hour {
		t.Errorf("the offset is %v, known %t", s.ClockOffset, s.ClockKnown)
	}
}

func TestStats_CountEvents(t *testing.T) {
	j := openJournal(t, Config{Dir: t.TempDir()})
	epoch := awaitLeadership(t, j)
	started, before := time.Now(), j.Stats()
	for i := range 50 {
		mustAppend(t, j, newStartAppend(epoch, fmt.Sprintf("i-%d", i)))
	}
	s := j.Stats()
	// The leader also records the cluster time, every clock.Interval.
	ticks := uint64(time.Since(started)/clock.Interval) + 1
	if n := s.EntryRecords.Sum - before.EntryRecords.Sum; n < 50 || n > 50+ticks {
		t.Errorf("%d records, at most %d of them times", n, ticks)
	}
	for name, h := range map[string]Histogram{
		"queue delay": s.QueueDelay, "entry bytes": s.EntryBytes, "commit delay": s.CommitDelay,
		"log write": s.LogWrite,
	} {
		if h.Count == 0 || h.Sum == 0 || h.Quantile(1) == 0 || h.Quantile(0.5) > h.Quantile(1) {
			t.Errorf("%s: %d values, sum %d", name, h.Count, h.Sum)
		}
	}
	if s.LogEntries == 0 || s.LogBytes <= before.LogBytes || s.LogSinceSnapshot == 0 {
		t.Errorf("log: %+v", s)
	}
	waittest.Eventually(t, "nothing waits", func() bool { s = j.Stats(); return s.QueueRecords == 0 })
	if s.QueueBytes != 0 || s.LogStalls != 0 || s.LogStalled != 0 {
		t.Errorf("idle: %+v", s)
	}
}

func TestHistogram_QuantileBoundsValue(t *testing.T) {
	var h histogram
	for v := range uint64(1000) {
		h.observe(v)
	}
	r := h.read()
	if r.Count != 1000 || r.Sum != 999*1000/2 {
		t.Errorf("%d values, sum %d", r.Count, r.Sum)
	}
	for q, value := range map[float64]uint64{0.25: 250, 0.5: 500, 0.99: 990, 1: 999} {
		if got := r.Quantile(q); got < value-1 || got >= 2*value {
			t.Errorf("quantile %v is %d, the value is %d", q, got, value)
		}
	}
	if empty := (&Histogram{}).Quantile(0.5); empty != 0 {
		t.Errorf("of nothing: %d", empty)
	}
	h.observe(1 << 63) // above the largest bucket
	if r := h.read(); r.Buckets[HistogramBuckets-1] != 1 {
		t.Error("not in the last bucket")
	}
}

func BenchmarkObserve(b *testing.B) {
	var h histogram
	b.ReportAllocs()
	for n := range b.N {
		h.observe(uint64(n))
	}
}
