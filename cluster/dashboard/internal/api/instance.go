package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/replay"
)

// Bounds of pages.
const (
	pageDefault = 100
	pageMax     = 1000
)

// instanceView is an instance as answers have it.
type instanceView struct {
	ID                 string            `json:"id"`
	Execution          uint64            `json:"execution"`
	FirstExecution     uint64            `json:"first_execution"`
	Name               string            `json:"name"`
	Version            string            `json:"version,omitempty"`
	State              cluster.State     `json:"state"`
	CreatedAt          *time.Time        `json:"created_at"`
	UpdatedAt          *time.Time        `json:"updated_at"`
	ParentID           string            `json:"parent_id,omitempty"`
	Tags               map[string]string `json:"tags,omitempty"`
	Attributes         map[string]string `json:"attributes,omitempty"`
	AttributesRedacted []string          `json:"attributes_redacted,omitempty"` // the names of those that are hidden
	Summary            string            `json:"summary,omitempty"`
	// With the cluster, after the run began: restored or recovered.
	Continued   string        `json:"continued,omitempty"`
	ContinuedAt *time.Time    `json:"continued_at,omitempty"`
	LastEventID uint64        `json:"last_event_id"`
	Error       *errorView    `json:"error,omitempty"`
	Mismatch    *mismatchView `json:"mismatch,omitempty"`
	Quarantined []string      `json:"quarantined,omitempty"` // nodes whose replicas are not used
	// Lists do not have the fields below.
	CustomStatus *payload        `json:"custom_status,omitempty"`
	Output       *payload        `json:"output,omitempty"`
	Executions   []executionView `json:"executions,omitempty"`
	AppliedIndex uint64          `json:"applied_index,omitempty"`
}

// mismatchView says why an instance is stalled.
type mismatchView struct {
	Kind     string `json:"kind"`
	EventID  uint64 `json:"event_id,omitempty"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
	Source   string `json:"source,omitempty"`
}

type executionView struct {
	Execution   uint64        `json:"execution"`
	Version     string        `json:"version,omitempty"`
	State       cluster.State `json:"state"`
	LastEventID uint64        `json:"last_event_id"`
	StartedAt   *time.Time    `json:"started_at"`
	UpdatedAt   *time.Time    `json:"updated_at"`
}

func (a *API) viewOf(s *cluster.Status) *instanceView {
	v := &instanceView{
		ID: s.InstanceID, Execution: s.Execution, FirstExecution: s.FirstExecution, Name: s.Name, Version: s.Version,
		State: s.State, CreatedAt: timeOf(s.CreatedAt), UpdatedAt: timeOf(s.UpdatedAt), ParentID: s.ParentID,
		Tags: s.Tags, Summary: s.Summary, LastEventID: s.LastEventID, Error: a.errorViewOf(s.Err),
		AppliedIndex: s.AppliedIndex, Quarantined: s.Quarantined,
	}
	if s.Continued != "" {
		v.Continued, v.ContinuedAt = s.Continued, timeOf(s.ContinuedAt)
	}
	v.Attributes, v.AttributesRedacted = a.attributesOf(s.Attributes)
	if m := s.Mismatch; m != nil {
		v.Mismatch = &mismatchView{string(m.Kind), m.EventID, m.Expected, m.Found, m.Source}
	}
	return v
}

// instancesAnswer is a page of a list.
type instancesAnswer struct {
	Instances    []*instanceView `json:"instances"`
	Next         string          `json:"next"` // "": this is the last page
	AppliedIndex uint64          `json:"applied_index"`
}

// filter reads the parameter "filter".
func (r *request) filter() (cluster.Filter, error) {
	return filter.Parse(r.FormValue("filter"), time.Now())
}

func (a *instanceAPI) listInstances(ctx context.Context, r *request) (*instancesAnswer, error) {
	f, err := r.filter()
	if err != nil {
		return nil, err
	}
	return a.pageOf(ctx, r, f)
}

// pageOf returns the page of a list that the parameters "after" and "limit" select.
func (a *instanceAPI) pageOf(ctx context.Context, r *request, f cluster.Filter) (*instancesAnswer, error) {
	limit, err := r.number("limit", pageDefault, 1, pageMax)
	if err != nil {
		return nil, err
	}
	page, err := a.config.Client.List(ctx, f, r.FormValue("after"), int(limit), r.readOptions()...)
	if err != nil {
		return nil, err
	}
	return &instancesAnswer{a.viewsOf(page), page.Next, page.AppliedIndex}, nil
}

// viewsOf returns the instances of a page.
func (a *API) viewsOf(page *cluster.Page) []*instanceView {
	views := []*instanceView{}
	for _, s := range page.Instances {
		views = append(views, a.viewOf(s))
	}
	return views
}

// countAnswer is a count by the dimensions that were asked for.
type countAnswer struct {
	Count int `json:"count"`
	// AtLeast says that there may be more: counting has ended early.
	AtLeast bool        `json:"at_least,omitempty"`
	Groups  []groupView `json:"groups,omitempty"`
}

type groupView struct {
	Values []string `json:"values"` // of the dimensions, in their order
	Count  uint64   `json:"count"`
}

func (a *instanceAPI) countInstances(ctx context.Context, r *request) (*countAnswer, error) {
	f, err := r.filter()
	if err != nil {
		return nil, err
	}
	dimensions := r.Form["by"]
	most, err := r.number("max", 0, 1, countMax)
	if err != nil {
		return nil, err
	}
	if most > 0 && len(dimensions) == 0 {
		return a.counts.get(ctx, r.FormValue("filter"), int(most))
	}
	if len(dimensions) == 0 {
		count, err := a.config.Client.Count(ctx, f, r.readOptions()...)
		return &countAnswer{Count: count}, err
	}
	for _, dimension := range dimensions {
		if name, ok := strings.CutPrefix(dimension, "attr:"); ok && a.config.hidesAttribute(name) {
			return nil, &statusError{http.StatusForbidden, "redacted", "by", "by: the attribute " + strconv.Quote(name) + " is hidden"}
		}
	}
	groups, err := a.config.Client.CountBy(ctx, f, dimensions, r.readOptions()...)
	if err != nil {
		return nil, err
	}
	answer := &countAnswer{}
	for _, g := range groups {
		answer.Count += int(g.Count)
		answer.Groups = append(answer.Groups, groupView{g.Values, uint64(g.Count)})
	}
	return answer, nil
}

func (a *instanceAPI) getInstance(ctx context.Context, r *request) (*instanceView, error) {
	id := r.PathValue("id")
	status, err := a.config.Client.Get(ctx, id, r.readOptions()...)
	if err != nil {
		return nil, err
	}
	v := a.viewOf(status)
	info := replay.PayloadInfo{Kind: "orchestration", Name: status.Name, Part: "status"}
	v.CustomStatus = a.payloadOf(info, true, status.CustomStatus)
	if status.State == cluster.Completed {
		info.Part = "output"
		v.Output = a.payloadOf(info, true, status.Output)
	}
	executions, err := a.config.Client.Executions(ctx, id, r.readOptions()...)
	for _, x := range executions {
		v.Executions = append(v.Executions, executionView{x.Number, x.Version, x.State, x.Events, timeOf(x.StartedAt), timeOf(x.UpdatedAt)})
	}
	return v, err
}

// childrenAnswer is a page of the instances that an instance has started as children.
type childrenAnswer struct {
	Children []*instanceView `json:"children"`
	Next     string          `json:"next"`
}

func (a *instanceAPI) listChildren(ctx context.Context, r *request) (*childrenAnswer, error) {
	page, err := a.pageOf(ctx, r, cluster.Filter{ParentID: r.PathValue("id")})
	if err != nil {
		return nil, err
	}
	return &childrenAnswer{page.Instances, page.Next}, nil
}

func (a *instanceAPI) queryInstance(ctx context.Context, r *request) (*outputAnswer, error) {
	input, name := json.RawMessage(r.FormValue("input")), r.PathValue("name")
	if len(input) > 0 && !json.Valid(input) {
		return nil, &replay.InvalidError{Field: "input", Reason: "must be JSON"}
	}
	handle := replay.Query[json.RawMessage, json.RawMessage](name)
	value, err := cluster.Query(ctx, a.config.Client, r.PathValue("id"), handle, orNull(input))
	if err != nil {
		return nil, err
	}
	return &outputAnswer{a.valueOf(replay.PayloadInfo{Kind: "query", Name: name, Part: "result"}, value)}, nil
}

// kvAnswer holds the entries of a key-value map of an instance.
type kvAnswer struct {
	Values map[string]*payload `json:"values"`
}

func (a *instanceAPI) readKV(ctx context.Context, r *request) (*kvAnswer, error) {
	name := r.PathValue("name")
	entries, err := cluster.ReadKV(ctx, a.config.Client, r.PathValue("id"), replay.KV[json.RawMessage](name), r.readOptions()...)
	if err != nil {
		return nil, err
	}
	answer := &kvAnswer{Values: map[string]*payload{}}
	for key, value := range entries {
		answer.Values[key] = a.valueOf(replay.PayloadInfo{Kind: "key-value map", Name: name, Part: "value"}, value)
	}
	return answer, nil
}
