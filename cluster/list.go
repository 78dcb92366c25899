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

// A Filter selects instances; those that fit every field that is set. The zero
// value selects all.
type Filter struct {
	// In one of these states. Any that an instance cannot be in, such as [ContinuedAsNew] or a
	// misspelled one, is refused with an [InputError].
	States   []State
	Name     string
	Version  string
	IDPrefix string
	// With each of these tags.
	Tags map[string]string
	// Children of this instance.
	ParentID string
	// Created in this stretch of time: from the first up to, and without, the
	// second.
	CreatedFrom   time.Time
	CreatedBefore time.Time
}

// A Page is a part of a list.
type Page struct {
	Instances []*Status
	// What to pass as after for the next page; "" when this is the last.
	Next string
	// The index of the journal that it shows at least; the sum, of several groups.
	AppliedIndex uint64
}

// List returns instances that fit the filter, in the order of their IDs: those
// behind the ID after ("" for the first page), at most limit of them (0 means
// 100; no more than 1,000). They come without outputs, errors and what they have
// published; Get has those. Each item was true at some moment of the call, the page as a
// whole need not have been. An instance that is started between two pages may be missed.
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
		page.Instances = append(page.Instances, newStatus(wire, c.payloads))
	}
	if response.GetList().GetMore() {
		page.Next = page.Instances[len(page.Instances)-1].InstanceID
	}
	return page, nil
}

// Count returns how many instances fit the filter.
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

// Purge removes instances that have ended, with everything that is kept of
// them, and returns how many it has removed. Left out are those that run, those
// that are not known, and those that relatives still need: a child whose parent
// has not recorded its end yet, a parent of children that run. The IDs are free
// again, so that a start that is repeated later is a new one. What an attempt has
// removed whose answer was lost is not counted; if a run of one of the IDs may have begun since,
// nothing more is removed and the outcome is unknown. At most 1,000 IDs.
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

// filterMax bounds the texts of a filter, in bytes.
const filterMax = 1024

func (f Filter) request() *clusterpb.ListRequest {
	r := &clusterpb.ListRequest{
		Name: f.Name, Version: f.Version, IdPrefix: f.IDPrefix, Tags: f.Tags, Parent: f.ParentID,
	}
	for _, state := range f.States {
		r.States = append(r.States, string(state))
	}
	if !f.CreatedFrom.IsZero() {
		r.CreatedFrom = nanos(f.CreatedFrom)
	}
	if !f.CreatedBefore.IsZero() {
		r.CreatedBefore = nanos(f.CreatedBefore)
	}
	return r
}

func (g *group) list(ctx context.Context, p *actors.Partition, r *clusterpb.ListRequest) (*clusterpb.Response, error) {
	result := new(clusterpb.ListResult)
	for known := range g.journal.Instances() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if known.Instance <= r.After && r.After != "" || !fits(known, r) {
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
		status := indexed(known)
		status.State = string(state)
		result.Instances = append(result.Instances, status)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_List{List: result}}, nil
}

// fits checks all that the index knows.
func fits(known *journalpb.Instance, r *clusterpb.ListRequest) bool {
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
