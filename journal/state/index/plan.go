package index

import "slices"

// condition is a part of a query that lists answer.
type condition struct {
	terms []Term   // the instances in any of them
	rank  Interval // in the order by rank; unset: all of them
}

// conditions returns the parts of a query that lists answer.
func (q *Query) conditions() (all []condition) {
	add := func(rank Interval, terms ...Term) { all = append(all, condition{terms, rank}) }
	for key, value := range q.Tags {
		add(Interval{}, newTerm(termTag, key, value))
	}
	for name, text := range q.Attributes {
		add(Interval{}, newTerm(termAttribute, name, text))
	}
	if q.ParentID != "" {
		add(Interval{}, newTerm(termParent, q.ParentID))
	}
	if q.ErrorCode != "" {
		add(Interval{}, newTerm(termError, q.ErrorCode))
	}
	if q.Waiting != nil {
		add(q.Waiting.Since, q.Waiting.terms()...)
	}
	if q.Has == ByNextTimer {
		add(Interval{}, newTerm(termWaiting, string([]byte{byte(Timer)})))
	}
	if q.Failing != nil {
		attempts := Interval{}
		if q.Failing.Attempts > 1 {
			attempts.From = int64(q.Failing.Attempts)
		}
		if q.Failing.ErrorCode != "" {
			add(attempts, newTerm(termFailingCode, q.Failing.ErrorCode))
		} else {
			add(attempts, newTerm(termFailing))
		}
	}
	return all
}

func (w *Waiting) terms() (terms []Term) {
	for _, kind := range []Kind{Activity, Timer, Event, Child} {
		text := string([]byte{byte(kind)})
		switch {
		case w.Kind != 0 && w.Kind != kind:
		case w.Name == "":
			terms = append(terms, newTerm(termWaiting, text))
		case kind != Timer:
			terms = append(terms, newTerm(termWaitingName, text, w.Name))
		}
	}
	return terms
}

// Plan says how a query is answered.
type Plan struct {
	// Driver holds the lists whose intersection, in the order of the query, has all results.
	Driver Scan
	// IsExact reports whether nearly all that the driver yields is selected.
	IsExact bool
	// Candidates are other scans, each of which has all results, in another order.
	Candidates []Scan
	lists      []Term // each has all results
}

// A search uses few of many lists: reading an instance costs less than looking it up in more of
// them.
const (
	driversMax = 4 // that a Walk intersects: it may have to look into each in each facet
	listsMax   = 8
)

// Iterators returns how many iterators a search needs at once: for each list that has all results,
// and for that of all instances or a scan.
func (p *Plan) Iterators() int { return len(p.lists) + 1 }

// Other returns the lists that have all results, besides those of a scan.
func (p *Plan) Other(than *Scan) (other []Term) {
	for _, t := range p.lists {
		if !slices.Contains(than.Terms, t) {
			other = append(other, t)
		}
	}
	return other
}

// NewPlan returns the plan of a query.
func NewPlan(q *Query) *Plan {
	order, conditions := q.Order.stored(), q.conditions()
	updated := q.Updated.and(q.Ended)
	p := &Plan{IsExact: true, Driver: Scan{order: order}}
	for _, c := range conditions {
		drives := len(c.terms) == 1 && c.terms[0].hasOrder(order) && len(p.Driver.Terms) < driversMax
		if drives {
			p.Driver.Terms = append(p.Driver.Terms, c.terms[0])
		}
		if drives || len(c.terms) == 1 && len(p.lists)-len(p.Driver.Terms) < listsMax-driversMax {
			p.lists = append(p.lists, c.terms[0])
		}
		if !drives || c.rank.IsSet() {
			p.IsExact = false
		}
		scan := Scan{Terms: c.terms, order: ByID, idPrefix: q.IDPrefix}
		if c.rank.IsSet() {
			scan = Scan{Terms: c.terms, order: byRank, in: c.rank}
		}
		p.Candidates = append(p.Candidates, scan)
	}
	if len(p.Driver.Terms) == 0 {
		p.Driver.Terms = []Term{""}
	}
	add := func(order Order, in Interval) {
		if in.IsSet() || order == ByID && q.IDPrefix != "" {
			p.Candidates = append(p.Candidates, Scan{Terms: []Term{narrowest(conditions, order)}, order: order, in: in, idPrefix: q.IDPrefix})
			p.IsExact = p.IsExact && order == p.Driver.order
		}
	}
	add(ByCreated, q.Created)
	add(ByUpdated, updated)
	add(ByID, Interval{})
	switch order {
	case ByID:
		p.Driver.idPrefix = q.IDPrefix
	case ByCreated:
		p.Driver.in = q.Created
	case ByUpdated:
		p.Driver.in = updated
	}
	// Parts of lists are shorter than whole lists.
	slices.SortStableFunc(p.Candidates, func(a, b Scan) int {
		switch whole := a.order == ByID; {
		case whole == (b.order == ByID):
			return 0
		case whole:
			return 1
		}
		return -1
	})
	return p
}

// narrowest returns a list that has all results and is stored in an order.
func narrowest(conditions []condition, o Order) Term {
	for _, c := range conditions {
		if len(c.terms) == 1 && c.terms[0].hasOrder(o) {
			return c.terms[0]
		}
	}
	return ""
}

// and returns the times that are in both intervals.
func (i Interval) and(other Interval) Interval {
	if other.From > i.From || i.From == 0 && other.From != 0 {
		i.From = other.From
	}
	if other.Before != 0 && (i.Before == 0 || other.Before < i.Before) {
		i.Before = other.Before
	}
	return i
}

// HasLists reports whether the query has conditions on other fields than state, name and version.
func (q *Query) HasLists() bool {
	return len(q.Tags) > 0 || len(q.Attributes) > 0 || q.ParentID != "" || q.ErrorCode != "" || q.Waiting != nil || q.Failing != nil ||
		q.IDPrefix != "" || q.Created.IsSet() || q.Updated.IsSet() || q.Ended.IsSet() || q.RequiresTimer()
}
