package balance

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
		want    Move
		moves   bool
	}{
		"all at one":               {[]string{"b", "b", "b", "b"}, even, "b", Move{Partition: 0, To: "a"}, true},
		"only the heaviest moves":  {[]string{"b", "b", "b", "b"}, even, "a", Move{}, false},
		"three and one":            {[]string{"c", "c", "c", "a"}, even, "c", Move{Partition: 0, To: "b"}, true},
		"as even as can be":        {[]string{"a", "a", "b", "c"}, even, "a", Move{}, false},
		"second by name stays":     {[]string{"a", "a", "b", "b"}, even, "b", Move{}, false},
		"first by name moves":      {[]string{"a", "a", "b", "b"}, even, "a", Move{Partition: 0, To: "c"}, true},
		"nobody leads one of them": {[]string{"a", "a", "a", ""}, even, "a", Move{}, false},
		"the heavy one stays":      {[]string{"a", "a", "b", "c"}, []float64{2.2, .6, .6, .6}, "a", Move{Partition: 1, To: "b"}, true},
		"the light one goes":       {[]string{"a", "a", "b", "c"}, []float64{1, .55, .5, .5}, "a", Move{Partition: 1, To: "b"}, true},
		"nothing to gain":          {[]string{"a", "b", "b", "c"}, []float64{2.5, .5, .5, .5}, "a", Move{}, false},
	} {
		got, ok := chooseMove(nodes, c.leaders, c.weights)
		moves := ok && got.From == c.self
		if moves != c.moves || moves && (got.Partition != c.want.Partition || got.To != c.want.To) {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, ok, c.want, c.moves)
		}
	}
}

// balanceOnce runs one round on every node and makes the moves.
func balanceOnce(nodes, leaders []string, weights []float64) (moves int) {
	for _, node := range nodes {
		if m, ok := chooseMove(nodes, leaders, weights); ok && m.From == node {
			leaders[m.Partition] = m.To
			moves++
		}
	}
	return moves
}

// For all weights and initial leaders, the balancer makes few moves. Then nothing moves back and
// forth, although the weights fluctuate.
func TestBalancer_Converges(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		partitions := 1 + random.IntN(12)
		leaders, loads, total := make([]string, partitions), make([]float64, partitions), 0.0
		for i := range partitions {
			leaders[i] = nodes[random.IntN(len(nodes))]
			loads[i] = random.ExpFloat64()
			total += loads[i]
		}
		weights := make([]float64, partitions)
		round := func() int {
			for i := range weights {
				weights[i] = 0.5 + 0.5*loads[i]*float64(partitions)/total*(1+0.02*random.NormFloat64())
			}
			return balanceOnce(nodes, leaders, weights)
		}
		first, later := 0, 0
		for range 3 * partitions {
			first += round()
		}
		for range 1000 {
			later += round()
		}
		if first > 2*partitions || later > partitions {
			t.Errorf("seed %d: %d partitions made %d moves, and then %d in 1000 rounds", seed, partitions, first, later)
		}
	}
}

// With partitions of equal weight, each node leads its share, and no further move would help.
func TestBalancer_SpreadsLeadersEvenly(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	for partitions := 1; partitions <= 12; partitions++ {
		leaders, weights := make([]string, partitions), make([]float64, partitions)
		for i := range partitions {
			leaders[i], weights[i] = "b", 1
		}
		for balanceOnce(nodes, leaders, weights) > 0 {
		}
		leads := make(map[string]int)
		for _, leader := range leaders {
			leads[leader]++
		}
		for _, node := range nodes {
			if leads[node] < partitions/len(nodes) || leads[node] > (partitions+len(nodes)-1)/len(nodes) {
				t.Errorf("%d partitions: %v", partitions, leads)
			}
		}
	}
}

// Two nodes have nearly equal weight, and each has more than the other in every other round. One of
// them still hands a partition to the third.
func TestBalancer_MovesFromOneOfTwoEqualNodes(t *testing.T) {
	nodes, leaders := []string{"a", "b", "c"}, []string{"a", "a", "b", "b"}
	for _, self := range []string{"a", "b"} {
		b := &Balancer{excluded: make(map[string]int)}
		rounds, moves := 0, false
		for ; rounds < 10 && !moves; rounds++ {
			weights := []float64{1.01, 1.01, 1, 1}
			if rounds%2 == 1 {
				slices.Reverse(weights)
			}
			_, moves = b.Decide(self, slices.Clone(nodes), slices.Clone(leaders), weights)
		}
		if !moves || rounds < unevenRoundsMin || rounds > unevenRoundsMin+1 {
			t.Errorf("%s moves after %d rounds: %v", self, rounds, moves)
		}
	}
}

// A node that was down when it was offered a partition gets one soon after it is back.
func TestBalancer_RetriesNodeThatTookNothing(t *testing.T) {
	nodes, leaders := []string{"a", "b", "c"}, []string{"a", "a", "b", "b"}
	b := &Balancer{excluded: map[string]int{"c": exclusionRounds}}
	rounds := 0
	for moves := false; !moves && rounds < 100; rounds++ {
		_, moves = b.Decide("a", slices.Clone(nodes), leaders, []float64{1, 1, 1, 1})
	}
	if rounds > 6 {
		t.Errorf("after %d rounds", rounds)
	}
}

// Nothing moves while leadership changes by itself.
func TestBalancer_WaitsWhileLeadersChange(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	b := &Balancer{excluded: make(map[string]int)}
	for round := range 20 {
		leaders := []string{"a", "a", "a", nodes[round%2]}
		if m, moves := b.Decide("a", slices.Clone(nodes), leaders, []float64{1, 1, 1, 1}); moves {
			t.Fatalf("%v in round %d", m, round)
		}
	}
}
