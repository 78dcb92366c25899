package replaytest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// An order decides which of several arrivals comes first, and remembers what it
// has decided. Of those that it was given nothing about it takes the first, or
// one by chance.
type order struct {
	given  []int
	random *rand.Rand // nil: the first
	index  int        // of the choice that is being made
	of     int
	taken  []choice
}

// A choice is one decision: which of how many.
type choice struct {
	index, of int
	name      string // of what came first
}

// choose returns which of so many arrivals comes first; chosen is to be called with that.
func (o *order) choose(many int) (index int) {
	switch at := len(o.taken); {
	case many == 1:
	case at < len(o.given):
		index = min(o.given[at], many-1)
	case o.random != nil:
		index = o.random.IntN(many)
	}
	o.index, o.of = index, many
	return index
}

// chosen remembers the choice, if there was one.
func (o *order) chosen(name func() string) {
	if o.of > 1 {
		o.taken = append(o.taken, choice{o.index, o.of, name()})
	}
}

// String is the order as the flag takes it: "0-2-1".
func (o *order) String() string {
	var parts []string
	for _, c := range o.taken {
		parts = append(parts, strconv.Itoa(c.index))
	}
	return strings.Join(parts, "-")
}

// describe lists, for people, what came first wherever there was a choice.
func (o *order) describe() string {
	var lines strings.Builder
	for i, c := range o.taken {
		fmt.Fprintf(&lines, "%5d. %s, of %d that were there\n", i+1, c.name, c.of)
	}
	return lines.String()
}

// next returns the choices that lead to the order after this one, the last
// choice varied first; false if this is the last of all.
func (o *order) next() ([]int, bool) {
	for at := len(o.taken) - 1; at >= 0; at-- {
		if o.taken[at].index+1 < o.taken[at].of {
			var given []int
			for _, c := range o.taken[:at] {
				given = append(given, c.index)
			}
			return append(given, o.taken[at].index+1), true
		}
	}
	return nil, false
}

// many returns how many orders there are, as far as this one shows, at most
// most+1.
func (o *order) many(most int) int {
	many := 1
	for _, c := range o.taken {
		if many *= c.of; many > most {
			return most + 1
		}
	}
	return many
}

func parseOrder(text string) ([]int, error) {
	var given []int
	for part := range strings.SplitSeq(text, "-") {
		index, err := strconv.Atoi(part)
		if err != nil || index < 0 {
			return nil, fmt.Errorf("order %q is not numbers with hyphens between them", text)
		}
		given = append(given, index)
	}
	return given, nil
}
