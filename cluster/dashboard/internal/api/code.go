package api

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// codeAnswer is the code that nodes have, and its use.
type codeAnswer struct {
	Definitions []*definitionView `json:"definitions"`
	Unserved    []unservedView    `json:"unserved"` // open instances whose code no node has
	Activities  []*activityView   `json:"activities"`
	Workers     []workerView      `json:"workers"`
	// Omitted counts definitions that nodes with very much code do not list.
	Omitted int `json:"omitted,omitempty"`
	// Unknown are the nodes that have not reported: they may have more code.
	Unknown []string `json:"unknown,omitempty"`
}

// definitionView is an orchestration in a version. Nodes of every build have those whose names
// begin with "tenuto.", and they are not shown.
type definitionView struct {
	Kind      string   `json:"kind"` // "orchestration"
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Nodes     []string `json:"nodes"`
	Instances uint64   `json:"instances"` // that have not ended
}

type unservedView struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	Instances uint64 `json:"instances"`
}

// activityView is an activity. Its numbers are those of the whole cluster, but limit is of each
// node: the largest.
type activityView struct {
	Name    string   `json:"name"`
	Nodes   []string `json:"nodes"` // that have its code
	Rate    float64  `json:"rate,omitempty"`
	Burst   uint32   `json:"burst,omitempty"`
	Limit   uint32   `json:"limit,omitempty"`
	Paused  bool     `json:"paused,omitempty"`
	Open    uint64   `json:"open"`
	Queued  uint64   `json:"queued"`
	Running uint64   `json:"running"`
	// Queues are the longest of the queues that queued consists of, in order of tags.
	Queues []queueView `json:"queues,omitempty"`
}

// queueView is the queue of an activity and a tag.
type queueView struct {
	Tag    string `json:"tag"` // of the workers that may run them; "": any worker
	Queued uint64 `json:"queued"`
}

type workerView struct {
	Node  string   `json:"node"`
	Slots uint32   `json:"slots"`
	Free  uint32   `json:"free"`
	Tags  []string `json:"tags,omitempty"`
}

func (a *clusterAPI) showCode(ctx context.Context, _ *request) (*codeAnswer, error) {
	return a.code(ctx)
}

func (a *clusterAPI) code(ctx context.Context) (*codeAnswer, error) {
	internals, err := a.client.Internal(access.Key{})
	if err != nil {
		return nil, err
	}
	reports, err := internals.Reports(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := a.client.CountBy(ctx, cluster.Filter{States: instances.OpenStates()}, []string{"name", "version"}, cluster.Stale())
	if err != nil {
		return nil, err
	}
	code := newCodeIndex()
	for _, r := range reports {
		code.add(r)
	}
	for _, g := range groups {
		code.count(g.Values[0], g.Values[1], g.Count)
	}
	return code.answer(), nil
}

// nameVersion names an orchestration in a version.
type nameVersion struct{ name, version string }

// codeIndex collects the code of nodes.
type codeIndex struct {
	definitions map[nameVersion]*definitionView
	activities  map[string]*activityView
	collected   codeAnswer
}

func newCodeIndex() *codeIndex {
	return &codeIndex{
		make(map[nameVersion]*definitionView), make(map[string]*activityView),
		codeAnswer{Definitions: []*definitionView{}, Unserved: []unservedView{}, Activities: []*activityView{}, Workers: []workerView{}},
	}
}

// add adds the code of a node.
func (c *codeIndex) add(r access.NodeReport) {
	if r.Report == nil {
		c.collected.Unknown = append(c.collected.Unknown, r.Node)
		return
	}
	for _, o := range r.Report.Orchestrations {
		key := nameVersion{o.Name, o.Version}
		if c.definitions[key] == nil {
			c.definitions[key] = &definitionView{Kind: "orchestration", Name: o.Name, Version: o.Version}
		}
		c.definitions[key].Nodes = append(c.definitions[key].Nodes, r.Node)
	}
	for _, activity := range r.Report.Activities {
		c.addActivity(r.Node, activity)
	}
	c.collected.Omitted += int(r.Report.OrchestrationsOmitted + r.Report.ActivitiesOmitted)
	c.collected.Workers = append(c.collected.Workers, workerView{r.Node, r.Report.Slots, r.Report.FreeSlots, r.Report.Tags})
}

func (c *codeIndex) addActivity(node string, r *clusterpb.ActivityReport) {
	if strings.HasPrefix(r.Name, schedules.ReservedPrefix) {
		return
	}
	v := c.activities[r.Name]
	if v == nil {
		v = &activityView{Name: r.Name, Nodes: []string{}}
		c.activities[r.Name] = v
	}
	if r.HasCode {
		v.Nodes = append(v.Nodes, node)
	}
	v.Rate, v.Burst, v.Limit = max(v.Rate, r.Rate), max(v.Burst, r.Burst), max(v.Limit, r.Limit)
	v.Paused = v.Paused || r.Paused
	for _, q := range r.Queues {
		v.addQueue(q)
	}
	v.Open, v.Queued, v.Running = v.Open+uint64(r.Open), v.Queued+uint64(r.Queued), v.Running+uint64(r.Running)
}

// addQueue adds a queue of a node.
func (v *activityView) addQueue(q *clusterpb.TagQueue) {
	at, found := slices.BinarySearchFunc(v.Queues, q.Tag, func(of queueView, tag string) int { return cmp.Compare(of.Tag, tag) })
	if !found {
		v.Queues = slices.Insert(v.Queues, at, queueView{Tag: q.Tag})
	}
	v.Queues[at].Queued += uint64(q.Queued)
}

// count adds the open instances of an orchestration in a version.
func (c *codeIndex) count(name, version string, instances uint64) {
	if strings.HasPrefix(name, schedules.ReservedPrefix) {
		return
	}
	if served := c.definitions[nameVersion{name, version}]; served != nil {
		served.Instances += instances
		return
	}
	c.collected.Unserved = append(c.collected.Unserved, unservedView{name, version, instances})
}

// answer returns what was collected. While a node has not told all its code, nothing is unserved
// for certain.
func (c *codeIndex) answer() *codeAnswer {
	answer := &c.collected
	if answer.Omitted > 0 || len(answer.Unknown) > 0 {
		answer.Unserved = []unservedView{}
	}
	answer.Definitions = slices.SortedFunc(maps.Values(c.definitions), func(a, b *definitionView) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	answer.Activities = slices.SortedFunc(maps.Values(c.activities), func(a, b *activityView) int { return cmp.Compare(a.Name, b.Name) })
	return answer
}
