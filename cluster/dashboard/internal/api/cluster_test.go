package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var (
	greet   = replay.Activity[string, string]("greet")
	welcome = replay.Orchestration[string, string]("welcome")
	word    = replay.Event[string]("word")
)

// welcomeDefinitions is an orchestration in version 2 that waits for an event, and an activity.
func welcomeDefinitions() []replay.Definition {
	return []replay.Definition{
		greet.Bind(func(_ context.Context, name string) (string, error) { return "hello " + name, nil }),
		welcome.Bind(func(ctx *replay.Context, name string) (string, error) {
			if _, err := word.Wait(ctx); err != nil {
				return "", err
			}
			return greet.Call(ctx, name)
		}, replay.Version("2")),
	}
}

// newAPI returns the API of a client, for a user.
func newAPI(client *cluster.Client) *API {
	return New(Config{Client: client, StreamsMax: 10, TopicsMax: 10, Principal: func(*http.Request) (string, error) { return "alice", nil }})
}

// do makes a call.
func do(t *testing.T, of *API, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Tenuto-Request", "1")
	w := httptest.NewRecorder()
	of.ServeHTTP(w, r)
	return w
}

// fetch makes a call and decodes its answer.
func fetch[A any](t *testing.T, of *API, method, path, body string, wantStatus int) (answer A) {
	t.Helper()
	w := do(t, of, method, path, body)
	if w.Code != wantStatus {
		t.Fatalf("%s %s: status %d: %s", method, path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, w.Body)
	}
	return answer
}

// The cluster shows what every node reports of itself, and the overview the rates of all.
func TestCluster_ShowsReports(t *testing.T) {
	c := clustertest.New(t, 3, clustertest.Definitions(welcomeDefinitions()...))
	if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, "w", "x"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		c.Eventually(fmt.Sprintf("node %d is ready", i), func() bool { return c.Node(i).Health().Ready() == nil })
	}
	a := newAPI(c.Client(0))
	var shown clusterAnswer
	c.Eventually("every member answers the leader and this node", func() bool {
		shown = fetch[clusterAnswer](t, a, "GET", "/cluster", "", http.StatusOK)
		return len(shown.Nodes) == 3 && !slices.ContainsFunc(shown.Nodes, func(n *nodeView) bool {
			return n.Liveness != cluster.MemberAlive || n.Report == nil || !*n.Report || n.NotReady != ""
		})
	})
	if shown.Settings == nil {
		t.Error("no settings")
	}
	leaders := 0
	for _, n := range shown.Nodes {
		if n.UptimeSeconds < 0 || n.Slots == 0 {
			t.Errorf("%+v", n)
		}
		for _, p := range n.Partitions {
			if p.Term == 0 || p.Applied == 0 || p.Leader == "" || p.LagSeconds == nil || p.ClockOffsetSeconds == nil || p.Disk.WriteP99Seconds == 0 {
				t.Errorf("%s: %+v", n.ID, p)
			}
		}
		leaders += len(n.LeaderOf)
	}
	if leaders != len(shown.Nodes[0].Partitions) {
		t.Errorf("%d partitions are led", leaders)
	}
	overview := fetch[overviewAnswer](t, a, "GET", "/overview", "", http.StatusOK)
	if r := overview.Rates; r == nil || r.StepSeconds != 10 || len(r.Started) != 360 || sumAll(r.Started) != 1 || sumAll(r.Ended) != 0 {
		t.Errorf("rates: %+v", r)
	}
}

// A node and an instance show replicas that are not used.
func TestViews_ShowQuarantines(t *testing.T) {
	node := memberViewOf(cluster.Member{NodeID: "n2", Quarantined: 2, Stopped: 1})
	if node.Quarantined != 2 || node.Stopped != 1 {
		t.Errorf("%+v", node)
	}
	if v := new(API).viewOf(&cluster.Status{InstanceID: "i", Quarantined: []string{"n2"}}); len(v.Quarantined) != 1 || v.Quarantined[0] != "n2" {
		t.Errorf("%+v", v)
	}
}

func sumAll(counts []uint64) (sum uint64) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

// A node that does not answer is shown, and needs attention, and the overview does not wait for it.
func TestCluster_NodeThatDoesNotAnswer(t *testing.T) {
	c := clustertest.New(t, 3, clustertest.Definitions(welcomeDefinitions()...))
	leader := c.Leader()
	a, gone := newAPI(c.Client(leader)), (leader+1)%3
	c.Kill(gone)
	shown := fetch[clusterAnswer](t, a, "GET", "/cluster", "", http.StatusOK)
	if n := shown.Nodes[gone]; len(shown.Nodes) != 3 || n.Report == nil || *n.Report || n.ReportError == "" || len(n.Partitions) != 0 {
		t.Errorf("%+v", n)
	}
	overview := fetch[overviewAnswer](t, a, "GET", "/overview", "", http.StatusOK)
	want := fmt.Sprintf("Node n%d does not answer", gone)
	if !slices.ContainsFunc(overview.Attention, func(v attentionView) bool { return v.Kind == "member" && v.Title == want }) {
		t.Errorf("attention: %+v", overview.Attention)
	}
}

// What of a node needs attention.
func TestNodeView_Attention(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	soon, late, yes, no := now.Add(13*24*time.Hour), now.Add(15*24*time.Hour), true, false
	for want, v := range map[string]*nodeView{
		"":                                       {Report: &yes, nodeReport: nodeReport{CertificateExpires: &late}},
		"certificate of node n expires soon":     {Report: &yes, nodeReport: nodeReport{CertificateExpires: &soon}},
		"Node n does not answer":                 {Report: &no},
		"Node n is not ready":                    {Report: &yes, nodeReport: nodeReport{NotReady: "behind"}},
		"disk of node n is full":                 {nodeReport: nodeReport{NotReady: "x", Partitions: []partitionView{{Disk: diskView{Full: true}}}}},
		"A write on the disk of node n hangs":    {nodeReport: nodeReport{NotReady: "x", Partitions: []partitionView{{Disk: diskView{HangsSeconds: 1}}}}},
		"Node n does not answer (by the leader)": {Liveness: cluster.MemberUnreachable},
	} {
		v.ID = "n"
		found := v.attention(now)
		want, _, _ = strings.Cut(want, " (")
		if (want == "") != (len(found) == 0) || len(found) > 1 || len(found) == 1 && !strings.Contains(found[0].Title, want) {
			t.Errorf("%+v; want %q", found, want)
		}
	}
}

// Backups need attention if they fail or are late, by what the nodes know that have caught up.
func TestBackupAttention(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	made := func(ago time.Duration, failures uint64) *nodeView {
		at := now.Add(-ago)
		return &nodeView{nodeReport: nodeReport{Backups: &backupsView{IntervalSeconds: 3600, Latest: &at, Failures: failures, Error: "disk full"}}}
	}
	none := &nodeView{nodeReport: nodeReport{Backups: &backupsView{IntervalSeconds: 3600}}}
	for want, nodes := range map[string][]*nodeView{
		"":                  {new(nodeView), none, made(5*time.Hour, 2), made(time.Hour, 0)},
		"fail":              {made(time.Hour, 2), none},
		"was made for long": {none, made(4*time.Hour, 0), made(5*time.Hour, 3)},
	} {
		found := backupAttention(nodes, now)
		if (want == "") != (len(found) == 0) || len(found) > 1 || len(found) == 1 && !strings.Contains(found[0].Title, want) {
			t.Errorf("%+v; want %q", found, want)
		}
	}
}

// Rates of nodes whose wall clocks are a step apart are added where they belong.
func TestSumRates_AlignsSteps(t *testing.T) {
	const step = int64(10 * time.Second)
	report := func(end int64, started ...uint32) access.NodeReport {
		empty := make([]uint32, len(started))
		return access.NodeReport{Report: &clusterpb.NodeReport{Rates: &clusterpb.RateReport{End: end * step, Step: step, Started: started, Ended: empty, Failed: empty}}}
	}
	sum := sumRates([]access.NodeReport{report(7, 1, 2, 3), {}, report(8, 10, 20, 30)})
	if !slices.Equal(sum.Started, []uint64{12, 23, 30}) || !sum.End.Equal(time.Unix(80, 0)) {
		t.Errorf("%+v", sum)
	}
	if sumRates([]access.NodeReport{{}}) != nil {
		t.Error("rates without reports")
	}
}

// The code shows which nodes have it, how many instances need it, and what no node has.
func TestCode_ShowsNodesAndInstances(t *testing.T) {
	c := clustertest.New(t, 3, clustertest.Definitions(welcomeDefinitions()...))
	for i := range 3 {
		if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, fmt.Sprint("w", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := cluster.Send(t.Context(), c.Client(0), "w0", word, "go"); err != nil {
		t.Fatal(err)
	}
	a := newAPI(c.Client(0))
	var code codeAnswer
	c.Eventually("one of three has ended, and all nodes are workers of the leader and have answered", func() bool {
		code = fetch[codeAnswer](t, a, "GET", "/code", "", http.StatusOK)
		return len(code.Definitions) == 1 && code.Definitions[0].Instances == 2 && len(code.Definitions[0].Nodes) == 3 && len(code.Workers) == 3
	})
	if d := code.Definitions[0]; d.Name != "welcome" || d.Version != "2" || !slices.Equal(d.Nodes, []string{"n0", "n1", "n2"}) {
		t.Errorf("%+v", d)
	}
	if len(code.Activities) != 1 || code.Activities[0].Name != "greet" || len(code.Activities[0].Nodes) != 3 || code.Omitted != 0 {
		t.Errorf("%+v", code)
	}
}

// Activities that wait are shown by their tags, with those of all nodes together.
func TestCode_ShowsQueuesByTag(t *testing.T) {
	tagged := replay.Orchestration[string, string]("tagged")
	c := clustertest.New(t, 1, clustertest.Definitions(append(welcomeDefinitions(),
		tagged.Bind(func(ctx *replay.Context, tag string) (string, error) { return greet.Call(ctx, "x", replay.Tag(tag)) }))...))
	for i, tag := range []string{"gpu", "arm", "gpu"} {
		if _, err := cluster.StartRun(t.Context(), c.Client(0), tagged, fmt.Sprint("t", i), tag); err != nil {
			t.Fatal(err)
		}
	}
	a, want := newAPI(c.Client(0)), []queueView{{"arm", 1}, {"gpu", 2}}
	c.Eventually("all wait", func() bool {
		code := fetch[codeAnswer](t, a, "GET", "/code", "", http.StatusOK)
		return len(code.Activities) == 1 && code.Activities[0].Queued == 3 && slices.Equal(code.Activities[0].Queues, want)
	})
	index := newCodeIndex()
	for _, queues := range [][]*clusterpb.TagQueue{{{Tag: "b", Queued: 1}}, {{Tag: "", Queued: 2}, {Tag: "b", Queued: 3}}} {
		index.addActivity("n", &clusterpb.ActivityReport{Name: "a", Queues: queues})
	}
	if queues := index.answer().Activities[0].Queues; !slices.Equal(queues, []queueView{{"", 2}, {"b", 4}}) {
		t.Errorf("of two nodes: %v", queues)
	}
}

// Code that no node has is known only if every node has reported all of its code.
func TestCodeIndex_Unserved(t *testing.T) {
	node := func(name string, versions ...string) access.NodeReport {
		r := &clusterpb.NodeReport{Node: name}
		for _, v := range versions {
			r.Orchestrations = append(r.Orchestrations, &clusterpb.OrchestrationCode{Name: "o", Version: v})
		}
		return access.NodeReport{Node: name, Report: r}
	}
	index := func(reports ...access.NodeReport) *codeAnswer {
		code := newCodeIndex()
		for _, r := range reports {
			code.add(r)
		}
		code.count("o", "1", 5)
		code.count("o", "2", 7)
		code.count("tenuto.bulk", "", 1)
		return code.answer()
	}
	answer := index(node("a", "1"), node("b", "1", "3"))
	if !slices.Equal(answer.Unserved, []unservedView{{"o", "2", 7}}) || len(answer.Definitions) != 2 || answer.Definitions[0].Instances != 5 {
		t.Errorf("%+v", answer)
	}
	if answer := index(node("a", "1"), access.NodeReport{Node: "b"}); len(answer.Unserved) != 0 || !slices.Equal(answer.Unknown, []string{"b"}) {
		t.Errorf("a node has not reported: %+v", answer)
	}
}

// A transfer makes another node lead one partition.
func TestTransferPartition(t *testing.T) {
	c := clustertest.New(t, 3)
	a := newAPI(c.Client(0))
	to := fmt.Sprintf("n%d", (c.Leader()+1)%3)
	// On a busy machine Raft may give a transfer up, or elect another leader after it.
	c.Eventually(to+" leads, and the transfer can be repeated", func() bool {
		body := fmt.Sprintf(`{"to": %q, "reason": "test"}`, to)
		for range 2 {
			if w := do(t, a, "POST", "/cluster/partitions/0/transfer", body); w.Code != http.StatusOK || c.Node(0).Leader() != to {
				return false
			}
		}
		return true
	})
	for path, want := range map[string]int{"/cluster/partitions/9/transfer": http.StatusBadRequest, "/cluster/partitions/x/transfer": http.StatusBadRequest} {
		fetch[errorAnswer](t, a, "POST", path, `{}`, want)
	}
	if e := fetch[errorAnswer](t, a, "POST", "/cluster/partitions/0/transfer", `{"to": "n9"}`, http.StatusNotFound); e.Error.Code != "not_member" {
		t.Errorf("%+v", e)
	}
}

// A drain moves what a node leads; a dry run only says what would be moved.
func TestDrainNode(t *testing.T) {
	c := clustertest.New(t, 3)
	a := newAPI(c.Client(0))
	drain := func(leader, body string) (answer drainAnswer, ok bool) {
		w := do(t, a, "POST", "/cluster/nodes/"+leader+"/drain", body)
		ok = w.Code == http.StatusOK && json.Unmarshal(w.Body.Bytes(), &answer) == nil && answer.Moved != nil
		return answer, ok
	}
	// The others must have caught up. On a busy machine another leader may be elected meanwhile.
	c.Eventually("a leader is drained, and again", func() bool {
		leader := fmt.Sprintf("n%d", c.Leader())
		planned, ok := drain(leader, `{"dry_run": true}`)
		if !ok || len(planned.Moved) != 1 || planned.Moved[0].To == leader || c.Node(0).Leader() != leader {
			return false
		}
		moved, ok := drain(leader, `{"reason": "test"}`)
		if !ok || len(moved.Moved) != 1 || moved.Moved[0].To == leader {
			return false
		}
		again, ok := drain(leader, `{}`)
		return ok && len(again.Moved) == 0
	})
	if e := fetch[errorAnswer](t, a, "POST", "/cluster/nodes/n9/drain", `{}`, http.StatusNotFound); e.Error.Code != "not_member" {
		t.Errorf("%+v", e)
	}
}

// What a job was refused has a call of its own, with pages; the job says how much there is.
func TestJob_Refusals(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	for _, id := range []string{"w1", "w2", "w3"} {
		if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, id, "x"); err != nil {
			t.Fatal(err)
		}
	}
	a := newAPI(c.Client(0))
	fetch[jobAnswer](t, a, "POST", "/bulk", `{"id":"j","action":"purge","filter":"name=welcome"}`, http.StatusOK)
	var job jobView
	c.Eventually("the job has ended", func() bool {
		job = fetch[jobView](t, a, "GET", "/jobs/j", "", http.StatusOK)
		return job.State != "running"
	})
	if job.Refused != 3 || job.RefusalsKept != 3 {
		t.Fatalf("%+v", job)
	}
	first := fetch[refusalsAnswer](t, a, "GET", "/jobs/j/refusals?limit=2", "", http.StatusOK)
	rest := fetch[refusalsAnswer](t, a, "GET", "/jobs/j/refusals?after="+first.Next, "", http.StatusOK)
	if all := append(first.Refusals, rest.Refusals...); len(first.Refusals) != 2 || len(all) != 3 || all[2].Error.Message == "" || rest.Next != "" {
		t.Errorf("%+v, %+v", first, rest)
	}
	fetch[errorAnswer](t, a, "GET", "/jobs/j?after=x", "", http.StatusBadRequest)
}

// A member is shown with its role, the role that was set, and its zone.
func TestCluster_ShowsRoles(t *testing.T) {
	c := clustertest.New(t, 3, clustertest.InMemory(), clustertest.Definitions(welcomeDefinitions()...), clustertest.Configure(func(i int, config *cluster.Config) {
		config.Zone = fmt.Sprint("zone-", i)
	}))
	if err := operate.SetRole(t.Context(), c.Client(0), "n2", operate.RoleStandby, "slow disk"); err != nil {
		t.Fatal(err)
	}
	of := newAPI(c.Client(0))
	c.Eventually("the roles and zones are shown", func() bool {
		nodes := fetch[clusterAnswer](t, of, http.MethodGet, "/cluster", "", http.StatusOK).Nodes
		return len(nodes) == 3 && nodes[1].Role == "voter" && nodes[1].PinnedRole == "" && *nodes[1].Voter && nodes[1].Zone == "zone-1" &&
			nodes[2].Role == "standby" && nodes[2].PinnedRole == "standby" && !*nodes[2].Voter && nodes[2].Zone == "zone-2"
	})
}
