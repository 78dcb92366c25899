package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A First behind a filter keeps the first places, each once, and knows whether there are more.
func TestFirst_KeepsFirstOfWhatPassesFilter(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		q := &Query{Order: Order(r.IntN(4)), Descending: r.IntN(2) == 0}
		rowOf := func() *Row {
			at := int64(1 + r.IntN(5))
			// IDs agree in more bytes than a filter compares, or differ early.
			id := fmt.Sprint([]string{"", "a", "aaaaaaaaaaaaaaaaaaaaaa"}[r.IntN(3)], r.IntN(5))
			row := &Row{ID: id, Created: at, Updated: at + int64(r.IntN(3)), Tags: map[string]string{"k": fmt.Sprint(r.IntN(2))}, ParentID: fmt.Sprint(r.IntN(2)), Attributes: map[string]string{"a": fmt.Sprint(r.IntN(2))}}
			if r.IntN(4) > 0 {
				row.State, row.Ended = Completed, row.Updated
			}
			return row
		}
		if r.IntN(2) == 0 {
			q.Tags = map[string]string{"k": "1"}
		}
		if r.IntN(3) == 0 {
			q.ParentID = "1"
		}
		if r.IntN(3) == 0 {
			q.Created, q.Ended, q.IDPrefix = Interval{From: 2}, Interval{Before: 6}, "a"
		}
		if r.IntN(4) == 0 {
			q.Attributes = map[string]string{"a": "1"}
		}
		var after *Cursor
		if r.IntN(2) == 0 {
			at := q.CursorOf(rowOf())
			after = &at
		}
		limit := 1 + r.IntN(4)
		first := NewFirst(q, after, limit)
		filter := NewUnwrittenFilter(q, first, 1)
		var want []Cursor
		for range r.IntN(30) {
			row := rowOf()
			at := q.CursorOf(row)
			movedAt := uint64(r.IntN(3)) // 2: after the list was captured
			if movedAt != 1 && q.Matches(row) && (after == nil || q.Compare(at, *after) > 0) {
				want = append(want, at)
			}
			u := NewUnwritten(row, row.ID, row.Created)
			u.AddTag("k", row.Tags["k"])
			u.AddParent(row.ParentID)
			if row.Ended != 0 {
				u.SetEnded(row.Ended)
				u.AddAttribute("a", row.Attributes["a"])
			}
			if movedAt > 0 {
				u.SetMoved(movedAt)
			}
			for range 1 + r.IntN(2) {
				if MayAdd(filter, &u) && q.Matches(row) {
					first.Add(at)
				}
			}
		}
		slices.SortFunc(want, q.Compare)
		want = slices.Compact(want)
		got, more := first.Places()
		if len(want) > limit && !more || !slices.Equal(got, want[:min(limit, len(want))]) {
			t.Fatalf("seed %d: %v, more %v; want %d of %v", seed, got, more, limit, want)
		}
		if more && len(want) <= limit && filter.endedTerms == 0 && q.IDPrefix == "" {
			t.Fatalf("seed %d: more than %v", seed, want)
		}
	}
}

// A filter leaves out most instances that have other tags.
func TestUnwrittenFilter_LeavesOutOtherTags(t *testing.T) {
	q := &Query{Tags: map[string]string{"customer": "17"}}
	filter, passed := NewUnwrittenFilter(q, NewFirst(q, nil, 1), 0), 0
	for i := range 1000 {
		u := NewUnwritten(i, "a", 1)
		u.AddTag("customer", fmt.Sprint(100+i))
		if MayAdd(filter, &u) {
			passed++
		}
	}
	if passed > 50 {
		t.Errorf("%d of 1000 pass", passed)
	}
}
