package journal

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Stats are figures of one node since Open. Taking them costs a few microseconds
// and stops nobody; the fields are read one after another, so that they need not
// fit each other to the last record.
type Stats struct {
	// QueueRecords and QueueBytes are what waits to be packed now.
	QueueRecords int
	QueueBytes   int
	// InFlight is how many Raft entries are proposed and not yet applied; at
	// most Config.InFlightMax.
	InFlight int
	// QueueDelay is, for each Raft entry that this node has proposed, how long
	// the oldest record in it had waited to be packed, in nanoseconds.
	QueueDelay Histogram
	// EntryRecords and EntryBytes are the records in, and the bytes of, each
	// Raft entry that this node has proposed.
	EntryRecords Histogram
	EntryBytes   Histogram
	// CommitDelay is, for each of those entries, the time from the proposal to
	// the answer of the state machine, in nanoseconds.
	CommitDelay Histogram

	// LogWrite is how long the writes of this node's log and votes took, each
	// synced to disk, in nanoseconds. LogBytes is what was written to the log.
	LogWrite Histogram
	LogBytes uint64
	// LogStalled is how long a write has been on its way that is older than
	// Config.StallLimit; 0 if none is. LogStalls is how often there was one.
	LogStalled time.Duration
	LogStalls  uint64
	// LogEntries is how many entries the log holds, and LogSinceSnapshot how
	// many bytes of them are newer than the newest snapshot: what a restart
	// would replay.
	LogEntries       int
	LogSinceSnapshot uint64

	// MessagesRefused is how many messages of Raft's were not taken: in the name of
	// another node than the one that has sent them, of one that is no member, or
	// such as no leader sends.
	MessagesRefused uint64

	// Snapshots is how many snapshots this node has written, those that it was
	// sent included; SnapshotFailures how many it could not take.
	Snapshots        uint64
	SnapshotFailures uint64
	// SnapshotTime is how long each of its own took from the request until it
	// was on disk and the log was truncated, in nanoseconds.
	SnapshotTime Histogram

	// StateRebuilds is how often Open has put a snapshot in the place of a state
	// that was damaged or behind, and StateFetches how often that snapshot had to
	// come from another node: 0 or 1 each, or both.
	StateRebuilds uint64
	StateFetches  uint64
	// SnapshotsHandedOut is how many snapshots this node has given to others that
	// had lost theirs.
	SnapshotsHandedOut uint64
}

// HistogramBuckets is the number of buckets of every Histogram.
const HistogramBuckets = 44

// Histogram counts values in buckets of powers of two.
type Histogram struct {
	Count uint64
	Sum   uint64
	// Buckets[0] counts zeros, Buckets[i] the values from 1<<(i-1) to 1<<i - 1;
	// the last one has everything larger as well.
	Buckets [HistogramBuckets]uint64
}

// Quantile returns an upper bound, at most twice as large, of the value below
// which a share q of all lies, 0 <= q <= 1; 0 if there are none.
func (h *Histogram) Quantile(q float64) uint64 {
	rank := uint64(q * float64(h.Count))
	seen := uint64(0)
	for i, n := range h.Buckets {
		if seen += n; n > 0 && seen >= rank {
			return 1<<i - 1
		}
	}
	return 0
}

// histogram is a Histogram that is written to by many at once.
type histogram struct {
	sum     atomic.Uint64
	buckets [HistogramBuckets]atomic.Uint64
	tap     atomic.Pointer[func(uint64)] // is told of each value too
}

func (h *histogram) observe(v uint64) {
	if tap := h.tap.Load(); tap != nil {
		(*tap)(v)
	}
	h.sum.Add(v)
	h.buckets[min(bits.Len64(v), HistogramBuckets-1)].Add(1)
}

func (h *histogram) read() Histogram {
	r := Histogram{Sum: h.sum.Load()}
	for i := range h.buckets {
		r.Buckets[i] = h.buckets[i].Load()
		r.Count += r.Buckets[i]
	}
	return r
}

// stats are the counters behind Stats that belong to no other part.
type stats struct {
	queueDelay, entryRecords, entryBytes, commitDelay histogram
	snapshotTime                                      histogram
	logStalls, snapshotFailures                       atomic.Uint64
	stateRebuilds, stateFetches, handedOut            atomic.Uint64
}

// Taps are told of the values that the histograms of [Stats] count, each as it is
// counted. They are called on the way of every entry, by several goroutines, and
// must not block. None may be nil.
type Taps struct {
	QueueDelay, EntryRecords, EntryBytes, CommitDelay, LogWrite, SnapshotTime func(uint64)
}

// Tap has the values counted from now on told to taps, in the place of those
// before.
func (j *Journal) Tap(taps Taps) {
	j.stats.queueDelay.tap.Store(&taps.QueueDelay)
	j.stats.entryRecords.tap.Store(&taps.EntryRecords)
	j.stats.entryBytes.tap.Store(&taps.EntryBytes)
	j.stats.commitDelay.tap.Store(&taps.CommitDelay)
	j.stats.snapshotTime.tap.Store(&taps.SnapshotTime)
	j.disk.latency.tap.Store(&taps.LogWrite)
}

// Stats returns the figures of this node.
func (j *Journal) Stats() Stats {
	s := Stats{
		InFlight:   len(j.slots),
		QueueDelay: j.stats.queueDelay.read(), CommitDelay: j.stats.commitDelay.read(),
		EntryRecords: j.stats.entryRecords.read(), EntryBytes: j.stats.entryBytes.read(),
		LogWrite: j.disk.latency.read(), LogStalls: j.stats.logStalls.Load(),
		SnapshotFailures: j.stats.snapshotFailures.Load(), SnapshotTime: j.stats.snapshotTime.read(),
		StateRebuilds: j.stats.stateRebuilds.Load(), StateFetches: j.stats.stateFetches.Load(),
		SnapshotsHandedOut: j.stats.handedOut.Load(),
	}
	s.QueueRecords, s.QueueBytes = j.queue.size()
	if j.disk.hangs() {
		s.LogStalled = j.disk.age()
	}
	s.MessagesRefused = j.refusals.count.Load()
	j.logs.checked.stats(&s)
	s.Snapshots = j.snapshots.taken.Load()
	return s
}
