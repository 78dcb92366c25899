package schedules

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sort"
	"time"
)

// A timeSource yields due times in order.
type timeSource interface {
	// next returns the first due time after t, zero for none.
	next(t time.Time) time.Time
}

// dueTimes are the due times of a Spec: those of all its sources, each once.
type dueTimes struct {
	sources []timeSource
	from    time.Time // zero: no bound
	until   time.Time // zero: no bound
}

// compile returns the due times of a Spec, or a *replay.InvalidError.
func compile(spec Spec) (*dueTimes, error) {
	switch {
	case len(spec.Cron) > sourcesMax:
		return nil, invalid("Spec.Cron", "has %d expressions: at most %d are allowed", len(spec.Cron), sourcesMax)
	case len(spec.Calendars) > sourcesMax:
		return nil, invalid("Spec.Calendars", "has %d calendars: at most %d are allowed", len(spec.Calendars), sourcesMax)
	case len(spec.Cron) == 0 && len(spec.Calendars) == 0 && spec.Every == 0:
		return nil, invalid("Spec", "has no times: set Cron, Every or Calendars")
	}
	zone, err := loadZone(spec.TimeZone)
	if err != nil {
		return nil, err
	}
	times := &dueTimes{from: spec.From, until: spec.Until}
	if times.until.IsZero() || times.until.After(latest) {
		times.until = latest
	}
	for i, expression := range spec.Cron {
		field := fmt.Sprintf("Spec.Cron[%d]", i)
		selected, err := parseCron(field, expression)
		if err != nil {
			return nil, err
		}
		if err := times.add(field, wallClock{selected, zone}); err != nil {
			return nil, err
		}
	}
	for i, calendar := range spec.Calendars {
		field := fmt.Sprintf("Spec.Calendars[%d]", i)
		selected, err := calendar.selected(field)
		if err != nil {
			return nil, err
		}
		if err := times.add(field, wallClock{selected, zone}); err != nil {
			return nil, err
		}
	}
	if err := checkEvery(spec); err != nil {
		return nil, err
	}
	if spec.Every > 0 {
		times.sources = append(times.sources, interval{spec.Every, spec.Offset})
	}
	return times, nil
}

// add adds a source, unless it selects no time at all.
func (d *dueTimes) add(field string, source wallClock) error {
	if source.selected.Next(time.Unix(0, 0).UTC()).IsZero() {
		return invalid(field, "selects no time")
	}
	d.sources = append(d.sources, source)
	return nil
}

// An unknownZoneError reports a time zone that this machine does not know. It wraps a
// *replay.InvalidError. Another machine may know the zone.
type unknownZoneError struct{ err error }

func (e *unknownZoneError) Error() string { return e.err.Error() }

func (e *unknownZoneError) Unwrap() error { return e.err }

// loadZone returns a time zone; UTC for "". "Local" differs between nodes.
func loadZone(name string) (*time.Location, error) {
	if name == "Local" || len(name) > zoneMax {
		return nil, invalid("Spec.TimeZone", "is %.70q: use a name of the IANA database, such as Europe/Berlin", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, &unknownZoneError{invalid("Spec.TimeZone", "is %q: %v; a program can import time/tzdata", name, err)}
	}
	return zone, nil
}

// next returns the first due time after t, zero for none.
func (d *dueTimes) next(t time.Time) time.Time {
	if !d.from.IsZero() && t.Before(d.from) {
		t = d.from.Add(-1)
	}
	first := time.Time{}
	for _, source := range d.sources {
		due := source.next(t)
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	if first.IsZero() || !first.Before(d.until) {
		return time.Time{}
	}
	return first.UTC()
}

// beforeLast returns a time before the last due time until t, and after the one before that, as far
// as whole seconds do. If there is none in the span before t, it returns t.
func (d *dueTimes) beforeLast(t time.Time, span time.Duration) time.Time {
	from := t.Add(-span)
	passed := func(i int) bool {
		due := d.next(from.Add(time.Duration(i) * time.Second))
		return due.IsZero() || due.After(t)
	}
	i := sort.Search(int(span/time.Second)+1, passed)
	if i == 0 {
		return t
	}
	return from.Add(time.Duration(i-1) * time.Second)
}

// first returns up to n due times after t.
func (d *dueTimes) first(t time.Time, n int) (due []time.Time) {
	for len(due) < n {
		if t = d.next(t); t.IsZero() {
			break
		}
		due = append(due, t)
	}
	return due
}

// An interval is due at multiples of every since 1970-01-01 00:00 UTC, plus an offset.
type interval struct{ every, offset time.Duration }

func (i interval) next(t time.Time) time.Time {
	every := int64(i.every / time.Second)
	since := t.Unix() - int64(i.offset/time.Second)
	number := since / every
	if since%every < 0 {
		number--
	}
	return time.Unix((number+1)*every, 0).Add(i.offset).UTC()
}

// A plan is what a schedule does at one time. It is recorded, so that another time zone database or
// another parser does not change what a schedule has done.
type plan struct {
	Due    []time.Time `json:",omitempty"` // due now, within the catch-up window
	Missed int         `json:",omitempty"` // due times before the window
	// Last is the time up to which due times were decided.
	Last time.Time
	// Next is the next due time, and At when its run starts: with the jitter. Both are zero if
	// there is none, or if More is set.
	Next time.Time `json:",omitzero"`
	At   time.Time `json:",omitzero"`
	More bool      `json:",omitempty"` // more due times follow at once
	// Problem is why due times cannot be computed on the node, "" if they can.
	Problem string `json:",omitempty"`
}

// Bounds of one plan.
const (
	dueMax    = 100
	missedMax = 1000
)

// newPlan returns what to do at now about the due times after last.
func newPlan(id string, spec Spec, last, now time.Time) plan {
	times, err := compile(spec)
	if err != nil {
		return plan{Last: last, Problem: err.Error()}
	}
	p := plan{Last: last}
	for due := times.next(last); !due.IsZero(); due = times.next(p.Last) {
		at := due
		if spec.Jitter > 0 {
			at = due.Add(jitter(id, due, min(spec.Jitter, gap(due, times.next(due)))))
		}
		switch {
		case at.After(now):
			p.Next, p.At = due, at
			return p
		case now.Sub(at) > spec.catchUp():
			if p.Missed++; p.Missed == missedMax {
				due = later(due, times.beforeLast(now.Add(-spec.catchUp()-1), spec.Jitter))
			}
		case len(p.Due) == dueMax:
			p.More = true
			return p
		default:
			p.Due = append(p.Due, due)
		}
		p.Last = due
	}
	return p
}

// gap returns the time from a due time to the next one, which may be zero.
func gap(due, next time.Time) time.Duration {
	if next.IsZero() {
		return jitterMax
	}
	return next.Sub(due)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// jitter returns a delay of less than most that depends only on the schedule and the due time.
func jitter(id string, due time.Time, most time.Duration) time.Duration {
	hash := sha256.Sum256(fmt.Appendf(nil, "%s/%d", id, due.Unix()))
	return time.Duration(binary.BigEndian.Uint64(hash[:8]) % uint64(most))
}

// timesMax bounds the result of Times.
const timesMax = 10_000

// Times returns the first n due times of a Spec after t.
func Times(spec Spec, t time.Time, n int) ([]time.Time, error) {
	if n < 0 || n > timesMax {
		return nil, invalid("number of due times", "is %d: 0 to %d are allowed", n, timesMax)
	}
	if err := checkTimes(spec); err != nil {
		return nil, err
	}
	times, err := compile(spec)
	if err != nil {
		return nil, err
	}
	return times.first(t, n), nil
}
