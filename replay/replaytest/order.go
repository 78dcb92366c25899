package replaytest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// An order chooses among concurrent arrivals and records its choices. It first follows prescribed.
// After that it chooses the first arrival or a random one.
type order struct {
	prescribed []int
	random     *rand.Rand // nil takes the first
	index      int        // of the current choice
	options    int
	choices    []choice
}

// A choice is one decision among several arrivals.
type choice struct {
	index, options int
	name           string // of the arrival chosen
}

// choose returns the index of the arrival to admit. The caller then calls recordChoice.
func (o *order) choose(count int) (index int) {
	switch at := len(o.choices); {
	case count == 1:
	case at < len(o.prescribed):
		index = min(o.prescribed[at], count-1)
	case o.random != nil:
		index = o.random.IntN(count)
	}
	o.index, o.options = index, count
	return index
}

// recordChoice records the last choice if there were several options.
func (o *order) recordChoice(name func() string) {
	if o.options > 1 {
		o.choices = append(o.choices, choice{o.index, o.options, name()})
	}
}

// String returns the order in the format of -replaytest.order: "0-2-1".
func (o *order) String() string {
	var parts []string
	for _, c := range o.choices {
		parts = append(parts, strconv.Itoa(c.index))
	}
	return strings.Join(parts, "-")
}

// describe lists the choices for failure messages.
func (o *order) describe() string {
	var lines strings.Builder
	for i, c := range o.choices {
		fmt.Fprintf(&lines, "%5d. %s, of %d arrivals\n", i+1, c.name, c.options)
	}
	return lines.String()
}

// nextChoices returns the choices of the next order, varying the last choice first. It returns
// false after the last order.
func (o *order) nextChoices() ([]int, bool) {
	for at := len(o.choices) - 1; at >= 0; at-- {
		if o.choices[at].index+1 < o.choices[at].options {
			var prescribed []int
			for _, c := range o.choices[:at] {
				prescribed = append(prescribed, c.index)
			}
			return append(prescribed, o.choices[at].index+1), true
		}
	}
	return nil, false
}

// countOrders returns the number of orders that have the same numbers of options, or limit+1 if
// there are more than limit.
func (o *order) countOrders(limit int) int {
	count := 1
	for _, c := range o.choices {
		if count *= c.options; count > limit {
			return limit + 1
		}
	}
	return count
}

func parseOrder(text string) ([]int, error) {
	var prescribed []int
	for part := range strings.SplitSeq(text, "-") {
		index, err := strconv.Atoi(part)
		if err != nil || index < 0 {
			return nil, fmt.Errorf("order %q must be numbers separated by hyphens", text)
		}
		prescribed = append(prescribed, index)
	}
	return prescribed, nil
}
