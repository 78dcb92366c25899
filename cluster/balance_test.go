package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

func TestChooseMove(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	even := []float64{1, 1, 1, 1}
	for name, c := range map[string]struct {
		leaders []string
		weights []float64
		self    string
		want    move
		moves   bool
	}{
		"all at one":               {[]string{"b", "b", "b", "b"}, even, "b", move{group: 0, to: "a"}, true},
		"one gives at a time":      {[]string{"b", "b", "b", "b"}, even, "a", move{}, false},
		"three and one":            {[]string{"c", "c", "c", "a"}, even, "c", move{group: 0, to: "b"}, true},
		"as even as can be":        {[]string{"a", "a", "b", "c"}, even, "a", move{}, false},
		"the first by name gives":  {[]string{"a", "a", "b", "b"}, even, "b", move{}, false},
		"and so it does":           {[]string{"a", "a", "b", "b"}, even, "a", move{group: 0, to: "c"}, true},
		"nobody leads one of them": {[]string{"a", "a", "a", ""}, even, "a", move{}, false},
		"the heavy one stays":      {[]string{"a", "a", "b", "c"}, []float64{2.2, .6, .6, .6}, "a", move{group: 1, to: "b"}, true},
		"the light one goes":       {[]string{"a", "a", "b", "c"}, []float64{1, .55, .5, .5}, "a", move{group: 1, to: "b"}, true},
		"nothing to gain":          {[]string{"a", "b", "b", "c"}, []float64{2.5, .5, .5, .5}, "a", move{}, false},
	} {
		got, ok := chooseMove(nodes, c.leaders, c.weights)
		moves := ok && got.from == c.self
		if moves != c.moves || moves && (got.group != c.want.group || got.to != c.want.to) {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, ok, c.want, c.moves)
		}
	}
}

// looked has every node look once, and makes the moves.
func looked(nodes, leaders []string, weights []float64) (moves int) {
	for _, node := range nodes {
		if m, ok := chooseMove(nodes, leaders, weights); ok && m.from == node {
			leaders[m.group] = m.to
			moves++
		}
	}
	return moves
}

// Whatever the groups weigh and whoever leads them at first, few moves are made. Then
// nothing goes to and fro, though the weights are never quite what they were.
func TestLeadersComeToRest(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		groups := 1 + random.IntN(12)
		leaders, loads, total := make([]string, groups), make([]float64, groups), 0.0
		for i := range groups {
			leaders[i] = nodes[random.IntN(len(nodes))]
			loads[i] = random.ExpFloat64()
			total += loads[i]
		}
		weights := make([]float64, groups)
		look := func() int {
			for i := range weights {
				weights[i] = 0.5 + 0.5*loads[i]*float64(groups)/total*(1+0.02*random.NormFloat64())
			}
			return looked(nodes, leaders, weights)
		}
		first, later := 0, 0
		for range 3 * groups {
			first += look()
		}
		for range 1000 {
			later += look()
		}
		if first > 2*groups || later > groups {
			t.Errorf("seed %d: %d groups made %d moves, and then %d in 1000 looks", seed, groups, first, later)
		}
	}
}

// Of groups that weigh the same, each node gets its part, and the move after that
// would gain nothing.
func TestLeadersAreSpreadEvenly(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	for groups := 1; groups <= 12; groups++ {
		leaders, weights := make([]string, groups), make([]float64, groups)
		for i := range groups {
			leaders[i], weights[i] = "b", 1
		}
		for looked(nodes, leaders, weights) > 0 {
		}
		leads := make(map[string]int)
		for _, leader := range leaders {
			leads[leader]++
		}
		for _, node := range nodes {
			if leads[node] < groups/len(nodes) || leads[node] > (groups+len(nodes)-1)/len(nodes) {
				t.Errorf("%d groups: %v", groups, leads)
			}
		}
	}
}

// Two nodes carry about as much, and each more than the other at every other look. One of
// them gives the third its part all the same.
func TestOneOfTwoThatCarryAboutAsMuchGives(t *testing.T) {
	nodes, leaders := []string{"a", "b", "c"}, []string{"a", "a", "b", "b"}
	for _, self := range []string{"a", "b"} {
		b := &scales{leftOut: make(map[string]int)}
		looks, moves := 0, false
		for ; looks < 10 && !moves; looks++ {
			weights := []float64{1.01, 1.01, 1, 1}
			if looks%2 == 1 {
				slices.Reverse(weights)
			}
			_, moves = b.decide(self, slices.Clone(nodes), slices.Clone(leaders), weights)
		}
		if !moves || looks < balancePatience || looks > balancePatience+1 {
			t.Errorf("%s moves after %d looks: %v", self, looks, moves)
		}
	}
}

// A node that was down when it was to take a group gets one soon after it is back.
func TestANodeThatTookNothingIsAskedAgainSoon(t *testing.T) {
	nodes, leaders := []string{"a", "b", "c"}, []string{"a", "a", "b", "b"}
	b := &scales{leftOut: map[string]int{"c": leftOutFor}}
	looks := 0
	for moves := false; !moves && looks < 100; looks++ {
		_, moves = b.decide("a", slices.Clone(nodes), leaders, []float64{1, 1, 1, 1})
	}
	if looks > 6 {
		t.Errorf("after %d looks", looks)
	}
}

// Nothing is moved while leadership changes hands by itself.
func TestLeadersThatChangeAreLeftAlone(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	b := &scales{leftOut: make(map[string]int)}
	for look := range 20 {
		leaders := []string{"a", "a", "a", nodes[look%2]}
		if m, moves := b.decide("a", slices.Clone(nodes), leaders, []float64{1, 1, 1, 1}); moves {
			t.Fatalf("%v at look %d", m, look)
		}
	}
}

// song in its second version is bound by some nodes only; concert starts one as a child.
var (
	song    = replay.Orchestration[string, string]("song")
	concert = replay.Orchestration[string, string]("concert")
)

// codeOf returns the code of a node that knows song in some versions.
func codeOf(versions ...string) []replay.Definition {
	all := append(definitions(), concert.Bind(func(ctx *replay.Context, id string) (string, error) {
		return song.Call(ctx, "la", replay.ChildVersion("2"), replay.ChildID(id))
	}))
	for _, version := range versions {
		all = append(all, song.Bind(func(ctx *replay.Context, text string) (string, error) {
			if text == "la" {
				return text + " by version " + ctx.Version(), nil
			}
			got, err := word.Wait(ctx)
			return got + " by version " + ctx.Version(), err
		}, replay.Version(version)))
	}
	return all
}

// startWithCode starts nodes n1, n2 and so on that differ in their code.
func startWithCode(t *testing.T, groups int, tendEvery time.Duration, code ...[]replay.Definition) *fleet {
	t.Helper()
	f := &fleet{t: t, nodes: make(map[string]*Node)}
	peers := loopbackPeers(t, len(code))
	for i := range peers {
		config := peerConfig(t, peers, i, code[i]...)
		config.Groups, config.tendEvery = groups, tendEvery
		f.start(config)
	}
	return f
}

// knows waits until a node that leads all groups has the others as workers of each.
func (f *fleet) knows(leader string) {
	f.t.Helper()
	for i, g := range f.nodes[leader].groups {
		f.lead(i, leader)
		eventually(f.t, "the others work for the leader", func() bool {
			for id := range f.nodes {
				if id != leader && g.worker(id) == nil {
					return false
				}
			}
			return true
		})
	}
}

// awaitWaiting waits until the leader of a group has instances that wait for code.
func awaitWaiting(t *testing.T, g *group, want int) {
	t.Helper()
	eventually(t, "instances wait for code", func() bool {
		p := g.partition.Load()
		return p != nil && p.WaitingForCode()[actors.Code{Name: "song", Version: "2"}] == want
	})
}

// Two followers have the second version: n2 lacks other code of the leader, n3 has all of it.
// A child of that version is started under n1. Another instance was started under n3, and gets
// its event under n1.
func TestLeadershipGoesToTheNodeThatHasTheCodeThatInstancesWaitFor(t *testing.T) {
	f := startWithCode(t, 1, time.Hour, codeOf("1"), codeOf("2"), codeOf("1", "2"))
	ctx := testContext(t)
	f.lead(0, "n3")
	if _, err := StartRun(ctx, f.nodes["n3"].Client(), song, "begun", "waits"); err != nil {
		t.Fatal(err)
	}
	f.knows("n1")
	first := f.nodes["n1"].groups[0]
	epoch := first.journal.Epoch()
	if _, err := StartRun(ctx, first.Client(), concert, "parent", "child"); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- Send(ctx, first.Client(), "begun", word, "done") }()
	awaitWaiting(t, first, 2)
	for _, id := range []string{"child", "begun"} {
		status, err := first.Client().Get(ctx, id)
		if err != nil || status.State != WaitingForCode {
			t.Errorf("%s: %+v, %v", id, status, err)
		}
	}
	if n, err := first.Client().Count(ctx, Filter{States: []State{WaitingForCode}}); n != 2 || err != nil {
		t.Errorf("%d are listed, %v", n, err)
	}
	if !first.moveToCode(ctx, make(leftOut)) {
		t.Error("nothing was handed over")
	}
	expectOutput(t, first.Client(), "parent", "la by version 2")
	expectOutput(t, first.Client(), "begun", "done by version 2")
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if now := f.nodes["n3"].groups[0]; !now.leads() || now.journal.Epoch() != epoch+1 {
		t.Errorf("%s leads, in epoch %d after %d; want n3 in the next", now.leader(), now.journal.Epoch(), epoch)
	}
}

// The only node with the code that is waited for lacks other code of the leader.
func TestLeadershipStaysWhereNoNodeHasAllOfTheCode(t *testing.T) {
	f := startWithCode(t, 1, time.Hour, codeOf("1"), codeOf("2"), codeOf("1"))
	ctx := testContext(t)
	f.knows("n1")
	first := f.nodes["n1"].groups[0]
	if _, err := StartRun(ctx, first.Client(), concert, "parent", "child"); err != nil {
		t.Fatal(err)
	}
	awaitWaiting(t, first, 1)
	if first.moveToCode(ctx, make(leftOut)) || !first.leads() {
		t.Error("the group was handed over")
	}
	if err := first.Client().Terminate(ctx, "child", "never mind"); err != nil {
		t.Fatal(err)
	}
	awaitWaiting(t, first, 0)
}

// Of several groups only the one goes to the node with more code in which an instance waits.
// What that node leads then, even all groups, it does not give to nodes with less.
func TestLeadersAreNotSpreadToNodesThatLackCode(t *testing.T) {
	f := startWithCode(t, groupsOfTests, time.Hour, codeOf("1"), codeOf("1"), codeOf("1", "2"))
	ctx := testContext(t)
	f.knows("n1")
	const waits = 2
	less, more := f.nodes["n1"], f.nodes["n3"]
	if _, err := StartRun(ctx, less.Client(), concert, "parent", idIn("child", waits)); err != nil {
		t.Fatal(err)
	}
	awaitWaiting(t, less.groups[waits], 1)
	if !less.moveToCode(ctx, make(leftOut)) {
		t.Error("nothing was handed over")
	}
	expectOutput(t, less.Client(), "parent", "la by version 2")
	for i := range groupsOfTests {
		if want := map[bool]string{true: "n3", false: "n1"}[i == waits]; f.any().groups[i].leader() != want {
			t.Errorf("group %d is led by %s, not %s", i, f.any().groups[i].leader(), want)
		}
	}

	f.knows("n3")
	b := &scales{leftOut: make(leftOut)}
	for range 5 * balancePatience {
		more.rebalance(ctx, b)
	}
	if len(more.led()) != groupsOfTests {
		t.Errorf("n3 leads %d of %d groups", len(more.led()), groupsOfTests)
	}

	f.knows("n1")
	b = &scales{leftOut: make(leftOut)}
	for range 5 * balancePatience {
		less.rebalance(ctx, b)
	}
	if len(less.led()) == groupsOfTests {
		t.Error("n1 has given nothing to nodes that have its code")
	}
}

// The loop of the nodes does it, without a hand from outside.
func TestInstancesThatWaitForCodeGoOnByThemselves(t *testing.T) {
	f := startWithCode(t, groupsOfTests, 20*time.Millisecond, codeOf("1"), codeOf("1"), codeOf("1", "2"))
	ctx := testContext(t)
	for i := range groupsOfTests {
		got, err := Call(ctx, f.nodes["n1"].Client(), concert, idIn("parent", i), idIn("child", i))
		if err != nil || got != "la by version 2" {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// A node tells which code it has, unless it is too much; one of the build before does not.
func TestANodeTellsItsCode(t *testing.T) {
	many := []actors.Code{{Name: "song"}, {Name: "song", Version: "2"}}
	told, err := readHello(wireHello(&actors.Hello{Node: "a", Orchestrations: many, CodeKnown: true}), Principal{Role: RoleLocal})
	if err != nil || !told.CodeKnown || !slices.Equal(told.Orchestrations, many) {
		t.Errorf("%+v, %v", told, err)
	}
	if before, err := readHello(&clusterpb.Hello{Node: "a"}, Principal{Role: RoleLocal}); err != nil || before.CodeKnown {
		t.Errorf("%+v, %v", before, err)
	}

	large := Config{NodeID: "a"}
	for i := range 2000 {
		large.Definitions = append(large.Definitions, song.Bind(waiterBody, replay.Version(fmt.Sprintf("%0128d", i))))
	}
	hello := (&group{Node: &Node{config: large}}).hello()
	if wire := wireHello(&hello); wire.Code != clusterpb.CodeList_CODE_LIST_TRUNCATED || len(wire.Orchestrations) > 0 {
		t.Errorf("%v with %d", wire.Code, len(wire.Orchestrations))
	}
	hello.Orchestrations, hello.CodeKnown = large.orchestrations(), true
	var refused *InputError
	if _, err := readHello(wireHello(&hello), Principal{Role: RoleLocal}); !errors.As(err, &refused) || refused.Field != "orchestrations" {
		t.Errorf("too many are refused with %v", err)
	}
	if large.isCoveredBy(&actors.Hello{Orchestrations: large.orchestrations()}) {
		t.Error("a node that does not say that it has told all is believed to have all")
	}
}

// festival starts song, in whatever version is the newest, as a child or on its own.
var festival = replay.Orchestration[string, string]("festival")

func withFestival(code []replay.Definition) []replay.Definition {
	return append(code, festival.Bind(func(ctx *replay.Context, id string) (string, error) {
		if strings.HasPrefix(id, "chained") {
			return "", song.Chain(ctx, "la", replay.ChildID(id))
		}
		return song.Call(ctx, "la", replay.ChildID(id))
	}))
}

// The leader has no code of the orchestration at all, so it cannot say what the newest is.
func TestStartsWithoutAVersionGetTheNewestOfTheNodeThatHasTheCode(t *testing.T) {
	f := startWithCode(t, groupsOfTests, 20*time.Millisecond, withFestival(codeOf()), withFestival(codeOf()), withFestival(codeOf("1", "2")))
	for _, g := range f.nodes["n1"].groups {
		eventually(t, "the newest protocol", func() bool { return g.journal.Protocol() == protocolVersion })
	}
	ctx := testContext(t)
	client := f.nodes["n1"].Client()
	for i := range groupsOfTests {
		for _, id := range []string{idIn("child", i), idIn("chained", i)} {
			if _, err := Call(ctx, client, festival, idIn("parent-of-"+id, i), id); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			eventually(t, id+" is started", func() bool { return second(client.Get(ctx, id)) == nil })
			expectOutput(t, client, id, "la by version 2")
		}
	}
}
