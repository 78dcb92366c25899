package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

var (
	probe       = replay.Orchestration[string, string]("probe")
	failsOften  = replay.Activity[int, int]("fails-often")
	probeTenant = replay.Attribute[string]("tenant")
	errDown     = replay.WithCode("down", errors.New("it is down"))
)

// probeBody does what a text says: it waits in one way or ends in one way.
func probeBody(ctx *replay.Context, how string) (string, error) {
	kind, value, _ := strings.Cut(how, " ")
	switch kind {
	case "event":
		return word.Wait(ctx)
	case "timer":
		hours := 0
		fmt.Sscan(value, &hours)
		return "", ctx.Sleep(time.Duration(hours) * time.Hour)
	case "child":
		return waiter.Call(ctx, "", replay.ChildID(value))
	case "fails":
		return "", errDown
	case "retries":
		_, err := failsOften.Call(ctx, 1, replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour}))
		return "", err
	case "tenant":
		if err := probeTenant.Set(ctx, value); err != nil {
			return "", err
		}
		return word.Wait(ctx)
	}
	return how, nil
}

func probeDefinitions() []replay.Definition {
	return append(definitions(), probe.Bind(probeBody), failsOften.Bind(func(context.Context, int) (int, error) { return 0, errDown }))
}

// listAll returns the IDs of all pages. It checks that no page has more than limit instances.
func listAll(t *testing.T, client *Client, filter Filter, limit int, options ...replay.Option) (ids []string) {
	t.Helper()
	for after := ""; ; {
		page, err := client.List(testContext(t), filter, after, limit, options...)
		if err != nil {
			t.Fatal(err)
		}
		if limit > 0 && len(page.Instances) > limit {
			t.Errorf("a page of %d has %d instances", limit, len(page.Instances))
		}
		for _, status := range page.Instances {
			ids = append(ids, status.InstanceID)
		}
		if after = page.Next; after == "" {
			return ids
		}
	}
}

// startProbes starts probes by ID and waits until each waits or has ended.
func startProbes(t *testing.T, client *Client, probes map[string]string) {
	t.Helper()
	ctx := testContext(t)
	for id, how := range probes {
		if _, err := StartRun(ctx, client, probe, id, how, Tags(map[string]string{"how": strings.Fields(how)[0]})); err != nil {
			t.Fatal(err)
		}
	}
	for id, how := range probes {
		eventually(t, id+" waits or has ended", func() bool {
			status, err := client.Get(ctx, id)
			if err != nil || status.Ended() {
				return err == nil
			}
			operations, err := client.Pending(ctx, id)
			return err == nil && len(operations) > 0 && (!strings.HasPrefix(how, "retries") || operations[0].FailedAttempts > 0)
		})
	}
}

// orderKeys are the times by which lists are sorted, by order.
var orderKeys = map[string]func(*Status) time.Time{
	"id":      func(*Status) time.Time { return time.Time{} },
	"created": func(s *Status) time.Time { return s.CreatedAt },
	"updated": func(s *Status) time.Time { return s.UpdatedAt },
	"ended":   func(s *Status) time.Time { return s.UpdatedAt },
}

// Other instances begin, end and are purged meanwhile. The others appear once in every order, on
// every client.
func TestList_PagesInEveryOrderWhileInstancesChange(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, probeDefinitions()...)
	client := f.anyNode().Client()
	probes := make(map[string]string)
	for i := range 30 {
		probes[fmt.Sprintf("s-%02d", i)] = []string{"event", "ends", "fails"}[i%3]
		probes[fmt.Sprintf("t-%02d", i)] = fmt.Sprint("timer ", 1+(i*7)%30)
	}
	startProbes(t, client, probes)
	remote := dialNodes(t, DialConfig{}, f.all()...)
	for _, node := range f.all() { // stale reads show all of it, too
		eventually(t, "every replica has all", func() bool {
			running, err := node.Client().Count(testContext(t), Filter{States: []State{Running}}, Stale())
			ended, endedErr := node.Client().Count(testContext(t), Filter{States: []State{Completed, Failed}}, Stale())
			return err == nil && endedErr == nil && running == 40 && ended == 20
		})
	}
	statuses := make(map[string]*Status)
	for id := range probes {
		status, err := client.Get(testContext(t), id)
		if err != nil {
			t.Fatal(err)
		}
		statuses[id] = status
	}

	ctx, stop := context.WithCancel(testContext(t))
	var changing sync.WaitGroup
	for worker := range 2 {
		changing.Go(func() {
			id := func(i int) string { return fmt.Sprintf("s-%02d-%d-%d", i%30, worker, i) }
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = Call(ctx, client, probe, id(i), "ends")
				_, _ = client.Purge(ctx, id(i-30)) // or lists would become longer and longer
			}
		})
	}
	defer changing.Wait()
	defer stop()
	for order, key := range orderKeys {
		for _, descending := range []bool{false, true} {
			var want []string
			for id, status := range statuses {
				if strings.HasPrefix(id, "s-") && (order != "ended" || status.Ended()) {
					want = append(want, id)
				}
			}
			slices.SortFunc(want, func(a, b string) int {
				return cmp.Or(key(statuses[a]).Compare(key(statuses[b])), strings.Compare(a, b))
			})
			if descending {
				slices.Reverse(want)
			}
			filter := Filter{IDPrefix: "s-", Order: order, Descending: descending}
			for name, read := range map[string]func(limit int) []string{
				"node":   func(limit int) []string { return listAll(t, client, filter, limit) },
				"remote": func(limit int) []string { return listAll(t, remote, filter, limit) },
				"stale":  func(limit int) []string { return listAll(t, f.all()[1].Client(), filter, limit, Stale()) },
			} {
				for _, limit := range []int{7, 1000} {
					got := slices.DeleteFunc(read(limit), func(id string) bool { return statuses[id] == nil })
					if !slices.Equal(got, want) {
						t.Errorf("order %s, descending %v, %s, by %d:\n%v\nwant\n%v", order, descending, name, limit, got, want)
					}
				}
			}
		}
	}
	var byTimer []string
	for hours := range 30 {
		for id, how := range probes {
			if how == fmt.Sprint("timer ", hours+1) {
				byTimer = append(byTimer, id)
			}
		}
	}
	if got := listAll(t, client, Filter{Order: "timer"}, 7); !slices.Equal(got, byTimer) {
		t.Errorf("by timer: %v; want %v", got, byTimer)
	}
	slices.Reverse(byTimer)
	if got := listAll(t, client, Filter{Order: "timer", Descending: true}, 4); !slices.Equal(got, byTimer) {
		t.Errorf("by timer, descending: %v; want %v", got, byTimer)
	}
}

// On the leaders, on each replica, and over the network.
func TestFilter_SelectsByEachField(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, probeDefinitions()...)
	client := f.anyNode().Client()
	before := time.Now()
	startProbes(t, client, map[string]string{
		"event": "event", "timer": "timer 3", "parent": "child kid", "failed": "fails", "done": "ends", "failing": "retries", "acme": "tenant acme",
	})
	after, never := time.Now().Add(time.Hour), before.Add(-time.Hour)
	if err := Send(testContext(t), client, "acme", replay.Event[string]("other"), "x"); err != nil {
		t.Fatal(err)
	}
	all := []string{"acme", "done", "event", "failed", "failing", "kid", "parent", "timer"}
	ended := []string{"done", "failed"}
	cases := map[string]struct {
		filter Filter
		want   []string
	}{
		"nothing":                 {Filter{}, all},
		"updated from":            {Filter{UpdatedFrom: after}, nil},
		"updated before":          {Filter{UpdatedBefore: after}, all},
		"ended from":              {Filter{EndedFrom: never}, ended},
		"ended before":            {Filter{EndedBefore: after}, ended},
		"ended long ago":          {Filter{EndedBefore: never}, nil},
		"error code":              {Filter{ErrorCode: "down"}, []string{"failed"}},
		"another error code":      {Filter{ErrorCode: "up"}, nil},
		"waiting for an activity": {Filter{WaitingKind: "activity", WaitingName: "fails-often"}, []string{"failing"}},
		"waiting for an event":    {Filter{WaitingKind: "event", WaitingName: word.Name()}, []string{"acme", "event", "kid"}},
		"waiting for a timer":     {Filter{WaitingKind: "timer"}, []string{"timer"}},
		"waiting for a child":     {Filter{WaitingKind: "child", WaitingName: waiter.Name()}, []string{"parent"}},
		"waiting for a name":      {Filter{WaitingName: "fails-often"}, []string{"failing"}},
		"waiting since":           {Filter{WaitingKind: "timer", WaitingFrom: never}, []string{"timer"}},
		"waiting for long":        {Filter{WaitingBefore: never}, nil},
		"failing":                 {Filter{FailingAttempts: 1}, []string{"failing"}},
		"failing twice":           {Filter{FailingAttempts: 2}, nil},
		"failing with a code":     {Filter{FailingCode: "down"}, []string{"failing"}},
		"failing with another":    {Filter{FailingAttempts: 1, FailingCode: "up"}, nil},
		"tag and attribute":       {Filter{Tags: map[string]string{"how": "tenant"}, Attributes: map[string]string{"tenant": "acme"}}, []string{"acme"}},
		"two fields":              {Filter{States: []State{Running}, WaitingKind: "event", IDPrefix: "e"}, []string{"event"}},
	}
	remote := dialNodes(t, DialConfig{}, f.all()...)
	for name, c := range cases {
		for reader, read := range map[string]func() []string{
			"node":   func() []string { return listAll(t, client, c.filter, 3) },
			"remote": func() []string { return listAll(t, remote, c.filter, 100) },
		} {
			if got := read(); !slices.Equal(got, c.want) {
				t.Errorf("%s, %s: %v; want %v", name, reader, got, c.want)
			}
		}
		for _, node := range f.all() {
			eventually(t, fmt.Sprintf("%s: %s shows the same", name, node.ID()), func() bool {
				n, err := node.Client().Count(testContext(t), c.filter, Stale())
				return err == nil && n == len(c.want) && slices.Equal(listAll(t, node.Client(), c.filter, 2, Stale()), c.want)
			})
		}
	}
}

func TestCountBy_AddsPartitions(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, probeDefinitions()...)
	client := f.anyNode().Client()
	probes := make(map[string]string)
	for i := range 24 {
		probes[fmt.Sprintf("c-%02d", i)] = []string{"event", "ends", "fails", "tenant a"}[i%4]
	}
	startProbes(t, client, probes)
	if _, err := Call(testContext(t), client, doubled, "other", 1); err != nil {
		t.Fatal(err)
	}
	remote := dialNodes(t, DialConfig{}, f.all()...)
	for by, want := range map[string]string{
		"state":             "[{[completed] 7} {[failed] 6} {[running] 12}]",
		"name state":        "[{[doubled completed] 1} {[probe completed] 6} {[probe failed] 6} {[probe running] 12}]",
		"error":             "[{[] 19} {[down] 6}]",
		"tag:how":           "[{[] 1} {[ends] 6} {[event] 6} {[fails] 6} {[tenant] 6}]",
		"attr:tenant":       "[{[] 19} {[a] 6}]",
		"version tag:none":  "[{[ ] 25}]",
		"attr:tenant state": "[{[ completed] 7} {[ failed] 6} {[ running] 6} {[a running] 6}]",
	} {
		for _, c := range []*Client{client, remote} {
			if got, err := c.CountBy(testContext(t), Filter{}, strings.Fields(by)); err != nil || fmt.Sprint(got) != want {
				t.Errorf("by %s: %v, %v; want %s", by, got, err, want)
			}
		}
	}
	if got, err := client.CountBy(testContext(t), Filter{States: []State{Failed}}, []string{"name"}); err != nil || fmt.Sprint(got) != "[{[probe] 6}]" {
		t.Errorf("failed ones: %v, %v", got, err)
	}
	for _, node := range f.all() {
		eventually(t, node.ID()+" counts the same", func() bool {
			got, err := node.Client().CountBy(testContext(t), Filter{IDPrefix: "c-"}, []string{"state"}, Stale())
			return err == nil && fmt.Sprint(got) == "[{[completed] 6} {[failed] 6} {[running] 12}]"
		})
	}
	if page, err := client.List(testContext(t), Filter{IDPrefix: "zz"}, "", 0); err != nil || page.Next != "" || len(page.Instances) > 0 {
		t.Errorf("an empty list: %+v, %v", page, err)
	}
}

func TestList_RejectsWrongValues(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	list := func(f Filter, after string) error { return errOf(client.List(ctx, f, after, 0)) }
	countBy := func(by ...string) error { return errOf(client.CountBy(ctx, Filter{}, by)) }
	for name, c := range map[string]struct {
		err   error
		texts []string
	}{
		"state":         {list(Filter{States: []State{"faild"}}, ""), []string{"filter by state", `"faild"`, "failed"}},
		"order":         {list(Filter{Order: "size"}, ""), []string{"order", `"size"`, "id, created, updated, ended, timer"}},
		"kind":          {list(Filter{WaitingKind: "signal"}, ""), []string{"filter by kind of operation", `"signal"`, "activity, event, timer, child"}},
		"timer's name":  {list(Filter{WaitingKind: "timer", WaitingName: "x"}, ""), []string{"filter by name of operation", `"x"`}},
		"attempts":      {list(Filter{FailingAttempts: -1}, ""), []string{"filter by failed attempts", "-1"}},
		"dimension":     {countBy("state", "sate"), []string{"dimension", `"sate"`, "state, name, version, error, tag:KEY, attr:KEY"}},
		"no key":        {countBy("tag:"), []string{"dimension", `"tag:"`}},
		"no dimension":  {countBy(), []string{"dimensions", "at least one"}},
		"dimensions":    {countBy(slices.Repeat([]string{"name"}, 9)...), []string{"dimensions", "9"}},
		"ID as place":   {list(Filter{Order: "created"}, "a-1"), []string{"after", `"a-1"`, `"created"`}},
		"other order":   {list(Filter{Order: "created"}, "-created~1~a"), []string{"after", `"-created~1~a"`}},
		"order by ID":   {list(Filter{}, "created~1~a"), []string{"after", "another order"}},
		"no time":       {list(Filter{Order: "created"}, "created~x~a"), []string{"after"}},
		"too long":      {list(Filter{ErrorCode: strings.Repeat("x", 1025)}, ""), []string{"filter by error code", "1025"}},
		"too many":      {list(Filter{States: slices.Repeat([]State{Failed}, 65)}, ""), []string{"filter by state", "65"}},
		"count's order": {errOf(client.Count(ctx, Filter{Order: "x"})), []string{"order"}},
	} {
		var invalid *replay.InvalidError
		if !errors.As(c.err, &invalid) {
			t.Errorf("%s: %v", name, c.err)
			continue
		}
		for _, text := range c.texts {
			if !strings.Contains(c.err.Error(), text) {
				t.Errorf("%s: %v lacks %q", name, c.err, text)
			}
		}
	}
}

// Five instances stall, five hang and five wait for code. Every replica shows them, and the next
// leader from its first answer on.
func TestConditions_SurviveTheLeader(t *testing.T) {
	t.Parallel()
	const many = 5
	var other atomic.Bool
	release := make(chan struct{})
	body := func(ctx *replay.Context, how string) (string, error) {
		if how == "stalls" && other.Load() {
			if err := replay.SetStatus(ctx, how); err != nil {
				return "", err
			}
		}
		got, err := word.Wait(ctx)
		if how == "hangs" && err == nil {
			<-release
		}
		return got, err
	}
	probed := replay.Orchestration[string, string]("probed")
	newer := probed.Bind(body, replay.Version("2"))
	f := &testCluster{t: t, nodes: make(map[string]*Node)}
	peers := loopbackPeers(t, 3)
	for i := range peers {
		config := peerConfig(t, peers, i, probed.Bind(body, replay.Version("1")))
		if i == 0 {
			config.Definitions = append(config.Definitions, newer)
		}
		config.Partitions, config.maintenanceInterval, config.HungAfter = 1, time.Hour, 50*time.Millisecond
		config.harness.HeartbeatTimeout = time.Second // no other node may begin to lead, on few processors either
		f.start(config)
	}
	t.Cleanup(func() { close(release) })
	ctx := testContext(t)
	first := peers[0].NodeID
	f.makeLeader(0, first)
	client := f.nodes[first].Client()
	eventually(t, "conditions may be recorded", func() bool { return f.nodes[first].partitions[0].journal.Protocol() == protocolVersion })
	for i := range many {
		for how, version := range map[string]string{"stalls": "1", "hangs": "1", "waits": "2"} {
			if _, err := StartRun(ctx, client, probed, fmt.Sprint(how, "-", i), how, replay.Version(version)); err != nil {
				t.Fatal(err)
			}
		}
	}
	other.Store(true)
	f.makeLeader(0, peers[1].NodeID)
	client = f.nodes[peers[1].NodeID].Client()
	sendCtx, stop := context.WithCancel(ctx)
	var sending sync.WaitGroup
	for i := range many {
		for _, how := range []string{"stalls", "hangs"} {
			sending.Go(func() { _ = Send(sendCtx, client, fmt.Sprint(how, "-", i), word, "x") })
		}
	}
	t.Cleanup(sending.Wait)
	t.Cleanup(stop)
	counts := func(node *Node, options ...replay.Option) string {
		groups, err := node.Client().CountBy(ctx, Filter{}, []string{"state"}, options...)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(groups)
	}
	const want = "[{[hung] 5} {[stalled] 5} {[waiting for code] 5}]"
	for _, node := range f.all() {
		eventually(t, node.ID()+" shows the conditions", func() bool { return counts(node, Stale()) == want })
	}
	agree := func(node *Node) {
		t.Helper()
		for state, prefix := range map[State]string{Stalled: "stalls-", Hung: "hangs-", WaitingForCode: "waits-"} {
			if got := listAll(t, node.Client(), Filter{States: []State{state}}, 0, Stale()); len(got) != many || !strings.HasPrefix(got[0], prefix) {
				t.Errorf("%s lists %v as %s", node.ID(), got, state)
			}
			if status, err := node.Client().Get(ctx, prefix+"0", Stale()); err != nil || status.State != state || (status.Mismatch != nil) != (state == Stalled) {
				t.Errorf("%s: %+v, %v", node.ID(), status, err)
			}
		}
	}
	for _, node := range f.all() {
		agree(node)
	}

	// The next leader lacks the second version, too. It retries what stalled or hung.
	stop()
	f.kill(peers[1].NodeID)
	eventually(t, "another node leads", func() bool {
		for _, node := range f.all() {
			if node.partitions[0].isLeader() {
				return true
			}
		}
		return false
	})
	if stalled, err := f.anyNode().Client().Count(ctx, Filter{States: []State{Stalled}}); err != nil || stalled != many {
		t.Errorf("the next leader lists %d stalled, %v", stalled, err)
	}
	f.makeLeader(0, first)
	eventually(t, "the leader with the code shows none that waits for it, and none that hangs without input", func() bool {
		return counts(f.nodes[first]) == "[{[running] 10} {[stalled] 5}]"
	})
}

// A blocked query records nothing that would end the condition: its return does.
func TestConditions_HungQueryThatReturns(t *testing.T) {
	release, asked := make(chan struct{}), replay.Query[string, string]("asked")
	node := startNewestProtocol(t, Config{HungAfter: 50 * time.Millisecond, Definitions: []replay.Definition{
		blockedOrchestration.Bind(func(ctx *replay.Context, _ string) (string, error) {
			if err := asked.Handle(ctx, func(string) (string, error) { <-release; return "yes", nil }); err != nil {
				return "", err
			}
			return word.Wait(ctx)
		}),
	}})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, blockedOrchestration, "q", ""); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- errOf(Query(ctx, client, "q", asked, "")) }()
	state := func(want State) func() bool {
		return func() bool {
			n, err := client.Count(ctx, Filter{States: []State{want}}, Stale())
			return err == nil && n == 1
		}
	}
	eventually(t, "the instance is recorded as hung", state(Hung))
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	eventually(t, "it is recorded as running", state(Running))
}
