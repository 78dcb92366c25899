package cluster

import (
	"math/rand/v2"
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
		"all at one":               {[]string{"b", "b", "b", "b"}, even, "b", move{0, "a"}, true},
		"one gives at a time":      {[]string{"b", "b", "b", "b"}, even, "a", move{}, false},
		"three and one":            {[]string{"c", "c", "c", "a"}, even, "c", move{0, "b"}, true},
		"as even as can be":        {[]string{"a", "a", "b", "c"}, even, "a", move{}, false},
		"the first by name gives":  {[]string{"a", "a", "b", "b"}, even, "b", move{}, false},
		"and so it does":           {[]string{"a", "a", "b", "b"}, even, "a", move{0, "c"}, true},
		"nobody leads one of them": {[]string{"a", "a", "a", ""}, even, "a", move{}, false},
		"the heavy one stays":      {[]string{"a", "a", "b", "c"}, []float64{2.2, .6, .6, .6}, "a", move{1, "b"}, true},
		"the light one goes":       {[]string{"a", "a", "b", "c"}, []float64{1, .55, .5, .5}, "a", move{1, "b"}, true},
		"nothing to gain":          {[]string{"a", "b", "b", "c"}, []float64{2.5, .5, .5, .5}, "a", move{}, false},
	} {
		got, moves := chooseMove(c.self, nodes, c.leaders, c.weights)
		if got != c.want || moves != c.moves {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, moves, c.want, c.moves)
		}
	}
}

// looked has every node look once, and makes the moves.
func looked(nodes, leaders []string, weights []float64) (moves int) {
	for _, node := range nodes {
		if m, ok := chooseMove(node, nodes, leaders, weights); ok {
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
