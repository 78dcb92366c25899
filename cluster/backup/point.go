package backup

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// A Point is a moment of a cluster: at most one of Time and Index is set. The zero Point is the end
// of the last backup.
//
// The end of each backup is a point. Between a backup with points ([Info.HasPoints]) and its base,
// every entry of the log is one. With several partitions, only cuts are points: each backup has one
// at its end, and a [Plan] with Points records one every 10 s.
type Point struct {
	// Time selects the latest point whose state has nothing that was recorded after that time, by
	// the clocks of the leaders that recorded it.
	Time time.Time
	// Index selects the latest point at or before the entry of that index in the log of the first
	// partition. If the entry is between the ends of two backups without points between them,
	// Restore returns a [*replay.InvalidError].
	Index uint64
}

func (p Point) check() error {
	if p.Index > 0 && !p.Time.IsZero() {
		return invalid("Target.Until", "has both a time and an index")
	}
	return nil
}

// isIn reports whether a backup ends at the point, or after it.
func (p Point) isIn(info *Info) bool {
	if p.Index > 0 {
		return info.Partitions[0].Index >= p.Index
	}
	return !p.Time.IsZero() && info.Time.After(p.Time)
}

// includes reports whether an entry of a partition is not after the point.
func (p Point) includes(partition int, e *logEntry) bool {
	if p.Index > 0 {
		return partition > 0 || e.index <= p.Index
	}
	return !e.at.After(p.Time)
}

// A logEntry is an entry at which a partition may end.
type logEntry struct {
	index, term uint64
	at          time.Time // the latest at which this entry or one before it was recorded
	cut         uint64    // the highest up to this entry
}

// shorten returns a backup, the first one that ends at or after a point, without what is after the
// point. before is the backup before it, nil for the first.
func (p *filePool) shorten(info, before *Info, until Point) (*Info, error) {
	switch {
	case until.Index > 0 && until.Index == info.Partitions[0].Index:
		return info, nil
	case before == nil:
		return nil, invalid("Target.Until", fmt.Sprintf("is before the end of the first backup, at entry %d of the first partition, %s",
			info.Partitions[0].Index, info.Time.Format(time.RFC3339Nano)))
	case info.Base == before.ID && info.HasPoints():
		return p.shortenLog(info, before, until)
	case until.Index > 0 && until.Index != before.Partitions[0].Index:
		return nil, invalid("Target.Until.Index", fmt.Sprintf("is %d: the backups have no point between the entries %d and %d of the first partition",
			until.Index, before.Partitions[0].Index, info.Partitions[0].Index))
	}
	return before, nil
}

// shortenLog returns a backup that has points after the backup before, without what is after one.
func (p *filePool) shortenLog(info, before *Info, until Point) (*Info, error) {
	ends, cuts := make([]logEntry, len(info.Partitions)), make([][]logEntry, len(info.Partitions))
	for i := range ends {
		var err error
		if ends[i], cuts[i], err = p.scan(i, info, before, until); err != nil {
			return nil, err
		}
	}
	if len(ends) > 1 {
		ends = endsAt(cuts, until)
	}
	shortened := *info
	shortened.Partitions = slices.Clone(info.Partitions)
	for i, end := range ends {
		shortened.Partitions[i].Index, shortened.Partitions[i].Term = end.index, end.term
	}
	shortened.Time, shortened.Cut = ends[0].at.UTC(), ends[0].cut
	return &shortened, nil
}

// endOf returns where a partition of a backup ends.
func (i *Info) endOf(partition int) logEntry {
	of := &i.Partitions[partition]
	return logEntry{of.Index, of.Term, i.Time, i.Cut}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// scan reads the entries of a partition after the backup before. It returns the last of them up to
// a point, or the end of that backup. cuts are that end, and the entries after it with which the
// partition has recorded a later cut.
func (p *filePool) scan(partition int, info, before *Info, until Point) (last logEntry, cuts []logEntry, err error) {
	type record struct {
		logEntry
		epoch int64 // less the epochs that have begun since the backup before
	}
	var found []record
	log, begun, current := info.Partitions[partition].Log, int64(0), int64(math.MinInt64)
	last = before.endOf(partition)
	next, included := last, true
	for e, err := range p.readLog(partition, &log[len(log)-1], info.ID) {
		if err != nil {
			return last, nil, err
		}
		recorded, epochs, err := e.Cuts()
		if err != nil {
			return last, nil, damaged(err)
		}
		next = logEntry{e.Index, e.Term, later(next.at, e.AppendedAt), before.Cut}
		if included = included && until.includes(partition, &next); included {
			last = next
		}
		for _, c := range recorded {
			found = append(found, record{logEntry{next.index, next.term, next.at, c.Cut}, c.Epoch - begun})
			current = max(current, c.Epoch-begun)
		}
		begun += epochs
	}
	// A record of an earlier epoch was rejected. None is of a later one, and the last, that of the
	// backup, was not rejected.
	all := []logEntry{before.endOf(partition)}
	for _, r := range found {
		if r.epoch == current && r.cut > all[len(all)-1].cut {
			all = append(all, r.logEntry)
		}
	}
	for _, c := range all {
		if c.index <= last.index {
			last.cut = c.cut
		}
	}
	return last, all, nil
}

// endsAt returns where each of several partitions ends at the latest point up to until. They are at
// the same cut: right after the entry in which they record it, or if they have not recorded it, the
// next one.
func endsAt(logs [][]logEntry, until Point) (ends []logEntry) {
	for _, candidate := range logs[0] {
		at := endsAtCut(logs, candidate.cut, until)
		if at == nil {
			break
		}
		ends = at
	}
	return ends
}

// endsAtCut returns where each partition ends at a cut, nil if until does not include that.
func endsAtCut(logs [][]logEntry, cut uint64, until Point) (ends []logEntry) {
	for i, log := range logs {
		at := slices.IndexFunc(log, func(e logEntry) bool { return e.cut >= cut })
		if at < 0 || at > 0 && !until.includes(i, &log[at]) {
			return nil
		}
		ends = append(ends, log[at])
	}
	return ends
}
