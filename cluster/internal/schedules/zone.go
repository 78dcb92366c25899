package schedules

import (
	"time"

	cron "github.com/netresearch/go-cron"
)

// A wallClock selects times of the wall clock of a time zone.
//
// When the clock is set forward, a selected time that is skipped is due at the end of the skipped
// time; several of them are one due time. When the clock is set back, a selected time that is
// repeated is due when the clock shows it first. If every hour is selected, a time is due whenever
// the clock shows it: not if it is skipped, and twice if it is repeated.
type wallClock struct {
	selected *cron.SpecSchedule
	zone     *time.Location
}

// next returns the first due time after t, zero for none.
func (w wallClock) next(t time.Time) time.Time {
	if hours := rangeBits(0, 23); w.selected.Hour&hours == hours {
		return w.nextShown(t)
	}
	// Of two selected times of the wall clock, the later is not due before the earlier.
	for shown := w.selected.Next(wallTime(t, w.zone)); !shown.IsZero(); shown = w.selected.Next(shown) {
		if due := firstInstant(shown, w.zone); due.After(t) {
			return due
		}
	}
	return time.Time{}
}

// nextShown returns the first time after t at which the clock shows a selected time.
func (w wallClock) nextShown(t time.Time) time.Time {
	for from := t.Add(1); ; { // from is included
		wall := wallTime(from, w.zone)
		shown := w.selected.Next(wall.Add(-1))
		if shown.IsZero() {
			return shown
		}
		due := from.Add(shown.Sub(wall))
		_, change := from.In(w.zone).ZoneBounds()
		if change.IsZero() || due.Before(change) {
			return due.UTC()
		}
		from = change // the clock is set before it shows that time
	}
}

// wallTime returns what the clock of a zone shows at t, as a time in UTC.
func wallTime(t time.Time, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// firstInstant returns when the clock of a zone first shows a time. If it skips that time, it
// returns when it does.
func firstInstant(shown time.Time, zone *time.Location) time.Time {
	near := time.Date(shown.Year(), shown.Month(), shown.Day(), shown.Hour(), shown.Minute(), shown.Second(), shown.Nanosecond(), zone)
	var changes []time.Time
	start, end := near.ZoneBounds()
	for _, change := range []time.Time{start, end} {
		if !change.IsZero() {
			changes = append(changes, change)
		}
	}
	first := time.Time{}
	for _, probe := range append([]time.Time{near, start.Add(-1)}, changes...) {
		_, offset := probe.In(zone).Zone()
		at := shown.Add(-time.Duration(offset) * time.Second)
		if wallTime(at, zone).Equal(shown) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		return first
	}
	for _, change := range changes {
		if wallTime(change.Add(-1), zone).Before(shown) && wallTime(change, zone).After(shown) {
			return change.UTC()
		}
	}
	return near.UTC()
}
