package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

const (
	listDefault = 100
	listMax     = 1000
)

// A Filter selects the instances that match every field that is set. The zero value selects all
// instances.
type Filter struct {
	// States selects instances in one of these states. A state that an instance cannot be in, such
	// as [ContinuedAsNew] or a misspelled one, is refused with an [InputError].
	States   []State
	Name     string
	Version  string
	IDPrefix string
	// Tags selects instances with each of these tags.
	Tags map[string]string
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
func (c *Client) List(ctx context.Context, filter Filter, after string, limit int, options ...ReadOption) (*Page, error) {
	if limit < 0 || limit > listMax {
		return nil, &InputError{"limit", fmt.Sprintf("is %d: 0 to %d are allowed", limit, listMax)}
	}
	if limit == 0 {
		limit = listDefault
	}
	request := filter.request()
	request.After, request.Limit = after, uint32(limit)
	if err := checkListRequest(request); err != nil {
		return nil, err
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
func (c *Client) Count(ctx context.Context, filter Filter, options ...ReadOption) (int, error) {
	request := filter.request()
	request.Count = true
	if err := checkListRequest(request); err != nil {
		return 0, err
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
		return 0, err
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
		Name: f.Name, Version: f.Version, IdPrefix: f.IDPrefix, Tags: f.Tags, Parent: f.ParentID,
	}
	for _, state := range f.States {
		r.States = append(r.States, string(state))
	}
	if !f.CreatedFrom.IsZero() {
		r.CreatedFrom = clampedUnixNanos(f.CreatedFrom)
	}
	if !f.CreatedBefore.IsZero() {
		r.CreatedBefore = clampedUnixNanos(f.CreatedBefore)
	}
	return r
}

func (g *partition) list(ctx context.Context, p *actors.Partition, r *clusterpb.ListRequest) (*clusterpb.Response, error) {
	result := new(clusterpb.ListResult)
	for known := range g.journal.Instances() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if known.Instance <= r.After && r.After != "" || !matches(known, r) {
			continue
		}
		state := g.stateOf(p, known)
		if len(r.States) > 0 && !slices.Contains(r.States, string(state)) {
			continue
		}
		result.Count++
		if r.Count {
			continue
		}
		if len(result.Instances) == int(min(r.Limit, listMax)) {
			result.More = true
			break
		}
		status := indexedStatus(known)
		status.State = string(state)
		result.Instances = append(result.Instances, status)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_List{List: result}}, nil
}

func matches(known *journalpb.Instance, r *clusterpb.ListRequest) bool {
	for key, value := range r.Tags {
		if have, ok := known.Tags[key]; !ok || have != value {
			return false
		}
	}
	return (r.Name == "" || known.Name == r.Name) &&
		(r.Version == "" || known.Version == r.Version) &&
		(r.Parent == "" || known.Parent.GetInstance() == r.Parent) &&
		(r.CreatedFrom == 0 || known.CreatedAt >= r.CreatedFrom) &&
		(r.CreatedBefore == 0 || known.CreatedAt < r.CreatedBefore) &&
		strings.HasPrefix(known.Instance, r.IdPrefix)
}
