package slots

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
		if got := Of(id); got != want {
			t.Errorf("%q: slot %d, want %d", id, got, want)
		}
	}
}

// IDs that are alike but for their end spread evenly over slots and groups.
func TestSlotsSpread(t *testing.T) {
	const many = 256 * 100
	counts := make([]int, Count)
	groups := make([]int, 5)
	for i := range many {
		id := fmt.Sprintf("order-%d", i)
		counts[Of(id)]++
		groups[Group(id, len(groups))]++
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
	for groups := 1; groups <= 64; groups++ {
		has := make([]int, groups)
		for slot := range Count {
			has[slot*groups/Count]++
		}
		if least, most := slices.Min(has), slices.Max(has); least == 0 || most-least > 1 {
			t.Errorf("of %d groups one has %d slots, another %d", groups, least, most)
		}
	}
}
