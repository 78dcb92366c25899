package state

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// QueryPage is a page of the result of a query.
type QueryPage struct {
	index.Page
	// Instances holds the index entries of the rows.
	Instances []*journalpb.Instance
	// Bytes is about how many bytes the rows take.
	Bytes int
}

// Query returns up to limit instances, at least one, that the query selects, in its order, from the
// beginning or after a place. A page may have fewer rows than the limit, or even none, and still
// report that there may be more: the work for one page is bounded, and it ends with the row that
// brings it to index.PageBytesMax. An instance that exists during the whole call and matches
// throughout is returned once, if its place is in the page. Each row is current when it is read: a
// page is no snapshot. While the index of an older store is being built,
// each page examines every instance. The caller owns the page. The error is ctx's or a *StoreError.
func (re *reads) Query(ctx context.Context, q *index.Query, after *index.Cursor, limit int) (*QueryPage, error) {
	s := &search{reads: re, ctx: ctx, query: q, after: after, limit: max(limit, 1)}
	if err := s.run(); err != nil {
		return nil, fmt.Errorf("query instances: %w", err)
	}
	return s.page(), nil
}

// CountBy counts the instances that a query selects, grouped by some dimensions; without one it
// returns at most one group. Groups without instances are absent; the others are in order of their
// values. If the dimensions and conditions are only state, name and version, the time is in
// proportion to the number of their combinations. All others cost time in proportion to the
// instances that the narrowest condition selects. The error is ctx's, a *StoreError, or wraps
// index.ErrTooManyGroups.
func (re *reads) CountBy(ctx context.Context, q *index.Query, by ...index.Grouping) ([]index.Group, error) {
	counts := index.NewCounts(by)
	s := &search{reads: re, ctx: ctx, query: q, rowsOnly: true, limit: re.options.countPageRows}
	counted, err := false, error(nil)
	if counts.NeedOnlyFacets() && !q.HasLists() {
		counted, err = s.countFacets(counts)
	}
	if !counted && err == nil {
		err = s.eachSelected(func(row *index.Row) error { return counts.Add(row, 1) })
	}
	if err != nil {
		return nil, fmt.Errorf("count instances: %w", err)
	}
	return counts.Groups(), nil
}

// countFacets counts by facets alone; false if not all instances are counted yet.
func (s *search) countFacets(counts *index.Counts) (counted bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.store != nil && !s.indexState.complete {
		return false, nil
	}
	for _, f := range s.reads.facets.all {
		if f.count > 0 && s.query.SelectsFacet(f.Facet) {
			if err := counts.Add(&index.Row{State: f.State, Name: f.Name, Version: f.Version}, f.count); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// eachSelected visits the selected rows: by the index if it is complete and leaves out most of the
// others, else in one pass over all. An error of visit ends it.
func (s *search) eachSelected(visit func(*index.Row) error) error {
	if !s.IsIndexed() || !s.query.HasLists() && s.selectsMany() {
		return s.eachRow(visit)
	}
	// By ID, because an instance may change its place in another order, and would be counted twice.
	byID := *s.query
	if requires := []index.Order{index.ByEnded, index.ByNextTimer}; slices.Contains(requires, byID.Order) {
		if slices.Contains(requires, byID.Has) && byID.Has != byID.Order {
			return nil // an instance that has ended has no timer
		}
		byID.Has = byID.Order
	}
	byID.Order = index.ByID
	var after *index.Cursor
	for {
		part := &search{reads: s.reads, ctx: s.ctx, query: &byID, after: after, limit: s.limit, rowsOnly: true}
		if err := part.run(); err != nil {
			return err
		}
		page := part.page()
		for _, row := range page.Rows {
			if err := visit(row); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		after = &page.Next
	}
}

// IsIndexed reports whether there is a complete index. Without it each page of a query, and each
// count, examines every instance.
func (re *reads) IsIndexed() bool {
	re.mu.RLock()
	defer re.mu.RUnlock()
	return re.store != nil && re.indexState.complete
}

// selectsMany reports whether the facets of the query have more than a fifth of all instances.
func (s *search) selectsMany() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var selected, all uint64
	for _, f := range s.reads.facets.all {
		all += f.count
		if s.query.SelectsFacet(f.Facet) {
			selected += f.count
		}
	}
	return 5*selected > all
}

// eachRow examines every instance. An error of visit ends it.
func (s *search) eachRow(visit func(*index.Row) error) error {
	var failed error
	for c := range s.members(allInstances, &failed) {
		err := s.ctx.Err()
		if err != nil {
			return err
		}
		if _, readErr := s.viewMember(&c, func(in *instance) {
			if row := in.selectedRow(s.query); row != nil {
				err = visit(row)
			}
		}); readErr != nil || err != nil {
			return cmp.Or(readErr, err)
		}
	}
	if failed == nil && s.store != nil {
		failed = s.store.Err()
	}
	return failed
}

// selectedRow returns the row of an instance; nil if the query does not select it.
func (in *instance) selectedRow(q *index.Query) *index.Row {
	if !in.maySelect(q) {
		return nil
	}
	if row := in.row(); q.Matches(row) {
		return row
	}
	return nil
}

// maySelect reports whether a query can select an instance, without building its row.
func (in *instance) maySelect(q *index.Query) bool {
	return in.fieldsMayMatch(q) && q.SelectsFacet(index.Facet{State: in.runState(), Name: in.name, Version: in.version})
}

// fieldsMayMatch is maySelect without the facet. The cheapest conditions come first.
func (in *instance) fieldsMayMatch(q *index.Query) bool {
	if in.execution == 0 || !q.Created.Contains(in.created) || !q.Updated.Contains(in.updated) ||
		q.Ended.IsSet() && (in.isRunning() || !q.Ended.Contains(in.updated)) || !strings.HasPrefix(in.id, q.IDPrefix) ||
		q.ParentID != "" && (in.parent == nil || in.parent.instance != q.ParentID) ||
		q.ErrorCode != "" && in.errorCode != q.ErrorCode ||
		(q.Waiting != nil || q.Failing != nil || q.RequiresTimer()) && len(in.open) == 0 ||
		q.Failing != nil && in.attempts == nil || len(q.Attributes) > 0 && len(q.Attributes) > len(in.attributes) {
		return false
	}
	for key, value := range q.Tags {
		if have, ok := in.tags[key]; !ok || have != value {
			return false
		}
	}
	return true
}

// search finds the rows of one page.
type search struct {
	*reads
	ctx      context.Context
	query    *index.Query
	after    *index.Cursor
	limit    int
	rowsOnly bool // leave out the index entries

	dirty            []dirtyFacet
	moves            uint64               // facetTable.moves when dirty was captured
	total            uint64               // instances in the facets that the query selects
	largest          []index.FacetCount   // of them
	facets           []uint32             // their numbers
	walking, reading index.Budget         // for entries, and for instances
	found            map[string]*foundRow // by ID
	foundBytes       int                  // of found, about; 0 if rowsOnly
	bound            *index.Cursor        // everything up to it is found; nil: everything
	costs            searchCosts
}

type foundRow struct {
	row     *index.Row
	bytes   int
	message *journalpb.Instance
	at      index.Cursor
}

// searchCosts bounds the search for one page. Budgets are in units of an index.Budget.
type searchCosts struct {
	walking     int // for entries
	walkingRest int // of walking, not for collecting candidates
	reading     int // for instances
	few         int // candidates that are a short list; those whose place is unknown are read and sorted
	listed      int // candidates of any other list that is tried
	listedByID  int // the same in the order by ID: a walk finds some sooner, since IDs are random
	spare       int // candidates besides the limit, because the query does not select them all
}

// pageCosts takes about 9 ms of processor time on an idle machine. What is spent on entries leaves
// enough to read instances, and both leave a page at least one place after the last: every page
// makes progress.
var pageCosts = searchCosts{
	walking: 24 << 10, walkingRest: 6 << 10, reading: 12 << 10,
	few: 200, listed: 17 << 10, listedByID: 14 << 10, spare: 1 << 10,
}

// countBudget replaces both budgets for the pages of a count.
const countBudget = 4 << 20

func (c *searchCosts) divideBy(n int) {
	for _, field := range []*int{&c.walking, &c.walkingRest, &c.reading, &c.few, &c.listed, &c.listedByID, &c.spare} {
		*field = max(*field/n, 1)
	}
}

func (s *search) run() error {
	s.found = make(map[string]*foundRow)
	if s.store == nil {
		return s.scanAll()
	}
	s.costs = pageCosts
	if s.rowsOnly {
		s.costs.walking, s.costs.reading = countBudget, countBudget
	}
	s.costs.divideBy(s.options.searchDivisor)
	s.walking, s.reading = index.Budget(s.costs.walking), index.Budget(s.costs.reading)
	plan, indexed := index.NewPlan(s.query), false
	var changed *index.First // what is not written
	err := s.store.view("query instances", 0, func(from store.Reader) (err error) {
		iters := &iterators{from: from}
		defer iters.close()
		indexed, err = s.capture(iters, plan.Iterators())
		if err != nil || !indexed {
			return err
		}
		if s.dirtyCount() > s.options.searchedMax {
			s.flushForSearches()
		}
		if changed = s.searchDirty(); s.ctx.Err() != nil {
			return nil // the context is no reason to fail the store
		}
		return s.searchStore(from, plan, iters)
	})
	if err != nil {
		return err
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if !indexed {
		return s.scanAll()
	}
	return s.addPlaces(changed)
}

// capture captures the facets that the query selects and what is dirty of them, and opens iterators
// at the same moment; false if the index is not complete. An instance that is clean at this moment
// has the same entries in all iterators, in one of these facets. All others are dirty: a write that
// is in progress concerns only instances of the flush in progress.
func (s *search) capture(iters *iterators, n int) (indexed bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.indexState.complete {
		return false, nil
	}
	for _, f := range s.reads.facets.all {
		if f.count == 0 && len(f.dirty)+len(f.flushing) == 0 || !s.query.SelectsFacet(f.Facet) {
			continue // what the store still has there is dirty now, in another facet
		}
		s.facets, s.total = append(s.facets, f.number), s.total+f.count
		if len(f.dirty)+len(f.flushing) > 0 {
			s.dirty = append(s.dirty, dirtyFacet{f, f.dirty, f.flushing})
		}
		s.addLargest(index.FacetCount{Facet: f.number, Count: f.count})
	}
	s.moves = s.reads.facets.moves
	return true, iters.open(n)
}

// addLargest keeps a facet if it is one of the largest.
func (s *search) addLargest(f index.FacetCount) {
	const most = 4
	switch n := len(s.largest); {
	case n < most:
		s.largest = append(s.largest, f)
	case f.Count > s.largest[n-1].Count:
		s.largest[n-1] = f
	default:
		return
	}
	slices.SortFunc(s.largest, func(a, b index.FacetCount) int { return cmp.Compare(b.Count, a.Count) })
}

// scanAll examines every instance.
func (s *search) scanAll() error {
	first := index.NewFirst(s.query, s.after, s.limit)
	if err := s.eachRow(func(row *index.Row) error {
		first.Add(s.query.CursorOf(row))
		return nil
	}); err != nil {
		return err
	}
	return s.addPlaces(first)
}

// addPlaces reads the instances at some places.
func (s *search) addPlaces(first *index.First) error {
	places, more := first.Places()
	if more {
		s.limitTo(places[len(places)-1])
	}
	s.foundBytes = 0 // of these
	ids := make([]string, len(places))
	for i, at := range places {
		ids[i] = at.ID
	}
	for at := 0; at < len(ids) && s.ctx.Err() == nil; {
		if s.bound != nil && s.query.Compare(places[at], *s.bound) > 0 {
			return nil
		}
		n, err := s.read(ids[at:min(len(ids), at+instancesPerRead)], s.addStored)
		if err != nil {
			return err
		}
		at += n
		if s.foundBytes >= s.options.pageBytesMax {
			s.limitTo(places[at-1])
			return nil
		}
	}
	return s.ctx.Err()
}

// addStored adds an instance that was not in memory, wherever it is now.
func (s *search) addStored(id string) error {
	_, err := s.lookup(id, func(in *instance) { s.add(in) })
	return err
}

// add adds an instance if the query selects it.
func (s *search) add(in *instance) *foundRow {
	row := in.selectedRow(s.query)
	if row == nil {
		return nil
	}
	f := &foundRow{row: row, at: s.query.CursorOf(row)}
	if !s.rowsOnly {
		f.message, f.bytes = in.message(), row.Bytes()+len(in.summary)
		s.foundBytes += f.bytes
	}
	s.found[row.ID] = f
	return f
}

// limitTo records that only what is up to a place is found.
func (s *search) limitTo(at index.Cursor) {
	if s.bound == nil || s.query.Compare(at, *s.bound) < 0 {
		s.bound = &at
	}
}

// page returns what is found.
func (s *search) page() *QueryPage {
	rows := slices.SortedFunc(maps.Values(s.found), func(a, b *foundRow) int { return s.query.Compare(a.at, b.at) })
	rows = slices.DeleteFunc(rows, func(f *foundRow) bool {
		return s.after != nil && s.query.Compare(f.at, *s.after) <= 0 || s.bound != nil && s.query.Compare(f.at, *s.bound) > 0
	})
	p := &QueryPage{}
	if len(rows) > s.limit {
		rows = rows[:s.limit]
		s.limitTo(rows[s.limit-1].at)
	}
	for i, f := range rows {
		if p.Bytes += f.bytes; p.Bytes >= s.options.pageBytesMax && i < len(rows)-1 {
			s.limitTo(f.at)
			rows = rows[:i+1]
			break
		}
	}
	for _, f := range rows {
		p.Rows = append(p.Rows, f.row)
		if !s.rowsOnly {
			p.Instances = append(p.Instances, f.message)
		}
	}
	if s.bound != nil {
		p.More, p.Next = true, *s.bound
	}
	return p
}

// dirtyFacet holds the instances of a facet that are not written yet.
type dirtyFacet struct {
	*facet
	dirty, flushing []index.Unwritten[*instance]
}

// searchDirty returns the first places of the instances that are not written yet. The context may
// end it early.
func (s *search) searchDirty() *index.First {
	first := index.NewFirst(s.query, s.after, s.limit)
	filter := index.NewUnwrittenFilter(s.query, first, s.moves)
	var moved []*instance // to another facet since the capture: its list there was captured without it
	for _, f := range s.dirty {
		visit := func(in *instance) {
			if in.facet == f.facet {
				in.addTo(first, s.query)
			} else if in.movedAt > s.moves {
				moved = append(moved, in)
			}
		}
		// An instance may be in both lists. A First ignores a place that it has.
		s.eachUnwritten(f.flushing, filter, visit)
		s.eachUnwritten(f.dirty, filter, visit)
	}
	for step := range slices.Chunk(moved, instancesPerLock) {
		s.visitLocked(step, func(in *instance) {
			if in.facet != nil && s.query.SelectsFacet(in.facet.Facet) {
				in.addTo(first, s.query)
			}
		})
	}
	return first
}

// dirtyCount returns how many instances were dirty at the capture.
func (s *search) dirtyCount() (n int) {
	for _, f := range s.dirty {
		n += len(f.dirty) + len(f.flushing)
	}
	return n
}

// eachUnwritten visits instances that pass a filter, a few under each lock, until the context ends.
func (s *search) eachUnwritten(all []index.Unwritten[*instance], filter *index.UnwrittenFilter, visit func(*instance)) {
	passed := make([]*instance, 0, min(len(all), instancesPerLock))
	for step := range slices.Chunk(all, 1<<10) {
		if s.ctx.Err() != nil {
			return
		}
		for i := range step {
			if !index.MayAdd(filter, &step[i]) {
				continue
			}
			if passed = append(passed, step[i].Instance); len(passed) == cap(passed) {
				s.visitLocked(passed, visit)
				passed = passed[:0]
			}
		}
	}
	s.visitLocked(passed, visit)
}

// visitLocked visits instances under the lock.
func (s *search) visitLocked(instances []*instance, visit func(*instance)) {
	if len(instances) == 0 {
		return
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, in := range instances {
		visit(in)
	}
}

// addTo gives a First the place of an instance if the query, which selects its facet, selects it.
func (in *instance) addTo(first *index.First, q *index.Query) {
	if !in.fieldsMayMatch(q) || !hasAttributes(in, q) || !hasWaits(in, q) {
		return
	}
	at := index.Cursor{ID: in.id}
	switch q.Order {
	case index.ByCreated:
		at.Key = in.created
	case index.ByUpdated, index.ByEnded:
		at.Key = in.updated
	case index.ByNextTimer:
		at.Key, _ = in.open.nextTimer()
	}
	first.Add(at)
}

// searchStore finds what the store has.
func (s *search) searchStore(from store.Reader, plan *index.Plan, iters *iterators) (err error) {
	var among *candidates
	if !plan.IsExact {
		among = s.candidates(plan, iters)
	}
	switch {
	case iters.err != nil:
	case among != nil && len(among.Others) <= s.costs.few:
		err = s.readCandidates(from, plan, iters, among)
	default:
		err = s.walk(from, plan, iters, among)
	}
	return cmp.Or(err, iters.err)
}

// candidates contain every result, except places after the last of the First if it has dropped
// some.
type candidates struct {
	index.Candidates
	scan *index.Scan
}

// candidates collects the candidates of the first scan that is short; nil if all are long. Then it
// leaves out the facets that have no instance in them.
func (s *search) candidates(plan *index.Plan, iters *iterators) *candidates {
	iter := iters.reuse()()
	rest := index.Budget(s.costs.walkingRest)
	collecting := s.walking - rest
	defer func() { s.walking = collecting + rest }()
	listed := s.costs.listed
	if s.query.Order == index.ByID {
		listed = s.costs.listedByID
	}
	for _, limit := range []int{s.costs.few, listed} {
		for i := range plan.Candidates {
			scan := &plan.Candidates[i]
			if limit > s.costs.few {
				if n, ok := scan.Estimate(iter, s.largest, s.total, &collecting); ok && n > uint64(limit) {
					continue
				}
			}
			c := &candidates{scan: scan}
			c.First = index.NewFirst(s.query, s.after, s.limit+s.costs.spare)
			if scan.Collect(s.ctx, s.query, iter, s.facets, limit, &collecting, &c.Candidates) {
				return c
			}
		}
	}
	for i := range plan.Candidates {
		s.facets = plan.Candidates[i].Present(iter, s.facets, &collecting)
	}
	return nil
}

// readCandidates reads candidates: all those whose places are unknown, and the others in order.
func (s *search) readCandidates(from store.Reader, plan *index.Plan, iters *iterators, c *candidates) error {
	slices.Sort(c.Others)
	for ids := slices.Compact(c.Others); len(ids) > 0 && s.ctx.Err() == nil; {
		n, err := s.read(ids[:min(len(ids), instancesPerRead)], s.storedIn(from))
		if err != nil {
			return err
		}
		ids = ids[n:]
	}
	s.reading = max(s.reading, index.Budget(s.costs.reading/2)) // for the others
	reader := placeReader{search: s, from: from, lists: s.memberships(plan.Other(c.scan), iters.reuse())}
	places, more := c.First.Places()
	for _, at := range places {
		if err := reader.add(at, c.First.Facet(at)); err != nil || reader.isDone {
			return err
		}
	}
	if err := reader.flush(); err != nil || reader.isDone {
		return err
	}
	if more {
		s.limitTo(places[len(places)-1])
	}
	return nil
}

// isSpent reports whether the search must read no more.
func (s *search) isSpent() bool { return s.reading.IsSpent() || s.foundBytes >= s.options.pageBytesMax }

// instancesPerRead is how many instances are looked up under one lock: more, and appends wait
// longer; fewer, and the search competes with every append for the lock.
const instancesPerRead = 32

// placeReader reads the instances at places of the store, in order, until the page is full or the
// budget is spent.
type placeReader struct {
	*search
	from    store.Reader
	lists   []*index.Membership // an instance that one of them lacks is not read
	next    []index.Cursor      // not read yet
	ids     []string            // of next
	inPlace int                 // instances that the query selects at their place
	isDone  bool
}

// add reads the instance at a place, now or later.
func (r *placeReader) add(at index.Cursor, facet uint32) error {
	if !slices.ContainsFunc(r.lists, func(l *index.Membership) bool { return !l.Has(facet, at.ID, &r.reading) }) {
		r.next, r.ids = append(r.next, at), append(r.ids, at.ID)
	}
	if !r.isSpent() && len(r.next) < min(instancesPerRead, r.limit-r.inPlace) {
		return nil
	}
	err := r.flush()
	if err == nil && !r.isDone && r.isSpent() {
		r.stopAt(at)
	}
	return err
}

// flush reads what is not read yet.
func (r *placeReader) flush() error {
	n, err := r.read(r.ids, r.storedIn(r.from))
	places := r.next[:n]
	r.next, r.ids = r.next[:0], r.ids[:0]
	if err != nil {
		return err
	}
	for _, at := range places {
		if f := r.found[at.ID]; f != nil && f.at == at {
			r.inPlace++
		}
		if r.inPlace == r.limit {
			r.stopAt(at)
			return nil
		}
	}
	if len(places) > 0 && r.isSpent() {
		r.stopAt(places[len(places)-1])
	}
	return nil
}

func (r *placeReader) stopAt(at index.Cursor) {
	r.limitTo(at)
	r.isDone = true
}

func (s *search) memberships(terms []index.Term, next func() index.Iterator) (lists []*index.Membership) {
	for _, t := range terms {
		lists = append(lists, index.NewMembership(t, next()))
	}
	return lists
}

// walk reads the instances that the driver of the plan yields. If among is not nil, it skips those
// that are not among these candidates.
func (s *search) walk(from store.Reader, plan *index.Plan, iters *iterators, among *candidates) error {
	ids, last := among.ids()
	next := iters.reuse()
	w := index.NewWalk(s.ctx, s.query, plan.Driver, s.facets, s.after, &s.walking, next)
	reader := placeReader{search: s, from: from, lists: s.memberships(plan.Other(&plan.Driver), next)}
	for {
		at, facet, ok := w.Next()
		if !ok || last != nil && s.query.Compare(at, *last) > 0 {
			break
		}
		if _, candidate := ids[at.ID]; ids != nil && !candidate {
			continue
		}
		if err := reader.add(at, facet); err != nil || reader.isDone {
			return err
		}
	}
	if err := reader.flush(); err != nil || reader.isDone {
		return err
	}
	if last != nil {
		s.limitTo(*last)
	}
	if paused := w.Paused(); paused != nil {
		s.limitTo(*paused)
	}
	return nil
}

// ids returns the IDs of candidates, and the place after which some were dropped; nil if none were.
func (c *candidates) ids() (ids map[string]struct{}, last *index.Cursor) {
	if c == nil {
		return nil, nil
	}
	places, more := c.First.Places()
	ids = make(map[string]struct{}, len(places)+len(c.Others))
	for _, at := range places {
		ids[at.ID] = struct{}{}
	}
	for _, id := range c.Others {
		ids[id] = struct{}{}
	}
	if more {
		last = &places[len(places)-1]
	}
	return ids, last
}

// read adds the current states of the instances that the query selects. It reads none of them
// twice, and stored reads those that are not in memory. It returns how many of the IDs, from the
// first on, it has read: fewer than all if the page has enough bytes, but at least one, or if the
// context has ended.
func (s *search) read(ids []string, stored func(id string) error) (n int, err error) {
	if s.ctx.Err() != nil {
		s.reading = 0 // run returns the error
		return 0, nil
	}
	rest, n := s.readInMemory(ids)
	for _, i := range rest {
		if i > 0 && s.foundBytes >= s.options.pageBytesMax {
			return i, nil
		}
		if err := stored(ids[i]); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// readInMemory adds instances that are in memory. It returns which to read from the store, and how
// many it has looked up.
func (s *search) readInMemory(ids []string) (stored []int, n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i, id := range ids {
		if i > 0 && s.foundBytes >= s.options.pageBytesMax {
			return stored, i
		}
		if s.found[id] != nil {
			continue
		}
		s.reading.Spend(index.ReadCost)
		if in, inMemory := s.instances[id]; inMemory {
			s.add(in)
		} else if _, purged := s.purged[id]; !purged {
			stored = append(stored, i)
		}
	}
	return stored, len(ids)
}

// storedIn returns a function that adds an instance as the store has it, if the query selects it.
func (s *search) storedIn(from store.Reader) func(id string) error {
	return func(id string) error {
		record, err := getRecord(from, idKey(nil, keyInstance, id))
		if record == nil || err != nil || !headerMaySelect(record, s.query) {
			return err
		}
		in, err := parseStoredHeader(from, id, record)
		if in != nil && err == nil {
			s.add(in)
		}
		return err
	}
}

// headerMaySelect reports whether a query can select an instance by the times in its header,
// without decoding the rest.
func headerMaySelect(record []byte, q *index.Query) bool {
	if !q.Created.IsSet() && !q.Updated.IsSet() && !q.Ended.IsSet() {
		return true
	}
	var created, updated int64
	eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		if wire == protowire.VarintType && (number == fieldHeaderCreated || number == fieldHeaderUpdated) {
			v, _ := protowire.ConsumeVarint(value)
			if number == fieldHeaderCreated {
				created = int64(v)
			} else {
				updated = int64(v)
			}
		}
	})
	return q.Created.Contains(created) && q.Updated.Contains(updated) && (!q.Ended.IsSet() || q.Ended.Contains(updated))
}

// iterators are the open iterators of a search.
type iterators struct {
	from store.Reader
	all  []*verifiedIterator
	err  error
}

// open opens iterators over the whole index that verify every key.
func (i *iterators) open(n int) error {
	for range n {
		iter, err := i.from.NewIter([]byte{index.KindByID}, endOfKind(index.KindList))
		if err != nil {
			return err
		}
		i.all = append(i.all, &verifiedIterator{Iterator: iter, owner: i})
	}
	return nil
}

// reuse returns a function that returns the iterators in turn. What has used them before must not
// use them any more.
func (i *iterators) reuse() (next func() index.Iterator) {
	used := 0
	return func() index.Iterator {
		used++
		return i.all[used-1]
	}
}

func (i *iterators) close() {
	for _, iter := range i.all {
		_ = iter.Close() // its error was returned before
	}
}

// verifiedIterator is at no key after an error.
type verifiedIterator struct {
	store.Iterator
	owner  *iterators
	record []byte
}

// Value implements index.Iterator.
func (v *verifiedIterator) Value() []byte { return v.record }

func (v *verifiedIterator) SeekGE(key []byte) bool { return v.verify(v.Iterator.SeekGE(key)) }
func (v *verifiedIterator) SeekLT(key []byte) bool { return v.verify(v.Iterator.SeekLT(key)) }
func (v *verifiedIterator) Next() bool             { return v.verify(v.Iterator.Next()) }
func (v *verifiedIterator) Prev() bool             { return v.verify(v.Iterator.Prev()) }

func (v *verifiedIterator) verify(valid bool) bool {
	if v.owner.err != nil {
		return false
	}
	if !valid {
		v.owner.err = v.Iterator.Error()
		return false
	}
	value, err := v.Iterator.ValueAndErr()
	if err == nil {
		v.record, err = verifyValue(v.Iterator.Key(), value)
	}
	v.owner.err = err
	return err == nil
}
