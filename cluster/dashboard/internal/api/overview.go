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

func (a *clusterAPI) showOverview(ctx context.Context, r *request) (*overviewAnswer, error) {
	answer, err := a.overviewOf(ctx, schedulesSoon)
	if err == nil && r.seesMembers() {
		a.addCluster(ctx, answer)
	}
	return answer, err
}

// seesMembers reports whether the user may see the members of the cluster.
func (r *request) seesMembers() bool { return r.authorize(cluster.ActionSeeMembers, "") == nil }

// overview is showOverview for those who may see members, and do not wait for it.
func (a *clusterAPI) overview(ctx context.Context) (*overviewAnswer, error) {
	answer, err := a.overviewOf(ctx, overviewTimeout)
	if err == nil {
		a.addCluster(ctx, answer)
	}
	return answer, err
}

// overviewOf returns an overview without the nodes. It waits for schedules for at most
// schedulesWait.
func (a *clusterAPI) overviewOf(ctx context.Context, schedulesWait time.Duration) (*overviewAnswer, error) {
	groups, err := a.client.CountBy(ctx, cluster.Filter{}, []string{"state"}, cluster.Stale())
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
	if err := a.addFailing(ctx, answer); err != nil {
		return nil, err
	}
	if err := a.addOldest(ctx, answer); err != nil {
		return nil, err
	}
	answer.Attention = append(answer.Attention, a.schedules.attention(ctx, schedulesWait)...)
	return answer, nil
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

// addCluster adds the members, the rates that they report, and what is wrong with them.
func (a *clusterAPI) addCluster(ctx context.Context, o *overviewAnswer) {
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
	o.Attention = append(o.Attention, backupAttention(found.Nodes, time.Now())...)
}

// backupAttention returns what is wrong with the scheduled backups, which is the same on every node
// that has caught up.
func backupAttention(nodes []*nodeView, now time.Time) []attentionView {
	var newest *backupsView
	for _, n := range nodes {
		b := n.Backups
		if b != nil && b.IntervalSeconds > 0 && (newest == nil || b.Latest != nil && (newest.Latest == nil || b.Latest.After(*newest.Latest))) {
			newest = b
		}
	}
	const kind = "backup"
	switch {
	case newest == nil:
	case newest.Failures > 0:
		return []attentionView{{Kind: kind, Title: "Scheduled backups fail", Text: newest.Error}}
	case newest.Latest != nil && now.Sub(*newest.Latest).Seconds() > 3*newest.IntervalSeconds:
		return []attentionView{{Kind: kind, Title: "No scheduled backup was made for long", Text: "since " + newest.Latest.Format(time.RFC3339)}}
	}
	return nil
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
