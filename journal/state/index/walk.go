package index

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
)

// Iterator visits the keys of a store. The methods that move it report whether it is at a key;
// after an error it is at none.
type Iterator interface {
	SeekGE(key []byte) bool
	SeekLT(key []byte) bool
	Next() bool
	Prev() bool
	// Key and Value return the current key and value, valid until the iterator moves.
	Key() []byte
	Value() []byte
}

// The costs of moving an iterator, and of reading an instance. A unit takes about 0.25 µs.
const (
	stepCost = 1
	seekCost = 16
	ReadCost = 64
)

// A Budget is how much a search may still do, in units. It may be overspent.
type Budget int

// Spend takes units off the budget.
func (b *Budget) Spend(units int) { *b -= Budget(units) }

// IsSpent reports whether nothing is left.
func (b *Budget) IsSpent() bool { return *b <= 0 }

// stepsMin is what a Walk does at least for each of its lists after it has examined a place in each
// facet, whatever its budget, so that it advances. It does also at least half of what these places
// cost.
const stepsMin = 64

// checkUnits is after how many units the context is checked.
const checkUnits = 1 << 10

// fillCostMax bounds the cost of reading ahead once in a facet; one place is read at any cost.
const fillCostMax = 128

// firstPlaces is about how many places NewWalk reads, divided among the facets, at least one in
// each.
const firstPlaces = 32

// Walk yields the places that are in each of some lists, in the order of a query.
//
// It examines a place in each facet first. Then it spends its budget in the facet that is behind
// all others: only there it can find the next place.
type Walk struct {
	ctx      context.Context
	query    *Query
	order    Order // as stored
	lists    []walkedList
	streams  streamHeap
	budget   *Budget
	position []byte  // scratch
	previous []byte  // scratch
	paused   *Cursor // set at the end

	unchecked int // units spent since the context was last checked
}

type walkedList struct {
	prefix []byte
	iter   Iterator
	key    []byte // scratch
}

// stream is the part of a Walk in one facet.
type stream struct {
	facet        uint32
	lower, upper []byte   // the suffixes that remain to be read: at least lower, below upper
	buffer       []Cursor // read already
	size         int      // how many to read next
	allowance    int      // what to spend on them at most, besides one examined place
	paused       *Cursor  // the place up to which it was read when this was spent; nil if it was not
	ended        bool
}

// place returns the next place, or that before which there is none.
func (s *stream) place() Cursor {
	if len(s.buffer) > 0 {
		return s.buffer[0]
	}
	return *s.paused
}

// isEmpty reports whether no place follows.
func (s *stream) isEmpty() bool { return len(s.buffer) == 0 && s.paused == nil }

// NewWalk returns a walk over the driver of a plan in some facets, whose numbers must ascend. open
// returns another iterator over the index for each list. The work is bounded by the budget, but for
// one place in each facet, and ends with the context.
func NewWalk(ctx context.Context, q *Query, driver Scan, facets []uint32, after *Cursor, budget *Budget, open func() Iterator) *Walk {
	w := &Walk{ctx: ctx, query: q, order: driver.order, budget: budget}
	for _, t := range driver.Terms {
		w.lists = append(w.lists, walkedList{prefix: appendPrefix(nil, t, driver.order), iter: open()})
	}
	w.streams.walk = w
	before := *budget
	for facet := range w.presentFacets(facets) {
		if w.isCanceled() {
			break
		}
		s := &stream{facet: facet, size: max(1, firstPlaces/len(facets)), allowance: fillCostMax * len(w.lists)}
		s.lower, s.upper = bounds(driver.order, facet, driver.in, driver.idPrefix)
		if after != nil {
			s.skipTo(q, driver.order, facet, *after)
		}
		if w.fill(s); !s.isEmpty() {
			w.streams.all = append(w.streams.all, s)
		}
	}
	*budget = max(*budget, Budget(stepsMin*len(w.lists)), (before-*budget)/2)
	heap.Init(&w.streams)
	return w
}

// skipTo removes what is not after a place.
func (s *stream) skipTo(q *Query, o Order, facet uint32, after Cursor) {
	at := appendSuffix(nil, o, facet, after.Key, after.ID)
	if q.Descending {
		if bytes.Compare(at, s.upper) < 0 {
			s.upper = at
		}
	} else if at = append(at, 0); bytes.Compare(at, s.lower) > 0 {
		s.lower = at
	}
}

// presentFacets yields those of the facets that are in the first list. A single facet is yielded
// without a look, which saves a seek.
func (w *Walk) presentFacets(facets []uint32) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		if len(facets) == 1 {
			yield(facets[0])
			return
		}
		eachPresentFacet(&w.lists[0], facets, func() { w.budget.Spend(seekCost) }, yield)
	}
}

// eachPresentFacet visits those of the facets that are in a list, with one seek each.
func eachPresentFacet(l *walkedList, facets []uint32, onSeek func(), visit func(uint32) bool) {
	for len(facets) > 0 {
		onSeek()
		l.key = binary.BigEndian.AppendUint32(append(l.key[:0], l.prefix...), facets[0])
		if !l.iter.SeekGE(l.key) || !bytes.HasPrefix(l.iter.Key(), l.prefix) {
			return
		}
		suffix := l.iter.Key()[len(l.prefix):]
		if len(suffix) < facetBytes {
			return
		}
		present := binary.BigEndian.Uint32(suffix)
		for len(facets) > 0 && facets[0] < present {
			facets = facets[1:]
		}
		if len(facets) > 0 && facets[0] == present {
			if !visit(present) {
				return
			}
			facets = facets[1:]
		}
	}
}

// Next returns the next place and its facet, false at the end or after the budget is spent.
func (w *Walk) Next() (at Cursor, facet uint32, ok bool) {
	for len(w.streams.all) > 0 {
		s := w.streams.all[0]
		found := len(s.buffer) > 0
		if found {
			at, facet = s.buffer[0], s.facet
			s.buffer = s.buffer[1:]
		} else if w.budget.IsSpent() {
			w.paused = s.paused
			return at, 0, false
		}
		if !found || s.isEmpty() && !s.ended {
			if w.isCanceled() {
				return at, 0, false
			}
			w.fill(s)
		}
		if s.isEmpty() {
			heap.Pop(&w.streams)
		} else {
			heap.Fix(&w.streams, 0)
		}
		if found {
			return at, facet, true
		}
	}
	return at, 0, false
}

// Paused returns the place up to which everything was yielded when the budget was spent; nil if it
// was not.
func (w *Walk) Paused() *Cursor { return w.paused }

// isCanceled reports whether the context has ended, about every checkUnits.
func (w *Walk) isCanceled() bool {
	if w.unchecked < checkUnits {
		return false
	}
	w.unchecked = 0
	return w.ctx.Err() != nil
}

// fill reads the next places of a stream.
func (w *Walk) fill(s *stream) {
	s.paused = nil
	spent := w.intersect(s, min(int(*w.budget), s.allowance))
	w.budget.Spend(spent)
	w.unchecked += spent
	s.allowance *= 2
	// Few of the next places may be needed. They are read ahead only if that is cheap.
	each := max(spent/max(len(s.buffer), 1), 1)
	s.size = max(min(max(2*s.size, 4), 256, fillCostMax/each), 1)
}

// intersect fills the buffer of a stream with places that are in all lists, and returns the cost.
// It seeks each list to the place that the others are at, until all agree.
func (w *Walk) intersect(s *stream, budget int) (cost int) {
	target := w.position[:0]
	examined := w.previous[:0] // everything up to it was read, and up to target once all agree
	agreed, first := 0, true
	for i := 0; ; i = (i + 1) % len(w.lists) {
		l := &w.lists[i]
		if agreed == len(w.lists) && cost >= budget {
			w.pause(s, target)
			return cost
		}
		if cost >= budget && len(examined) > 0 {
			w.pause(s, examined)
			return cost
		}
		found := false
		if first {
			found = w.seekBound(l, s)
			cost += seekCost
			first = false
		} else if agreed == len(w.lists) {
			agreed, found = 0, w.step(l)
			cost += stepCost
		} else {
			found = w.seek(l, target)
			cost += seekCost
		}
		suffix, inside := l.suffix(found)
		if !inside || bytes.Compare(suffix, s.lower) < 0 || bytes.Compare(suffix, s.upper) >= 0 {
			s.ended = true
			return cost
		}
		if agreed > 0 && bytes.Equal(suffix, target) {
			agreed++
		} else {
			examined, target = target, append(examined[:0], suffix...)
			w.previous, w.position, agreed = examined, target, 1
		}
		if agreed < len(w.lists) {
			continue
		}
		at, ok := parseSuffix(suffix, w.order)
		if !ok {
			s.ended = true
			return cost
		}
		if f := factsOf(w.order, at.Key, l.iter.Value()); w.query.mayMatch(&f) {
			s.buffer = append(s.buffer, at)
		}
		if len(s.buffer) == s.size {
			s.continueAfter(target, w.query.Descending)
			return cost
		}
		i-- // the list that is at the place moves on
	}
}

// pause records that a stream is read only up to a place.
func (w *Walk) pause(s *stream, suffix []byte) {
	at, ok := parseSuffix(suffix, w.order)
	if !ok {
		s.ended = true
		return
	}
	s.paused = &at
	s.continueAfter(suffix, w.query.Descending)
}

// continueAfter removes what was read.
func (s *stream) continueAfter(suffix []byte, descending bool) {
	if descending {
		s.upper = bytes.Clone(suffix)
	} else {
		s.lower = append(bytes.Clone(suffix), 0)
	}
}

func (l *walkedList) suffix(found bool) ([]byte, bool) {
	if !found || !bytes.HasPrefix(l.iter.Key(), l.prefix) {
		return nil, false
	}
	return l.iter.Key()[len(l.prefix):], true
}

// seekBound moves to the first place of a stream.
func (w *Walk) seekBound(l *walkedList, s *stream) bool {
	if w.query.Descending {
		l.key = append(append(l.key[:0], l.prefix...), s.upper...)
		return l.iter.SeekLT(l.key)
	}
	l.key = append(append(l.key[:0], l.prefix...), s.lower...)
	return l.iter.SeekGE(l.key)
}

// seek moves to a place, or to the next one.
func (w *Walk) seek(l *walkedList, suffix []byte) bool {
	l.key = append(append(l.key[:0], l.prefix...), suffix...)
	if w.query.Descending {
		l.key = append(l.key, 0)
		return l.iter.SeekLT(l.key)
	}
	return l.iter.SeekGE(l.key)
}

func (w *Walk) step(l *walkedList) bool {
	if w.query.Descending {
		return l.iter.Prev()
	}
	return l.iter.Next()
}

// streamHeap has the stream with the next place on top.
type streamHeap struct {
	walk *Walk
	all  []*stream
}

// Len implements heap.Interface.
func (h *streamHeap) Len() int { return len(h.all) }

// Less implements heap.Interface.
func (h *streamHeap) Less(i, j int) bool {
	return h.walk.query.Compare(h.all[i].place(), h.all[j].place()) < 0
}

// Swap implements heap.Interface.
func (h *streamHeap) Swap(i, j int) { h.all[i], h.all[j] = h.all[j], h.all[i] }

// Push implements heap.Interface.
func (h *streamHeap) Push(s any) { h.all = append(h.all, s.(*stream)) }

// Pop implements heap.Interface.
func (h *streamHeap) Pop() any {
	last := h.all[len(h.all)-1]
	h.all = h.all[:len(h.all)-1]
	return last
}
