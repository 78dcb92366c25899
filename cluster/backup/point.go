package backup

import (
	"fmt"
	"slices"
	"time"
)

// A Point is a moment of a cluster: at most one of Time and Index is set. The zero Point is the end
// of the last backup.
//
// The points that backups have are their ends, and, between a backup with points
// ([Info.HasPoints]) and its base, every entry of the log; in a cluster with several partitions,
// every cut: [Plan.Points] has one recorded every 10 s, and each backup has one.
type Point struct {
	// Time selects the latest point with nothing that was recorded later, by the clocks of the
	// nodes that recorded it.
	Time time.Time
	// Index selects the latest point at or before the entry of that index in the log of the first
	// partition.
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

// A logEntry is what the choice of a point needs of an entry.
type logEntry struct {
	index, term uint64
	at          time.Time
	cut         uint64 // the highest up to this entry
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
	shortened := *info
	shortened.Partitions = slices.Clone(info.Partitions)
	logs := make([][]logEntry, len(info.Partitions))
	for i := range logs {
		var err error
		if logs[i], err = p.points(i, info, before); err != nil {
			return nil, err
		}
	}
	ends := endsAt(logs, until)
	for i, end := range ends {
		shortened.Partitions[i].Index, shortened.Partitions[i].Term = end.index, end.term
	}
	shortened.Time, shortened.Cut = ends[0].at.UTC(), ends[0].cut
	return &shortened, nil
}

// points returns the end of the backup before, and the entries after it at which a partition may
// end: all, or with several partitions those that record a cut.
func (p *filePool) points(partition int, info, before *Info) ([]logEntry, error) {
	from, of := &before.Partitions[partition], &info.Partitions[partition]
	all := []logEntry{{from.Index, from.Term, before.Time, before.Cut}}
	cut := before.Cut
	for e, err := range p.readLog(partition, &of.Log[len(of.Log)-1], info.ID) {
		if err != nil {
			return nil, err
		}
		recorded, err := e.Cut()
		if err != nil {
			return nil, damaged(err)
		}
		if len(info.Partitions) == 1 || recorded > cut {
			cut = max(cut, recorded)
			all = append(all, logEntry{e.Index, e.Term, e.AppendedAt, cut})
		}
	}
	return all, nil
}

// endsAt returns where each partition ends at the latest point up to until. Several partitions are
// at the same cut: right after the entry in which they record it, or if they have not recorded it,
// the next one.
func endsAt(logs [][]logEntry, until Point) (ends []logEntry) {
	if len(logs) == 1 {
		last := 0
		for last+1 < len(logs[0]) && until.includes(0, &logs[0][last+1]) {
			last++
		}
		return logs[0][last : last+1]
	}
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
