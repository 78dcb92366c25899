package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
)

// overviewAnswer is what an operator looks at first.
type overviewAnswer struct {
	Counts    []stateCount    `json:"counts"`
	Attention []attentionView `json:"attention"`
	Cluster   *clusterAnswer  `json:"cluster,omitempty"` // absent without the right to see members
}

type stateCount struct {
	State string `json:"state"`
	Count uint64 `json:"count"`
}

// attentionView is something that an operator may have to act on.
type attentionView struct {
	Kind       string     `json:"kind"`
	Title      string     `json:"title"`
	Count      uint64     `json:"count,omitempty"`
	Filter     string     `json:"filter,omitempty"` // of the instances
	InstanceID string     `json:"instance_id,omitempty"`
	Since      *time.Time `json:"since,omitempty"`
	Text       string     `json:"text,omitempty"`
}

func (a *API) showOverview(ctx context.Context, r *request) (any, error) {
	answer, err := a.overviewOf(ctx)
	if err == nil && r.seesMembers() {
		err = a.addCluster(ctx, answer)
	}
	return answer, err
}

// seesMembers reports whether the user may see the members of the cluster.
func (r *request) seesMembers() bool { return r.authorize(cluster.ActionSeeMembers, "") == nil }

// overview is showOverview for those who may see members.
func (a *API) overview(ctx context.Context) (any, error) {
	answer, err := a.overviewOf(ctx)
	if err == nil {
		err = a.addCluster(ctx, answer)
	}
	return answer, err
}

func (a *API) overviewOf(ctx context.Context) (*overviewAnswer, error) {
	groups, err := a.config.Client.CountBy(ctx, cluster.Filter{}, []string{"state"}, cluster.Stale())
	if err != nil {
		return nil, err
	}
	answer := &overviewAnswer{Counts: []stateCount{}, Attention: []attentionView{}}
	for _, g := range groups {
		answer.Counts = append(answer.Counts, stateCount{g.Values[0], g.Count})
	}
	for _, state := range []cluster.State{cluster.Stalled, cluster.Hung, cluster.WaitingForCode} {
		answer.addState(state)
	}
	if err := a.addFirst(ctx, answer, "failing", "failing>=3 order=created", "Activities fail again and again"); err != nil {
		return nil, err
	}
	return answer, a.addFirst(ctx, answer, "oldest_waiting", "state=running order=updated", "The longest without progress")
}

// addState adds the instances in a state that needs someone to act.
func (o *overviewAnswer) addState(state cluster.State) {
	at := slices.IndexFunc(o.Counts, func(c stateCount) bool { return c.State == string(state) })
	if at < 0 || o.Counts[at].Count == 0 {
		return
	}
	o.Attention = append(o.Attention, attentionView{
		Kind: string(state), Title: fmt.Sprintf("Instances are %s", state), Count: o.Counts[at].Count,
		Filter: filter.Format(cluster.Filter{States: []cluster.State{state}}),
	})
}

// addFirst adds the first instance of a list, if there is one.
func (a *API) addFirst(ctx context.Context, o *overviewAnswer, kind, text, title string) error {
	f, err := filter.Parse(text, time.Now())
	if err != nil {
		return err
	}
	page, err := a.config.Client.List(ctx, f, "", 1, cluster.Stale())
	if err != nil || len(page.Instances) == 0 {
		return err
	}
	first := page.Instances[0]
	view := attentionView{Kind: kind, Title: title, Filter: text, Text: first.InstanceID, Since: timeOf(first.UpdatedAt)}
	if kind == "oldest_waiting" {
		view.Filter, view.InstanceID, view.Text = "", first.InstanceID, first.Name+" "+first.InstanceID
	}
	o.Attention = append(o.Attention, view)
	return nil
}

// addCluster adds the members, and what is wrong with them.
func (a *API) addCluster(ctx context.Context, o *overviewAnswer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	if o.Cluster, err = a.members(ctx); err != nil {
		o.Attention = append(o.Attention, attentionView{Kind: "member", Title: "The members cannot be read", Text: err.Error()})
		o.Cluster, err = nil, nil
		return nil
	}
	for _, n := range o.Cluster.Nodes {
		if n.Liveness == cluster.MemberUnreachable {
			o.Attention = append(o.Attention, attentionView{Kind: "member", Title: fmt.Sprintf("Node %s does not answer", n.ID)})
		}
	}
	return nil
}
