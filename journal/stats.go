package journal

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Stats are metrics of one node since Open. Reading them costs a few microseconds and blocks
// nothing. The fields are read one after another, so they may differ by a few records.
type Stats struct {
	// QueueRecords and QueueBytes are what waits to be packed now.
	QueueRecords int
	QueueBytes   int
	// InFlight is the number of Raft entries proposed and not yet applied; at most
	// Config.InFlightMax.
	InFlight int
	// QueueDelay is, for each Raft entry that this node has proposed, how long its oldest record
	// waited to be packed, in nanoseconds.
	QueueDelay Histogram
	// EntryRecords and EntryBytes are the number of records and of bytes of each Raft entry that
	// this node has proposed.
	EntryRecords Histogram
	EntryBytes   Histogram
	// CommitDelay is, for each of those entries, the time from the proposal to the result of the
	// state machine, in nanoseconds.
	CommitDelay Histogram

	// LogWrite is the duration of each synced write of this node's log and votes, in nanoseconds.
	// LogBytes is what was written to the log.
	LogWrite Histogram
	LogBytes uint64
	// LogStalled is the age of the current write if it exceeds Config.StallLimit; 0 otherwise.
	// LogStalls is how often that happened.
	LogStalled time.Duration
	LogStalls  uint64
	// LogEntries is the number of entries in the log, and LogSinceSnapshot the bytes of those newer
	// than the newest snapshot: what a restart would replay.
	LogEntries       int
	LogSinceSnapshot uint64

	// MessagesRejected is the number of Raft messages that were rejected: with the name of a node
	// other than the sender, from a node that is not a member, or malformed.
	MessagesRejected uint64

	// Snapshots is the number of snapshots that this node has written, including received ones;
	// SnapshotFailures is how many it could not take.
	Snapshots        uint64
	SnapshotFailures uint64
	// SnapshotTime is how long each of its own snapshots took, from the request until it was on
	// disk and the log was truncated, in nanoseconds.
	SnapshotTime Histogram
	// SnapshotIndex, SnapshotAt and SnapshotBytes are the index of the newest snapshot, when it was
	// completed here, and its size; zero values if there is none, or if that is unknown.
	SnapshotIndex uint64
	SnapshotAt    time.Time
	SnapshotBytes int64

	// ClockOffset is the wall clock less cluster time, which follows the leader's wall clock. It is
	// 0 unless ClockKnown.
	ClockOffset time.Duration
	ClockKnown  bool

	// StateRebuilds is how often Open replaced a damaged or outdated state by a snapshot.
	// StateFetches is how often that snapshot had to come from another node. Each is 0 or 1.
	StateRebuilds uint64
	StateFetches  uint64
	// SnapshotsServed is the number of snapshots sent to nodes that had lost theirs.
	SnapshotsServed uint64
}

// HistogramBuckets is the number of buckets of every Histogram.
const HistogramBuckets = 44

// Histogram counts values in buckets of powers of two.
type Histogram struct {
	Count uint64
	Sum   uint64
	// Buckets[0] counts zeros, Buckets[i] the values from 1<<(i-1) to 1<<i - 1; the last one also
	// counts everything larger.
	Buckets [HistogramBuckets]uint64
}

// Quantile returns an upper bound of the quantile q of all values, 0 <= q <= 1; 0 if there are
// none. It is at most twice the exact quantile, unless that is in the last bucket.
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

// histogram is a Histogram for concurrent writers.
type histogram struct {
	sum      atomic.Uint64
	buckets  [HistogramBuckets]atomic.Uint64
	observer atomic.Pointer[func(uint64)] // called with each value; may be nil
}

func (h *histogram) observe(v uint64) {
	if observer := h.observer.Load(); observer != nil {
		(*observer)(v)
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

// stats are the counters behind Stats that no other part holds.
type stats struct {
	queueDelay, entryRecords, entryBytes, commitDelay histogram
	logWrite                                          histogram
	snapshotTime                                      histogram
	logStalls, snapshotFailures                       atomic.Uint64
	stateRebuilds, stateFetches, snapshotsServed      atomic.Uint64
}

// Observers are called with each value that the histograms of [Stats] count. They are called for
// every entry, by several goroutines, and must not block. None may be nil.
type Observers struct {
	QueueDelay, EntryRecords, EntryBytes, CommitDelay, LogWrite, SnapshotTime func(uint64)
}

// SetObservers replaces the observers, for values counted from now on.
func (j *Journal) SetObservers(observers Observers) {
	j.stats.queueDelay.observer.Store(&observers.QueueDelay)
	j.stats.entryRecords.observer.Store(&observers.EntryRecords)
	j.stats.entryBytes.observer.Store(&observers.EntryBytes)
	j.stats.commitDelay.observer.Store(&observers.CommitDelay)
	j.stats.snapshotTime.observer.Store(&observers.SnapshotTime)
	j.stats.logWrite.observer.Store(&observers.LogWrite)
}

// Stats returns the metrics of this node.
func (j *Journal) Stats() Stats {
	s := Stats{
		InFlight:   len(j.slots),
		QueueDelay: j.stats.queueDelay.read(), CommitDelay: j.stats.commitDelay.read(),
		EntryRecords: j.stats.entryRecords.read(), EntryBytes: j.stats.entryBytes.read(),
		LogWrite: j.stats.logWrite.read(), LogStalls: j.stats.logStalls.Load(),
		SnapshotFailures: j.stats.snapshotFailures.Load(), SnapshotTime: j.stats.snapshotTime.read(),
		StateRebuilds: j.stats.stateRebuilds.Load(), StateFetches: j.stats.stateFetches.Load(),
		SnapshotsServed: j.stats.snapshotsServed.Load(),
	}
	s.QueueRecords, s.QueueBytes = j.queue.size()
	if j.disk.IsStalled() {
		s.LogStalled = j.disk.WriteAge()
	}
	s.MessagesRejected = j.rejections.Count()
	log := j.logs.Checked.Stats()
	s.LogBytes, s.LogEntries, s.LogSinceSnapshot = log.WrittenBytes, log.Entries, log.BytesSinceSnapshot
	s.Snapshots = j.snapshots.Count()
	latest := j.snapshots.Latest()
	s.SnapshotIndex, s.SnapshotAt, s.SnapshotBytes = latest.Index, latest.Time, latest.Bytes
	if offset, known := j.clock.Offset(); known {
		s.ClockOffset, s.ClockKnown = offset, true
	}
	return s
}
