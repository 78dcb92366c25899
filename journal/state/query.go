package state

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal/state/index"
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
// current when they are read, not at one moment. The caller owns the page. The error is ctx's or a
// *StoreError.
func (re *reads) Query(ctx context.Context, q *index.Query, after *index.Cursor, limit int) (*QueryPage, error) {
	first := index.NewFirst(q, after, limit)
	err := re.eachRow(ctx, q, func(in *instance, row *index.Row) { first.Add(q.CursorOf(row)) })
	if err != nil {
		return nil, err
	}
	page := &QueryPage{}
	places, more := first.Places()
	for _, at := range places {
		if _, err := re.lookup(at.ID, func(in *instance) {
			if row := in.row(); q.Matches(row) {
				page.Rows, page.Instances = append(page.Rows, row), append(page.Instances, in.message())
			}
		}); err != nil {
			return nil, err
		}
	}
	if more {
		page.More, page.Next = true, places[len(places)-1]
	}
	return page, nil
}

// CountBy counts the instances that a query selects, grouped by some dimensions; without one it
// returns at most one group. Groups without instances are absent; the others are in order of their
// values. Counts by state, name and version under conditions on these alone cost no more than the
// number of their combinations. All others cost time in proportion to what is counted. The error is
// ctx's or a *StoreError.
func (re *reads) CountBy(ctx context.Context, q *index.Query, by ...index.Grouping) ([]index.Group, error) {
	counts := index.NewCounts(by)
	if err := re.eachRow(ctx, q, func(_ *instance, row *index.Row) { counts.Add(row, 1) }); err != nil {
		return nil, err
	}
	return counts.Groups(), nil
}

// eachRow visits the instances that a query selects, in any order.
func (re *reads) eachRow(ctx context.Context, q *index.Query, visit func(*instance, *index.Row)) error {
	for c := range re.members(allInstances) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("query instances: %w", err)
		}
		if _, err := re.viewMember(&c, func(in *instance) {
			if row := in.row(); q.Matches(row) {
				visit(in, row)
			}
		}); err != nil {
			return err
		}
	}
	if re.store == nil {
		return nil
	}
	return re.store.Err()
}
