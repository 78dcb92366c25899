package bulk

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Page is a part of a list of jobs.
type Page struct {
	Jobs []Listed
	// Next is the after argument for the next page; "" if this is the last.
	Next string
}

// A Listed is a job in a list.
type Listed struct {
	ID    string
	State cluster.State // of its instance
	// Progress is nil if the job does not answer: if it is stalled, hung or waits for code, or if
	// Err is set.
	Progress *Progress
	// Err is why the job could not be asked: it was purged meanwhile, for example.
	Err error
}

// queriesMax bounds the jobs that a List asks at once.
const queriesMax = 16

// List returns the jobs that match the filter, in its order, with their progress. It returns at
// most limit jobs (0 means 100; at most 1,000), those that follow after ("" for the first page,
// otherwise Page.Next). A page may have fewer, even none, although more follow. filter.Name is
// ignored. Each job is queried, which loads it into memory.
//
// Errors: those of [cluster.Client.List]; the error of ctx.
func List(ctx context.Context, client *cluster.Client, filter cluster.Filter, after string, limit int) (*Page, error) {
	filter.Name = bulk.Name
	found, err := client.List(ctx, filter, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list bulk jobs: %w", err)
	}
	page := &Page{Jobs: make([]Listed, len(found.Instances)), Next: found.Next}
	var asked errgroup.Group
	asked.SetLimit(queriesMax)
	for i, status := range found.Instances {
		listed := &page.Jobs[i]
		listed.ID, listed.State = status.InstanceID, status.State
		switch status.State {
		case cluster.Stalled, cluster.Hung, cluster.WaitingForCode:
			continue
		}
		asked.Go(func() error {
			listed.Progress, listed.Err = Get(ctx, client, listed.ID)
			return nil
		})
	}
	_ = asked.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("list bulk jobs: %w", ctx.Err())
	}
	return page, nil
}

// A Refusal is an instance on which a job could not act. Its fields:
//
//	InstanceID string
//	Code       string // of the error; "unknown_outcome", "internal" or "forgotten": the job may have acted
//	Message    string // the error for people, at most 200 bytes
type Refusal = bulk.Refusal

// A RefusalPage is a part of the refusals of a job.
type RefusalPage struct {
	Refusals []Refusal
	// Next is the after argument for the next page; "" if this is the last.
	Next string
}

const (
	refusalsDefault  = 100
	refusalsLimitMax = 1000
)

// Refusals returns the first 10,000 instances that a job counts as refused or unknown, in pages, in
// the order of the visits. It returns at most limit (0 means 100; at most 1,000), those that follow
// after ("" for the first page, otherwise RefusalPage.Next). While the job acts, later refusals
// follow the last page. A call reads the history of the job.
//
// Errors: [*replay.InvalidError] for after and limit; those of [Get] and
// [cluster.Client.HistoryOf].
func Refusals(ctx context.Context, client *cluster.Client, id, after string, limit int) (*RefusalPage, error) {
	page, err := readRefusals(ctx, client, id, after, limit)
	if err != nil {
		return nil, wrap(err, "refusals of")
	}
	return page, nil
}

// errEnough ends the reading of a history.
var errEnough = errors.New("no more refusals are wanted")

func readRefusals(ctx context.Context, client *cluster.Client, id, after string, limit int) (*RefusalPage, error) {
	if limit < 0 || limit > refusalsLimitMax {
		return nil, &replay.InvalidError{Field: "limit", Reason: fmt.Sprintf("is %d: 0 to %d are allowed", limit, refusalsLimitMax)}
	}
	if limit == 0 {
		limit = refusalsDefault
	}
	from, err := parsePlace(after)
	if err != nil {
		return nil, err
	}
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, err
	}
	asked, err := cluster.Query(ctx, client, id, bulk.ProgressQuery, time.Time{})
	if err != nil {
		return nil, err
	}
	r := &refusalReader{internals: internals, from: from, limit: limit}
	return r.readAll(ctx, id, asked.State.RefusedIn)
}

// A place is where a refusal is recorded. The zero place is before all.
type place struct {
	execution, event uint64
	index            int // in the result of a page
}

func (p place) String() string { return fmt.Sprintf("%d.%d.%d", p.execution, p.event, p.index) }

func (p place) before(q place) bool {
	switch {
	case p.execution != q.execution:
		return p.execution < q.execution
	case p.event != q.event:
		return p.event < q.event
	}
	return p.index < q.index
}

func parsePlace(text string) (p place, err error) {
	if text == "" {
		return p, nil
	}
	parts := strings.Split(text, ".")
	if len(parts) == 3 {
		var executionErr, eventErr, indexErr error
		p.execution, executionErr = strconv.ParseUint(parts[0], 10, 64)
		p.event, eventErr = strconv.ParseUint(parts[1], 10, 64)
		p.index, indexErr = strconv.Atoi(parts[2])
		if errors.Join(executionErr, eventErr, indexErr) == nil {
			return p, nil
		}
	}
	return place{}, &replay.InvalidError{Field: "after", Reason: fmt.Sprintf("is %.40q: use RefusalPage.Next", text)}
}

// A refusalReader collects the refusals of a page from the events of a job.
type refusalReader struct {
	internals access.Internals
	from      place // of the first wanted refusal
	limit     int

	pages *bulk.PageReader
	at    place // of the next refusal
	page  RefusalPage
}

// readAll reads the executions of a job that have refusals, in their order.
func (r *refusalReader) readAll(ctx context.Context, id string, executions []uint64) (*RefusalPage, error) {
	for _, execution := range executions {
		if execution < r.from.execution {
			continue
		}
		r.at.execution, r.pages = execution, bulk.NewPageReader(r.internals.Converter)
		if _, err := r.internals.Events(ctx, id, execution, r.read); err != nil && !errors.Is(err, errEnough) {
			return nil, err
		}
		if r.page.Next != "" {
			break
		}
	}
	return &r.page, nil
}

// read takes an event.
func (r *refusalReader) read(event *journalpb.Event) error {
	refusals, err := r.pages.Refusals(event)
	if err != nil {
		return err
	}
	r.at.event = event.EventId
	for i, refusal := range refusals {
		r.at.index = i
		switch {
		case r.at.before(r.from):
		case len(r.page.Refusals) == r.limit:
			r.page.Next = r.at.String()
			return errEnough
		default:
			r.page.Refusals = append(r.page.Refusals, refusal)
		}
	}
	return nil
}
