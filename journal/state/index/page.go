package index

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"slices"
)

// First keeps the first places of those that it is given, in the order of a query and after a
// cursor. Its memory is bounded by the number that it keeps.
type First struct {
	query *Query
	after *Cursor // nil: from the beginning
	limit int
	heap  cursorHeap        // the last one is on top
	kept  map[Cursor]uint32 // those in the heap, and their facets
	more  bool              // a place was dropped

	shortAfter, shortLast shortPlace // of after, and of the last one in the heap
}

// NewFirst returns a First that keeps up to limit places, at least one.
func NewFirst(q *Query, after *Cursor, limit int) *First {
	f := &First{query: q, after: after, limit: max(limit, 1), heap: cursorHeap{query: q}, kept: map[Cursor]uint32{}}
	if after != nil {
		f.shortAfter = shortPlaceOf(*after)
	}
	return f
}

// Add keeps a place if it is among the first.
func (f *First) Add(at Cursor) { f.AddIn(at, 0) }

// AddIn is Add for the place of an instance with a facet.
func (f *First) AddIn(at Cursor, facet uint32) {
	if f.after != nil && f.query.Compare(at, *f.after) <= 0 {
		return
	}
	isFull := len(f.heap.places) == f.limit
	if isFull && f.query.Compare(at, f.heap.places[0]) > 0 {
		f.more = true
		return
	}
	if _, twice := f.kept[at]; twice {
		return
	}
	f.kept[at] = facet
	if isFull {
		f.more = true
		delete(f.kept, f.heap.places[0])
		f.heap.places[0] = at
		heap.Fix(&f.heap, 0)
	} else {
		heap.Push(&f.heap, at)
	}
	f.shortLast = shortPlaceOf(f.heap.places[0])
}

// Facet returns the facet with which a place was kept.
func (f *First) Facet(at Cursor) uint32 { return f.kept[at] }

// Places returns the places in order, and whether others were dropped. Nothing must be
// added afterwards.
func (f *First) Places() (places []Cursor, more bool) {
	slices.SortFunc(f.heap.places, f.query.Compare)
	return f.heap.places, f.more
}

type cursorHeap struct {
	query  *Query
	places []Cursor
}

// Len implements heap.Interface.
func (h *cursorHeap) Len() int { return len(h.places) }

// Less implements heap.Interface.
func (h *cursorHeap) Less(i, j int) bool { return h.query.Compare(h.places[i], h.places[j]) > 0 }

// Swap implements heap.Interface.
func (h *cursorHeap) Swap(i, j int) { h.places[i], h.places[j] = h.places[j], h.places[i] }

// Push implements heap.Interface.
func (h *cursorHeap) Push(at any) { h.places = append(h.places, at.(Cursor)) }

// Pop implements heap.Interface.
func (h *cursorHeap) Pop() any {
	last := h.places[len(h.places)-1]
	h.places = h.places[:len(h.places)-1]
	return last
}

// PageBytesMax is after how many bytes of rows a page ends, about.
const PageBytesMax = 4 << 20

// Bounds of the groups of a count: their number, and the bytes of their values.
const (
	GroupsMax     = 10_000
	GroupBytesMax = 4 << 20
)

// ErrTooManyGroups reports that a count has more groups than GroupsMax, or longer values than
// GroupBytesMax.
var ErrTooManyGroups = fmt.Errorf("more than %d groups, or more than %d bytes of their values", GroupsMax, GroupBytesMax)

// Counts counts rows by the values of some groupings. Its memory is bounded by GroupsMax and
// GroupBytesMax.
type Counts struct {
	by     []Grouping
	groups map[string]*Group
	bytes  int // of the values of all groups
}

// NewCounts returns empty counts.
func NewCounts(by []Grouping) *Counts { return &Counts{by: by, groups: make(map[string]*Group)} }

// Add counts n rows with the values of r. The error is ErrTooManyGroups.
func (c *Counts) Add(r *Row, n uint64) error {
	values := make([]string, len(c.by))
	var key []byte
	size := 0
	for i, g := range c.by {
		values[i] = g.Value(r)
		key = append(binary.AppendUvarint(key, uint64(len(values[i]))), values[i]...)
		size += len(values[i])
	}
	group := c.groups[string(key)]
	if group == nil {
		if len(c.groups) == GroupsMax || c.bytes+size > GroupBytesMax {
			return ErrTooManyGroups
		}
		c.bytes += size
		group = &Group{Values: values}
		c.groups[string(key)] = group
	}
	group.Count += n
	return nil
}

// Groups returns the groups with rows, in order of their values.
func (c *Counts) Groups() []Group {
	groups := make([]Group, 0, len(c.groups))
	for _, group := range c.groups {
		if group.Count > 0 {
			groups = append(groups, *group)
		}
	}
	slices.SortFunc(groups, func(a, b Group) int { return slices.Compare(a.Values, b.Values) })
	return groups
}

// NeedOnlyFacets reports whether the facet of a row says to which group it belongs.
func (c *Counts) NeedOnlyFacets() bool {
	return !slices.ContainsFunc(c.by, func(g Grouping) bool { return g.Dimension > DimensionVersion })
}
