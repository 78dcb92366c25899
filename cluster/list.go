package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/retention"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

const (
	listDefault = 100
	listMax     = instances.ListMax
)

// A Filter selects the instances that match every field that is set. The zero value selects all
// instances.
type Filter struct {
	// States selects instances in one of these states. A state that an instance cannot be in, such
	// as [ContinuedAsNew] or a misspelled one, is rejected with a [*replay.InvalidError].
	States   []State
	Name     string
	Version  string
	IDPrefix string
	// Tags selects instances with each of these tags.
	Tags map[string]string
	// Attributes selects instances that have each of these attributes, as
	// [replay.AttributeHandle.Text] returns them.
	Attributes map[string]string
	// ParentID selects the children of an instance.
	ParentID string
	// CreatedFrom and CreatedBefore select instances created in that interval, which includes
	// CreatedFrom and excludes CreatedBefore.
	CreatedFrom   time.Time
	CreatedBefore time.Time
}

// A Page is a part of a list.
type Page struct {
	Instances []*Status
	// Next is the after argument for the next page; "" if this is the last.
	Next string
	// AppliedIndex is an index of the journal that the page reflects at least; with several
	// partitions, the sum of theirs.
	AppliedIndex uint64
}

// List returns instances that match the filter, ordered by ID. It returns at most limit instances
// (0 means 100; at most 1,000) with IDs greater than after ("" for the first page). They lack
// outputs, errors and custom status, which Get returns. Each item was true at some moment of the
// call, but the page as a whole is not a snapshot. An instance started between two pages may be
// missed.
func (c *Client) List(ctx context.Context, filter Filter, after string, limit int, options ...replay.Option) (*Page, error) {
	if limit < 0 || limit > listMax {
		return nil, fmt.Errorf("list: %w", invalidArgument("limit", fmt.Sprintf("is %d: 0 to %d are allowed", limit, listMax)))
	}
	if limit == 0 {
		limit = listDefault
	}
	request := filter.request()
	request.After, request.Limit = after, uint32(limit)
	if err := checkListRequest(request); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	response, err := c.read(ctx, &clusterpb.Request{Call: &clusterpb.Request_List{List: request}}, options)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	page := &Page{AppliedIndex: response.GetAppliedIndex()}
	for _, wire := range response.GetList().GetInstances() {
		page.Instances = append(page.Instances, newStatus(wire, c.converter))
	}
	if response.GetList().GetMore() {
		page.Next = page.Instances[len(page.Instances)-1].InstanceID
	}
	return page, nil
}

// Count returns the number of instances that match the filter.
func (c *Client) Count(ctx context.Context, filter Filter, options ...replay.Option) (int, error) {
	request := filter.request()
	request.Count = true
	if err := checkListRequest(request); err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	response, err := c.read(ctx, &clusterpb.Request{Call: &clusterpb.Request_List{List: request}}, options)
	if err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	return int(response.GetList().GetCount()), nil
}

// Purge deletes instances that have ended, with all their data, and returns how many. It skips
// instances that run, are unknown, or are needed by relatives: a child whose end the parent has not
// recorded, and a parent of running children. The IDs may then be used again; a start repeated
// later begins a new run. At most 1,000 IDs.
//
// If the answer of an attempt is lost, its deletions are not counted. If a run of one of the IDs
// may have begun since, nothing more is deleted and the outcome is unknown.
func (c *Client) Purge(ctx context.Context, ids ...string) (int, error) {
	if err := checkPurge(ids); err != nil {
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

func (f Filter) request() *clusterpb.ListRequest {
	r := &clusterpb.ListRequest{
		Name: f.Name, Version: f.Version, IdPrefix: f.IDPrefix, Tags: f.Tags, Attributes: f.Attributes, Parent: f.ParentID,
	}
	for _, state := range f.States {
		r.States = append(r.States, string(state))
	}
	if !f.CreatedFrom.IsZero() {
		r.CreatedFrom = actors.ClampedUnixNanos(f.CreatedFrom)
	}
	if !f.CreatedBefore.IsZero() {
		r.CreatedBefore = actors.ClampedUnixNanos(f.CreatedBefore)
	}
	return r
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
	for _, id := range r.Instances {
		known, ok := pa.journal.Instance(id)
		if !ok || references.IsReferenced(known) {
			continue
		}
		if request.FirstIndex != nil {
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
