package cluster

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/retention"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

const (
	listDefault = instances.ListDefault
	listMax     = instances.ListMax
)

// A Filter selects the instances that match every field that is set. The zero value selects all
// instances. Package cluster/filter reads and writes it as text. A wrong value is rejected with a
// [*replay.InvalidError] that names the field, the value and the permitted ones.
//
// A field that ends in From is the first moment of an interval, one that ends in Before the first
// moment after it. Times are in cluster time.
type Filter struct {
	// States selects instances in one of these states, as Get shows them. No instance can be in
	// the state [ContinuedAsNew].
	States   []State `json:",omitzero"`
	Name     string  `json:",omitzero"`
	Version  string  `json:",omitzero"`
	IDPrefix string  `json:",omitzero"`
	// Tags selects instances with each of these tags.
	Tags map[string]string `json:",omitzero"`
	// Attributes selects instances that have each of these attributes, as
	// [replay.AttributeHandle.Text] returns them.
	Attributes map[string]string `json:",omitzero"`
	// ParentID selects the children of an instance.
	ParentID string `json:",omitzero"`
	// Of the start of the run, its last event and its end. The last two select ended instances
	// only.
	CreatedFrom, CreatedBefore time.Time `json:",omitzero"`
	UpdatedFrom, UpdatedBefore time.Time `json:",omitzero"`
	EndedFrom, EndedBefore     time.Time `json:",omitzero"`
	// ErrorCode selects failed instances whose errors have this code; see [replay.WithCode].
	ErrorCode string `json:",omitzero"`
	// The Waiting fields select running instances with an open operation to which all of them
	// apply. WaitingKind is "activity", "event" (for which the code waits), "timer", "child", or ""
	// for any. WaitingName is the name of the activity, event or child's orchestration; timers have
	// none. The interval is that of the operation's schedule.
	WaitingKind, WaitingName   string    `json:",omitzero"`
	WaitingFrom, WaitingBefore time.Time `json:",omitzero"`
	// The Failing fields select instances with an open activity of which at least FailingAttempts
	// attempts have failed (0 with a code: 1), the last with the code FailingCode ("": with any).
	FailingAttempts int    `json:",omitzero"`
	FailingCode     string `json:",omitzero"`
	// Order of a list: "id", "created", "updated", "ended" (only ended instances) or "timer" (by
	// the earliest open timer; only instances with one); "" means by ID. Instances with equal times
	// are ordered by ID. Descending reverses the order. Counts ignore both, but not the
	// restrictions. Ascending by "updated", paging may never end while instances are updated; see
	// [Client.List].
	Order      string `json:",omitzero"`
	Descending bool   `json:",omitzero"`
}

// A Page is a part of a list.
type Page struct {
	Instances []*Status
	// Next is the after argument for the next page; "" if this is the last. In the order by ID it
	// is an ID, otherwise an opaque text that is valid in the same order only.
	Next string
	// AppliedIndex is an index of the journal that the page reflects at least; with several
	// partitions, the sum of theirs.
	AppliedIndex uint64
}

// List returns instances that match the filter, in its order. It returns at most limit instances (0
// means 100; at most 1,000), those that follow after ("" for the first page, otherwise Page.Next;
// in the order by ID also any ID). They lack outputs, errors and custom status, which Get returns.
//
// A page may have fewer instances than limit, even none, although there are more: a node examines a
// bounded number of instances for one page. Page.Next says whether the list goes on.
//
// Each item was true at some moment of the call, but the page as a whole is not a snapshot. An
// instance that is present and matches throughout appears once in the order by ID or by creation.
// In the other orders, an instance whose time changes between two pages may appear twice or not at
// all. Each change moves an instance to the end of the ascending order by "updated", so paging may
// never end while instances change: set UpdatedBefore, or use another order. The same is true of
// "timer".
func (c *Client) List(ctx context.Context, filter Filter, after string, limit int, options ...replay.Option) (*Page, error) {
	if limit < 0 || limit > listMax {
		return nil, fmt.Errorf("list: %w", invalidArgument("limit", fmt.Sprintf("is %d: 0 to %d are allowed", limit, listMax)))
	}
	if limit == 0 {
		limit = listDefault
	}
	request, err := filter.request()
	if err = firstError(err, instances.SetCursor(request, after)); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	request.Limit, request.AcceptsShort = uint32(limit), true
	response, err := readList(ctx, c, request, options)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	page := &Page{AppliedIndex: response.GetAppliedIndex()}
	for _, wire := range response.GetList().GetInstances() {
		page.Instances = append(page.Instances, newStatus(wire, c.converter))
	}
	if at, more := instances.NextOf(response.GetList()); more {
		page.Next = instances.FormatCursor(request, at)
	}
	return page, nil
}

// readList sends a request for a list or count.
func readList(ctx context.Context, c *Client, request *clusterpb.ListRequest, options []replay.Option) (*clusterpb.Response, error) {
	if err := checkListRequest(request); err != nil {
		return nil, err
	}
	return c.read(ctx, &clusterpb.Request{Call: &clusterpb.Request_List{List: request}}, options)
}

// Count returns the number of instances that match the filter.
func (c *Client) Count(ctx context.Context, filter Filter, options ...replay.Option) (int, error) {
	request, err := filter.request()
	if err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	request.Count = true
	response, err := readList(ctx, c, request, options)
	if err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	return int(response.GetList().GetCount()), nil
}

// CountBy returns the numbers of the instances that match the filter, grouped by dimensions:
// "state", "name", "version", "error" (the code), "tag:KEY" and "attr:KEY"; at most 8. The values
// of a group are in the order of the dimensions. An instance that lacks a value is in the group
// with "" there. The groups are ordered by their values; there is none without instances. More than
// 10,000 groups, or 4 MiB of values, are a [*replay.InvalidError].
func (c *Client) CountBy(ctx context.Context, filter Filter, dimensions []string, options ...replay.Option) ([]index.Group, error) {
	request, err := filter.request()
	if err == nil && len(dimensions) == 0 {
		err = invalidArgument("dimensions", "are none: at least one is required")
	}
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	request.Count, request.GroupBy = true, dimensions
	response, err := readList(ctx, c, request, options)
	if err != nil {
		return nil, fmt.Errorf("count by %s: %w", strings.Join(dimensions, ", "), err)
	}
	return instances.GroupsOf(response.GetList()), nil
}

// Purge deletes instances that have ended, with all their data, and returns how many. It skips
// instances that run, are unknown, or are needed by relatives: a child whose end the parent has not
// recorded, and a parent of running children. The IDs may then be used again; a start repeated
// later begins a new run. At most 1,000 IDs.
//
// If the answer of an attempt is lost, its deletions are not counted. If a run of one of the IDs
// may have begun since, nothing more is deleted and the outcome is unknown.
func (c *Client) Purge(ctx context.Context, ids ...string) (int, error) {
	if err := checkPurge(&clusterpb.PurgeRequest{Instances: ids}); err != nil {
		return 0, fmt.Errorf("purge: %w", err)
	}
	response, err := c.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{Instances: ids}}})
	if err != nil {
		return 0, fmt.Errorf("purge: %w", err)
	}
	return int(response.GetPurge().GetPurged()), nil
}

// filterTextMax bounds each text of a filter, in bytes.
const filterTextMax = 1024

// request returns the request for a list. It does not check the texts; see checkListRequest.
func (f Filter) request() (*clusterpb.ListRequest, error) {
	if f.FailingAttempts < 0 || f.FailingAttempts > failingMax {
		return nil, invalidArgument("filter by failed attempts", fmt.Sprintf("is %d: 0 to %d are allowed", f.FailingAttempts, failingMax))
	}
	r := &clusterpb.ListRequest{
		Name: f.Name, Version: f.Version, IdPrefix: f.IDPrefix, Tags: f.Tags, Attributes: f.Attributes, Parent: f.ParentID,
		CreatedFrom: boundOf(f.CreatedFrom), CreatedBefore: boundOf(f.CreatedBefore),
		UpdatedFrom: boundOf(f.UpdatedFrom), UpdatedBefore: boundOf(f.UpdatedBefore),
		EndedFrom: boundOf(f.EndedFrom), EndedBefore: boundOf(f.EndedBefore),
		ErrorCode: f.ErrorCode, Order: f.Order, Descending: f.Descending,
	}
	for _, state := range f.States {
		r.States = append(r.States, string(state))
	}
	if f.WaitingKind != "" || f.WaitingName != "" || !f.WaitingFrom.IsZero() || !f.WaitingBefore.IsZero() {
		r.Waiting = &clusterpb.WaitingFilter{
			Kind: f.WaitingKind, Name: f.WaitingName, From: boundOf(f.WaitingFrom), Before: boundOf(f.WaitingBefore),
		}
	}
	if f.FailingAttempts > 0 || f.FailingCode != "" {
		r.Failing = &clusterpb.FailingFilter{Attempts: uint32(f.FailingAttempts), ErrorCode: f.FailingCode}
	}
	return r, nil
}

// failingMax bounds Filter.FailingAttempts.
const failingMax = math.MaxInt32

// boundOf returns the bound of an interval, 0 for none.
func boundOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return actors.ClampedUnixNanos(t)
}

// purge purges the instances that a client names, except those still needed. An earlier attempt of
// a retried purge may have been executed. A retry therefore purges nothing if a run under one of
// the IDs may have begun since.
func (pa *partition) purge(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.PurgeRequest) (*clusterpb.Response, error) {
	references, err := retention.NewReferences(ctx, pa.journal, otherPartitionsOf(pa), pa.journal.Now())
	if err != nil {
		return nil, err
	}
	var ids []string
	for i, id := range r.Instances {
		known, ok := pa.journal.Instance(id)
		if !ok || references.IsReferenced(known) {
			continue
		}
		run := runToPurge(r, i)
		if run != 0 && run != known.Incarnation {
			continue
		}
		if request.FirstIndex != nil && run == 0 {
			if err := pa.inputs.CheckSameRun(id, "", request.GetFirstIndex()); err != nil {
				return nil, fmt.Errorf("%w: instance %s", err, id)
			}
		}
		ids = append(ids, id)
	}
	purged, err := retention.Purge(ctx, pa.journal, p.Epoch(), ids)
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Purge{Purge: &clusterpb.PurgeResult{Purged: uint32(purged)}}}, nil
}

// runToPurge returns the incarnation of the run to purge of the i-th instance; 0 means any.
func runToPurge(r *clusterpb.PurgeRequest, i int) uint64 {
	if i < len(r.Incarnations) {
		return r.Incarnations[i]
	}
	return 0
}

// An otherPartition shows a partition to the retention of another one.
type otherPartition struct {
	*journal.Journal
	partition *partition
}

// Owns implements retention.Partition.
func (o otherPartition) Owns(instance string) bool {
	return o.partition.node.partitionOf(instance) == o.partition
}

// CatchUp implements retention.Partition.
func (o otherPartition) CatchUp(ctx context.Context) error { return o.partition.catchUp(ctx) }

func otherPartitionsOf(g *partition) (others []retention.Partition) {
	for _, other := range g.node.partitions {
		if other != g {
			others = append(others, otherPartition{other.journal, other})
		}
	}
	return others
}
