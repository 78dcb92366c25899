package cluster

import (
	"fmt"
	"slices"
	"testing"
)

// The slots of instances are on disk for ever: where an instance is follows from
// them.
func TestSlotsStayWhatTheyAre(t *testing.T) {
	for id, want := range map[string]int{
		"": 248, "a": 96, "b": 201, "order-17": 84, "order-18": 166, "kid::1.2": 53,
	} {
		if got := slotOf(id); got != want {
			t.Errorf("%q: slot %d, want %d", id, got, want)
		}
	}
}

// IDs that are alike but for their end spread evenly over slots and groups.
func TestSlotsSpread(t *testing.T) {
	const many = 256 * 100
	counts := make([]int, slotCount)
	groups := make([]int, 5)
	for i := range many {
		id := fmt.Sprintf("order-%d", i)
		counts[slotOf(id)]++
		groups[groupOf(id, len(groups))]++
	}
	if least, most := slices.Min(counts), slices.Max(counts); least < 50 || most > 150 {
		t.Errorf("slots hold %d to %d, of 100 on average", least, most)
	}
	for group, count := range groups {
		if mean := many / len(groups); count < mean*9/10 || count > mean*11/10 {
			t.Errorf("group %d of %d holds %d of %d", group, len(groups), count, many)
		}
	}
}

func TestEveryGroupHasSlots(t *testing.T) {
	for groups := 1; groups <= groupsMax; groups++ {
		has := make([]int, groups)
		for slot := range slotCount {
			has[slot*groups/slotCount]++
		}
		if least, most := slices.Min(has), slices.Max(has); least == 0 || most-least > 1 {
			t.Errorf("of %d groups one has %d slots, another %d", groups, least, most)
		}
	}
}

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
