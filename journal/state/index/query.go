package index

import (
	"slices"
	"strings"
)

// An Interval holds the times from From up to but excluding Before, Unix nanoseconds. A bound of 0
// is none.
type Interval struct{ From, Before int64 }

// IsSet reports whether the interval has a bound.
func (i Interval) IsSet() bool { return i != Interval{} }

// Contains reports whether a time is in the interval.
func (i Interval) Contains(at int64) bool {
	return (i.From == 0 || at >= i.From) && (i.Before == 0 || at < i.Before)
}

// Waiting selects instances with at least one open operation that matches every field that is set.
type Waiting struct {
	Kind  Kind // 0 for any
	Name  string
	Since Interval
}

// Failing selects instances with at least one open activity of which at least Attempts attempts
// have failed (0 and 1 mean one), the last with ErrorCode if that is set.
type Failing struct {
	Attempts  uint32
	ErrorCode string
}

// Order is what a result is sorted by.
type Order uint8

// The orders. Instances with equal times follow in the same direction by ID. ByEnded selects only
// instances that have ended, and ByNextTimer only those with an open timer.
const (
	ByID Order = iota
	ByCreated
	ByUpdated
	ByEnded
	ByNextTimer
)

// A Query selects the rows that match every field that is set.
type Query struct {
	States                                       []State
	Name, Version, IDPrefix, ParentID, ErrorCode string
	Tags, Attributes                             map[string]string
	Created, Updated, Ended                      Interval
	Waiting                                      *Waiting
	Failing                                      *Failing
	Order                                        Order
	Descending                                   bool
	// Has selects only instances that the order selects, without sorting by it.
	Has Order
}

// Matches reports whether the query selects a row.
func (q *Query) Matches(r *Row) bool {
	return (len(q.States) == 0 || slices.Contains(q.States, r.State)) &&
		(q.Name == "" || r.Name == q.Name) &&
		(q.Version == "" || r.Version == q.Version) &&
		strings.HasPrefix(r.ID, q.IDPrefix) &&
		(q.ParentID == "" || r.ParentID == q.ParentID) &&
		(q.ErrorCode == "" || r.ErrorCode == q.ErrorCode) &&
		containsAll(r.Tags, q.Tags) &&
		containsAll(r.Attributes, q.Attributes) &&
		q.Created.Contains(r.Created) &&
		q.Updated.Contains(r.Updated) &&
		(!q.Ended.IsSet() || r.Ended != 0 && q.Ended.Contains(r.Ended)) &&
		(q.Waiting == nil || slices.ContainsFunc(r.Waits, q.Waiting.Matches)) &&
		(q.Failing == nil || slices.ContainsFunc(r.Waits, q.Failing.Matches)) &&
		q.canOrder(r)
}

// canOrder reports whether the row has what the result is sorted by, and what Has requires.
func (q *Query) canOrder(r *Row) bool {
	_, sorted := q.Order.key(r)
	_, has := q.Has.key(r)
	return sorted && has
}

// requires reports whether the query selects only what an order selects.
func (q *Query) requires(o Order) bool { return q.Order == o || q.Has == o }

// RequiresTimer reports whether the query selects only instances with an open timer, by its order
// or Has.
func (q *Query) RequiresTimer() bool { return q.requires(ByNextTimer) }

// key returns the time by which a row is sorted, 0 in the order by ID; false if the row is not in
// the order.
func (o Order) key(r *Row) (at int64, ok bool) {
	switch o {
	case ByCreated:
		return r.Created, true
	case ByUpdated:
		return r.Updated, true
	case ByEnded:
		return r.Ended, r.Ended != 0
	case ByNextTimer:
		return r.NextTimer()
	}
	return 0, true
}

func containsAll(have, wanted map[string]string) bool {
	for key, value := range wanted {
		if text, ok := have[key]; !ok || text != value {
			return false
		}
	}
	return true
}

// Matches reports whether an open operation is selected.
func (w *Waiting) Matches(have Wait) bool {
	return (w.Kind == 0 || have.Kind == w.Kind) && (w.Name == "" || have.Name == w.Name) && w.Since.Contains(have.Since)
}

// Matches reports whether an open operation is selected.
func (f *Failing) Matches(have Wait) bool {
	return have.Kind == Activity && have.Failed >= max(f.Attempts, 1) && (f.ErrorCode == "" || have.ErrorCode == f.ErrorCode)
}

// A Cursor is a place in a sorted result: that of a row, whether or not it still exists.
type Cursor struct {
	Key int64 // the time by which the result is sorted; 0 in the order by ID
	ID  string
}

// CursorOf returns the place of a row that matches the query.
func (q *Query) CursorOf(r *Row) Cursor {
	at, _ := q.Order.key(r)
	return Cursor{at, r.ID}
}

// Compare orders two places as the query does.
func (q *Query) Compare(a, b Cursor) int {
	c := 0
	switch {
	case a.Key < b.Key:
		c = -1
	case a.Key > b.Key:
		c = 1
	default:
		c = strings.Compare(a.ID, b.ID)
	}
	if q.Descending {
		return -c
	}
	return c
}

// A Page is part of a result.
type Page struct {
	Rows []*Row
	// More reports that there may be more rows after Next.
	More bool
	Next Cursor
}

// A Dimension is what rows are grouped by when they are counted.
type Dimension uint8

// The dimensions. ByTag and ByAttribute have a key.
const (
	DimensionState Dimension = iota + 1
	DimensionName
	DimensionVersion
	DimensionErrorCode
	DimensionTag
	DimensionAttribute
)

// A Grouping is one of the dimensions by which rows are counted.
type Grouping struct {
	Dimension Dimension
	Key       string // of a tag or an attribute
}

// Value returns the value of a row in a grouping, "" if the row has none.
func (g Grouping) Value(r *Row) string {
	switch g.Dimension {
	case DimensionState:
		return r.State.String()
	case DimensionName:
		return r.Name
	case DimensionVersion:
		return r.Version
	case DimensionErrorCode:
		return r.ErrorCode
	case DimensionTag:
		return r.Tags[g.Key]
	case DimensionAttribute:
		return r.Attributes[g.Key]
	}
	return ""
}

// A Group is the rows that have the same values in the dimensions of a count, in their order. A row
// that lacks a value has "" there.
type Group struct {
	Values []string
	Count  uint64
}
