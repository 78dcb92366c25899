package cluster

import (
	"math/rand/v2"
	"slices"
	"testing"
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
