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
	// Rates and Cluster are absent without the right to see members.
	Rates   *ratesView     `json:"rates,omitempty"`
	Cluster *clusterAnswer `json:"cluster,omitempty"`
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
		a.addCluster(ctx, answer)
	}
	return answer, err
}

// seesMembers reports whether the user may see the members of the cluster.
func (r *request) seesMembers() bool { return r.authorize(cluster.ActionSeeMembers, "") == nil }

// overview is showOverview for those who may see members.
func (a *API) overview(ctx context.Context) (any, error) {
	answer, err := a.overviewOf(ctx)
	if err == nil {
		a.addCluster(ctx, answer)
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

// addCluster adds the members, the rates that they report, and what is wrong with them.
func (a *API) addCluster(ctx context.Context, o *overviewAnswer) {
	ctx, cancel := context.WithTimeout(ctx, overviewTimeout)
	defer cancel()
	found, err := a.nodes(ctx)
	if err != nil {
		o.Attention = append(o.Attention, attentionView{Kind: "member", Title: "The members cannot be read", Text: err.Error()})
		return
	}
	o.Cluster, o.Rates = found, sumRates(found.reports)
	for _, n := range found.Nodes {
		o.Attention = append(o.Attention, n.attention(time.Now())...)
	}
}

// certificateSoon is how long before its end a certificate needs attention.
const certificateSoon = 14 * 24 * time.Hour

// attention returns what is wrong with a node.
func (v *nodeView) attention(now time.Time) (all []attentionView) {
	add := func(kind, title, text string) {
		all = append(all, attentionView{Kind: kind, Title: fmt.Sprintf(title, v.ID), Text: text})
	}
	full, hangs := false, false
	for _, p := range v.Partitions {
		full, hangs = full || p.Disk.Full, hangs || p.Disk.HangsSeconds > 0
	}
	switch {
	case v.Liveness == cluster.MemberUnreachable, v.Report != nil && !*v.Report:
		add("member", "Node %s does not answer", "")
	case full:
		add("disk", "The disk of node %s is full", "")
	case hangs:
		add("disk", "A write on the disk of node %s hangs", "")
	case v.NotReady != "":
		add("member", "Node %s is not ready", v.NotReady)
	}
	if expires := v.CertificateExpires; expires != nil && expires.Sub(now) < certificateSoon {
		add("certificate", "The certificate of node %s expires soon", "")
		all[len(all)-1].Text = "at " + expires.Format(time.RFC3339)
	}
	return all
}
