package replaytest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An arrival waits to be let in: an append, or an attempt of an activity whose
// body has returned.
type arrival struct {
	// What makes their order the same each time.
	instance  string
	execution uint64
	eventID   uint64
	number    int

	proposal *proposal
	commit   *commit // the proposal, decoded
	attempt  *attempt

	// It is the result of something that runs beside others: only chance, or an
	// order, says which of them comes first.
	concurrent bool
	name       func() string
}

// next returns who is to be let in, nil if nobody waits. Appends come first: they
// are what has begun already. The end of a child is an arrival at its parent.
func (n *node) next() (*arrival, error) {
	var concurrent []*arrival
	var first *arrival
	for _, p := range n.journal.waiting() {
		a, err := n.arrivalOf(p)
		switch {
		case err != nil:
			return nil, err
		case a.concurrent:
			concurrent = append(concurrent, a)
		case first == nil || compareArrivals(a, first) < 0:
			first = a
		}
	}
	if first != nil {
		return first, nil
	}
	for _, a := range n.gate.attempts() {
		concurrent = append(concurrent, a.arrival())
	}
	if len(concurrent) == 0 {
		return nil, nil
	}
	index := n.order.choose(len(concurrent))
	if index == 0 { // as mostly: there is nothing to sort
		first = slices.MinFunc(concurrent, compareArrivals)
	} else {
		slices.SortFunc(concurrent, compareArrivals)
		first = concurrent[index]
	}
	n.order.chosen(first.name)
	return first, nil
}

// arrival returns the attempt as one who waits.
func (a *attempt) arrival() *arrival {
	if a.waits == nil {
		a.waits = &arrival{
			instance:   a.Instance,
			execution:  a.Execution,
			eventID:    a.EventID,
			number:     a.Number,
			attempt:    a,
			concurrent: true,
			name:       func() string { return fmt.Sprintf("%s of %s (event %d)", a.Name, a.Instance, a.EventID) },
		}
	}
	return a.waits
}

func compareArrivals(a, b *arrival) int {
	return cmp.Or(
		cmp.Compare(a.instance, b.instance),
		cmp.Compare(a.execution, b.execution),
		cmp.Compare(a.eventID, b.eventID),
		cmp.Compare(a.number, b.number),
	)
}

func (n *node) arrivalOf(p *proposal) (*arrival, error) {
	if p.arrival != nil {
		return p.arrival, nil
	}
	c, err := newCommit(p.append)
	if err != nil {
		return nil, err
	}
	events := c.events()
	last := events[len(events)-1]
	p.arrival = &arrival{
		instance:   c.instance,
		proposal:   p,
		commit:     c,
		concurrent: journalpb.Terminal(last.Arm()) && n.hasParent(c),
		name:       func() string { return "the end of child " + c.instance },
	}
	return p.arrival, nil
}

// hasParent tells whether an append is that of a child.
func (n *node) hasParent(c *commit) bool {
	if started := c.segments[0].events[0].GetOrchestrationStarted(); started != nil {
		return started.Parent != nil
	}
	known, ok := n.journal.Instance(c.instance)
	return ok && known.Parent != nil
}
