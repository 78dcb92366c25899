package index

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
)

// Scan is a part of some lists in a stored order.
type Scan struct {
	Terms    []Term // the union of these lists
	order    Order
	in       Interval
	idPrefix string
}

// IsRange reports whether the scan has only a part of its lists, by time or number.
func (s *Scan) IsRange() bool { return s.order != ByID }

// Candidates are the instances in a scan.
type Candidates struct {
	// First has those whose place is known from their entries.
	First *First
	// Others holds the IDs of all others, possibly twice.
	Others []string
}

// Collect adds the instances in a scan, of the facets in ascending order of their numbers, to
// candidates. It leaves out what entries show that the query does not select. It stops and returns
// false after limit entries, or when the budget is spent or the context has ended.
func (s *Scan) Collect(ctx context.Context, q *Query, iter Iterator, facets []uint32, limit int, budget *Budget, to *Candidates) (complete bool) {
	c := collector{Scan: s, ctx: ctx, query: q, limit: limit, budget: budget, to: to}
	for _, t := range s.Terms {
		if !c.collect(&walkedList{prefix: appendPrefix(nil, t, s.order), iter: iter}, facets) {
			return false
		}
	}
	return true
}

// collector collects candidates.
type collector struct {
	*Scan
	ctx          context.Context
	query        *Query
	limit        int
	budget       *Budget
	to           *Candidates
	lower, upper []byte // of the present facet
}

// collect collects the candidates in one list. It seeks to a facet only if it is not at its first
// entry already.
func (c *collector) collect(l *walkedList, facets []uint32) (complete bool) {
	for len(facets) > 0 {
		if c.budget.IsSpent() || c.ctx.Err() != nil {
			return false
		}
		c.lower, c.upper = bounds(c.order, facets[0], c.in, c.idPrefix)
		l.key = append(append(l.key[:0], l.prefix...), c.lower...)
		c.budget.Spend(seekCost)
		suffix, inside := l.suffix(l.iter.SeekGE(l.key))
		for inside = inside && len(suffix) >= facetBytes; inside; {
			present := binary.BigEndian.Uint32(suffix)
			if facets[0] < present {
				for len(facets) > 0 && facets[0] < present {
					facets = facets[1:]
				}
				if len(facets) == 0 {
					return true
				}
				c.lower, c.upper = bounds(c.order, facets[0], c.in, c.idPrefix)
			}
			if bytes.Compare(suffix, c.lower) < 0 {
				break
			}
			if bytes.Compare(suffix, c.upper) >= 0 {
				facets = facets[1:]
				break
			}
			if c.limit--; c.limit < 0 || c.budget.IsSpent() || !c.add(suffix, l.iter.Value(), present) {
				return false
			}
			c.budget.Spend(stepCost)
			suffix, inside = l.suffix(l.iter.Next())
			inside = inside && len(suffix) >= facetBytes
		}
		if !inside {
			return true
		}
	}
	return true
}

// add adds what the iterator is at; false if it is malformed.
func (c *collector) add(suffix, value []byte, facet uint32) bool {
	rank, id, ok := splitSuffix(suffix, c.order)
	if !ok {
		return false
	}
	f := factsOf(c.order, rank, value)
	if !c.query.mayMatch(&f) {
		return true
	}
	if at, known := c.query.place(c.order, rank, &f, string(id)); known {
		c.to.First.AddIn(at, facet)
	} else {
		c.to.Others = append(c.to.Others, string(id))
	}
	return true
}

// Present returns those of the facets that have an instance in a range of a single list, and those
// that were not examined when the budget was spent. For other scans it returns all.
func (s *Scan) Present(iter Iterator, facets []uint32, budget *Budget) (present []uint32) {
	if len(s.Terms) != 1 || !s.IsRange() {
		return facets
	}
	l := &walkedList{prefix: appendPrefix(nil, s.Terms[0], s.order), iter: iter}
	for i, facet := range facets {
		if budget.IsSpent() {
			return append(present, facets[i:]...)
		}
		lower, upper := bounds(s.order, facet, s.in, "")
		l.key = append(append(l.key[:0], l.prefix...), lower...)
		budget.Spend(seekCost)
		if suffix, found := l.suffix(iter.SeekGE(l.key)); found && bytes.Compare(suffix, upper) < 0 {
			present = append(present, facet)
		}
	}
	return present
}

// A FacetCount is how many instances a facet has.
type FacetCount struct {
	Facet uint32 // its number
	Count uint64
}

// Estimate returns about how many instances a scan of the list of all instances has; false if it
// cannot say. It examines some facets, as if their times were spread evenly, and assumes that the
// others are like the median of these. All facets have total instances.
func (s *Scan) Estimate(iter Iterator, some []FacetCount, total uint64, budget *Budget) (n uint64, ok bool) {
	if len(s.Terms) != 1 || s.Terms[0] != "" || !s.IsRange() {
		return 0, false
	}
	var shares []float64
	rest, selected := float64(total), 0.0
	for _, f := range some {
		budget.Spend(2 * seekCost)
		if share, ok := s.share(iter, f.Facet); ok {
			shares = append(shares, share)
			rest, selected = rest-float64(f.Count), selected+share*float64(f.Count)
		}
	}
	if len(shares) == 0 {
		return 0, false
	}
	slices.Sort(shares)
	return uint64(selected + max(rest, 0)*shares[len(shares)/2]), true
}

// share returns which part of a facet is in the scan, if times are spread evenly; false if the
// facet is empty.
func (s *Scan) share(iter Iterator, facet uint32) (share float64, ok bool) {
	l := &walkedList{prefix: appendPrefix(nil, "", s.order), iter: iter}
	lower, upper := bounds(s.order, facet, Interval{}, "")
	suffix, found := l.suffix(iter.SeekGE(append(bytes.Clone(l.prefix), lower...)))
	if !found || bytes.Compare(suffix, upper) >= 0 {
		return 0, false
	}
	first, _, firstOK := splitSuffix(suffix, s.order)
	suffix, found = l.suffix(iter.SeekLT(append(bytes.Clone(l.prefix), upper...)))
	last, _, lastOK := splitSuffix(suffix, s.order)
	if !found || !firstOK || !lastOK {
		return 0, false
	}
	from, before := max(s.in.From, first), last+1
	if s.in.Before != 0 {
		before = min(s.in.Before, before)
	}
	return max(float64(before)-float64(from), 0) / (float64(last) + 1 - float64(first)), true
}

// Membership says whether instances are in a list.
type Membership struct{ list walkedList }

// NewMembership returns the membership in the list of a Term.
func NewMembership(t Term, iter Iterator) *Membership {
	return &Membership{walkedList{prefix: appendPrefix(nil, t, ByID), iter: iter}}
}

// Has reports whether the instance with an ID is in the list, with a facet.
func (m *Membership) Has(facet uint32, id string, budget *Budget) bool {
	l := &m.list
	l.key = appendSuffix(append(l.key[:0], l.prefix...), ByID, facet, 0, id)
	budget.Spend(seekCost)
	return l.iter.SeekGE(l.key) && bytes.Equal(l.iter.Key(), l.key)
}
