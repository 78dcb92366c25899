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
}

// Query returns up to limit instances, at least one, that the query selects, in its order, from the
// beginning or after a place. A page may have fewer rows than the limit, or even none, and still
// report that there may be more: the work for one page is bounded. An instance that exists during
// the whole call and matches throughout is returned once if its place is in the page. The rows are
// current when they are read, not at one moment. While the index of an older store is being built,
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
// values. Counts by state, name and version under conditions on these alone cost no more than the
// number of their combinations. All others cost time in proportion to the instances that the
// narrowest condition selects. The error is ctx's, a *StoreError, or wraps index.ErrTooManyGroups.
func (re *reads) CountBy(ctx context.Context, q *index.Query, by ...index.Grouping) ([]index.Group, error) {
	counts := index.NewCounts(by)
	s := &search{reads: re, ctx: ctx, query: q, rowsOnly: true, limit: countPageRows}
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

// countPageRows is how many rows are counted at a time.
const countPageRows = 8 << 10

// eachSelected visits the selected rows: by the index if it is complete and leaves out most of the
// others, else in one pass over all. An error of visit ends it.
func (s *search) eachSelected(visit func(*index.Row) error) error {
	if !s.isIndexed() || !s.query.HasLists() && s.selectsMost() {
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

// isIndexed reports whether there is a complete index.
func (s *search) isIndexed() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.store != nil && s.indexState.complete
}

// selectsMost reports whether the facets of the query have more than a fifth of all instances.
func (s *search) selectsMost() bool {
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
	for c := range s.members(allInstances) {
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
	if s.store == nil {
		return nil
	}
	return s.store.Err()
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

// maySelect reports whether a query can select an instance, by what needs no row.
func (in *instance) maySelect(q *index.Query) bool {
	return in.fieldsMayMatch(q) && q.SelectsFacet(index.Facet{State: in.runState(), Name: in.name, Version: in.version})
}

// fieldsMayMatch is maySelect without the facet.
func (in *instance) fieldsMayMatch(q *index.Query) bool {
	if in.execution == 0 || !strings.HasPrefix(in.id, q.IDPrefix) ||
		q.ParentID != "" && (in.parent == nil || in.parent.instance != q.ParentID) ||
		q.ErrorCode != "" && in.errorCode != q.ErrorCode || !q.Created.Contains(in.created) || !q.Updated.Contains(in.updated) ||
		q.Ended.IsSet() && (in.isRunning() || !q.Ended.Contains(in.updated)) ||
		(q.Waiting != nil || q.Failing != nil || q.RequiresTimer()) && len(in.open) == 0 ||
		q.Failing != nil && in.attempts == nil || len(q.Attributes) > len(in.attributes) {
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

	largestCount uint64
	largest      *facet               // of those that the query selects
	total        uint64               // instances in them
	facets       []uint32             // the numbers of those that the query selects
	found        map[string]*foundRow // by ID
	bound        *index.Cursor        // everything up to it is found; nil: everything
	collected    int                  // candidates, of collectBudget
	spent        int                  // of searchBudget
}

type foundRow struct {
	row     *index.Row
	message *journalpb.Instance
	at      index.Cursor
}

// What the search for one page may cost: a step of an iterator costs 1. It is checked between
// instances.
const (
	searchBudget = 60_000
	verifyCost   = 24 // of reading an instance

	// What collecting candidates may cost. It is no part of searchBudget, which is spent on reading
	// instances, so that every page makes progress.
	collectBudget = searchBudget / 2

	// Up to so many candidates are read and sorted, if not all of their list are results.
	sortedCandidatesMax = 1 << 10
	// Up to so many candidates are sorted by their IDs, or kept as a set.
	listedCandidatesMax = 20 << 10
	fewCandidates       = 256
)

func (s *search) run() error {
	s.found = make(map[string]*foundRow)
	s.mu.RLock()
	indexed := s.store != nil && s.indexState.complete
	var dirty []dirtyFacet
	for _, f := range s.reads.facets.all {
		if s.query.SelectsFacet(f.Facet) {
			s.facets, s.total = append(s.facets, f.number), s.total+f.count
			if len(f.dirty)+len(f.flushing) > 0 {
				dirty = append(dirty, dirtyFacet{f, f.dirty, f.flushing})
			}
			if s.largest == nil || f.count > s.largestCount {
				s.largest, s.largestCount = f, f.count
			}
		}
	}
	generation, moves := s.generation, s.reads.facets.moves
	s.mu.RUnlock()
	if !indexed {
		return s.scanAll()
	}
	// What is dirty is captured before the store is read, so that an instance that a flush writes
	// meanwhile is in one of the two, or in both.
	changed, err := s.searchDirty(dirty, generation, moves)
	if err != nil {
		return err
	}
	if err := s.store.view("query instances", 0, func(from store.Reader) error { return s.searchStore(from) }); err != nil {
		return err
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	return s.addPlaces(changed)
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
	for _, at := range places {
		if s.found[at.ID] != nil {
			continue
		}
		if _, err := s.lookup(at.ID, func(in *instance) { s.add(in) }); err != nil {
			return err
		}
	}
	return nil
}

// add adds an instance if the query selects it.
func (s *search) add(in *instance) *foundRow {
	row := in.selectedRow(s.query)
	if row == nil {
		return nil
	}
	f := &foundRow{row: row, at: s.query.CursorOf(row)}
	if !s.rowsOnly {
		f.message = in.message()
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
	dirty, flushing []*instance
}

// searchDirty returns the first places of the instances that are not written yet. generation and
// moves are those of the moment at which the lists of the facets were captured.
func (s *search) searchDirty(facets []dirtyFacet, generation, moves uint64) (*index.First, error) {
	first := index.NewFirst(s.query, s.after, s.limit)
	var moved []*instance // to another facet since that moment: its list there was captured without it
	visit := func(f *facet, changed []*instance, use func(*instance) bool) error {
		return s.eachChanged(changed, func(in *instance) {
			switch {
			case in.facet == f && use(in):
				in.addTo(first, s.query)
			case in.facet != f && in.movedAt > moves:
				moved = append(moved, in)
			}
		})
	}
	for _, f := range facets {
		both := map[*instance]struct{}{}
		if err := visit(f.facet, f.flushing, func(in *instance) bool {
			if in.dirtyGeneration == generation {
				both[in] = struct{}{}
			}
			return true
		}); err != nil {
			return nil, err
		}
		if err := visit(f.facet, f.dirty, func(in *instance) bool {
			_, seen := both[in]
			return !seen
		}); err != nil {
			return nil, err
		}
	}
	added := make(map[*instance]struct{}, len(moved))
	return first, s.eachChanged(moved, func(in *instance) {
		if _, twice := added[in]; !twice && in.facet != nil && s.query.SelectsFacet(in.facet.Facet) {
			added[in] = struct{}{}
			in.addTo(first, s.query)
		}
	})
}

// eachChanged visits instances, a few under each lock.
func (s *search) eachChanged(changed []*instance, visit func(*instance)) error {
	for step := range slices.Chunk(changed, 2*instancesPerLock) {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		s.mu.RLock()
		for _, in := range step {
			visit(in)
		}
		s.mu.RUnlock()
	}
	return nil
}

// addTo gives a First the place of an instance if the query, which selects its facet, selects it.
func (in *instance) addTo(first *index.First, q *index.Query) {
	if !in.fieldsMayMatch(q) {
		return
	}
	if len(q.Attributes) == 0 && q.Waiting == nil && q.Failing == nil && !q.RequiresTimer() {
		at := index.Cursor{ID: in.id}
		switch q.Order {
		case index.ByCreated:
			at.Key = in.created
		case index.ByUpdated, index.ByEnded:
			at.Key = in.updated
		}
		first.Add(at)
		return
	}
	if row := in.row(); q.Matches(row) {
		first.Add(q.CursorOf(row))
	}
}

// searchStore finds what the store has.
func (s *search) searchStore(from store.Reader) error {
	iters := &iterators{from: from}
	defer iters.close()
	plan := index.NewPlan(s.query)
	var among map[string]struct{}
	if !plan.IsExact {
		ids, err := s.candidates(plan, iters)
		if err != nil {
			return err
		}
		switch {
		case ids == nil:
		case s.query.Order == index.ByID:
			return s.searchIDs(from, ids)
		case len(ids) <= sortedCandidatesMax:
			return s.sortCandidates(from, ids)
		default:
			among = make(map[string]struct{}, len(ids))
			for _, id := range ids {
				among[id] = struct{}{}
			}
		}
	}
	if err := s.walk(from, plan, iters, among); err != nil {
		return err
	}
	return iters.err
}

// candidates returns IDs, sorted, that have all results; nil if all lists of them are long.
func (s *search) candidates(plan *index.Plan, iters *iterators) ([]string, error) {
	iter, err := iters.open()
	if err != nil {
		return nil, err
	}
	for i := range plan.Candidates {
		if ids, complete := s.collect(&plan.Candidates[i], iter, fewCandidates); complete {
			return ids, iters.err
		}
	}
	var all []string
	for i := range plan.Candidates {
		if s.collected >= collectBudget {
			break
		}
		if n, ok := s.estimate(&plan.Candidates[i], iter); ok && n > listedCandidatesMax {
			s.facets = plan.Candidates[i].Present(iter, s.facets)
			continue
		}
		ids, complete := s.collect(&plan.Candidates[i], iter, listedCandidatesMax)
		switch {
		case !complete:
		case all == nil:
			all = ids
		default:
			all = intersection(all, ids)
		}
		if all != nil && len(all) <= sortedCandidatesMax {
			break
		}
	}
	return all, iters.err
}

// collect returns the IDs of a scan, sorted; false if there are too many.
func (s *search) collect(scan *index.Scan, iter index.Iterator, limit int) ([]string, bool) {
	ids, complete := scan.Collect(s.query, iter, s.facets, max(min(limit, collectBudget-s.collected), 0), []string{})
	if s.collected += len(ids); !complete {
		return nil, false
	}
	slices.Sort(ids)
	return slices.Compact(ids), true
}

// intersection returns what is in both of two sorted slices, in the memory of the first.
func intersection(a, b []string) []string {
	both := a[:0]
	for _, id := range a {
		for len(b) > 0 && b[0] < id {
			b = b[1:]
		}
		if len(b) > 0 && b[0] == id {
			both = append(both, id)
		}
	}
	return both
}

// estimate returns about how many candidates a scan has; false if unknown.
func (s *search) estimate(scan *index.Scan, iter index.Iterator) (n uint64, ok bool) {
	if s.largest == nil {
		return 0, false
	}
	return scan.Estimate(iter, s.largest.number, s.total)
}

// searchIDs reads sorted candidates in the order by ID.
func (s *search) searchIDs(from store.Reader, ids []string) error {
	if s.query.Descending {
		slices.Reverse(ids)
	}
	accepted := 0
	for _, id := range ids {
		at := index.Cursor{ID: id}
		if s.after != nil && s.query.Compare(at, *s.after) <= 0 {
			continue
		}
		f, err := s.read(from, id)
		if err != nil {
			return err
		}
		if f != nil {
			accepted++
		}
		if accepted == s.limit || s.spent > searchBudget {
			s.limitTo(at)
			return nil
		}
	}
	return nil
}

// sortCandidates reads all candidates.
func (s *search) sortCandidates(from store.Reader, ids []string) error {
	for _, id := range ids {
		if _, err := s.read(from, id); err != nil {
			return err
		}
	}
	return nil
}

// walk reads what the driver of the plan yields and is among others, if these are not nil.
func (s *search) walk(from store.Reader, plan *index.Plan, iters *iterators, among map[string]struct{}) error {
	w, err := index.NewWalk(s.query, plan.Driver, s.facets, s.after, searchBudget, iters.open)
	if err != nil {
		return err
	}
	inPlace := 0
	for {
		at, ok := w.Next()
		if !ok {
			break
		}
		s.spent++
		if _, candidate := among[at.ID]; among == nil || candidate {
			f, err := s.read(from, at.ID)
			if err != nil {
				return err
			}
			if f != nil && f.at == at {
				inPlace++
			}
		}
		if inPlace == s.limit || s.spent > searchBudget {
			s.limitTo(at)
			return nil
		}
	}
	if paused := w.Paused(); paused != nil {
		s.limitTo(*paused)
	}
	return nil
}

// read adds the current state of an instance if the query selects it.
func (s *search) read(from store.Reader, id string) (*foundRow, error) {
	if f := s.found[id]; f != nil {
		return f, nil
	}
	if s.spent += verifyCost; s.spent%(64*verifyCost) < verifyCost && s.ctx.Err() != nil {
		s.spent = searchBudget + 1 // run returns the error
		return nil, nil
	}
	s.mu.RLock()
	in, inMemory := s.instances[id]
	if inMemory {
		defer s.mu.RUnlock()
		return s.add(in), nil
	}
	_, purged := s.purged[id]
	s.mu.RUnlock()
	if purged {
		return nil, nil
	}
	record, err := getRecord(from, idKey(nil, keyInstance, id))
	if record == nil || err != nil || !headerMaySelect(record, s.query) {
		return nil, err
	}
	if in, err = parseStoredHeader(from, id, record); in == nil || err != nil {
		return nil, err
	}
	return s.add(in), nil
}

// headerMaySelect reports whether a query can select an instance by the times in its header, without
// decoding the rest.
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
	all  []store.Iterator
	err  error
}

// open returns an iterator over the whole index that verifies every key.
func (i *iterators) open() (index.Iterator, error) {
	iter, err := i.from.NewIter([]byte{index.KindByID}, endOfKind(index.KindList))
	if err != nil {
		return nil, err
	}
	i.all = append(i.all, iter)
	return &verifiedIterator{Iterator: iter, owner: i}, nil
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
